//! One call to the API server: with a deadline, and with an answer that says what is known afterwards.

use std::time::Duration;

use kube::core::Status;

/// A call did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The server said no.
    #[error("the API server refused to {doing}: {}", status.message)]
    Refused {
        /// What was being done, as a sentence's end.
        doing: &'static str,
        /// Its whole answer.
        status: Box<Status>,
    },
    /// It did something else.
    #[error("the API server was asked to {doing}, and what it made is something else")]
    Changed {
        /// What was being done, as a sentence's end.
        doing: &'static str,
    },
    /// No answer came: it may have been done.
    #[error("the API server gave no answer in time when asked to {doing}")]
    NoAnswer {
        /// What was being done, as a sentence's end.
        doing: &'static str,
        /// Why not, if it was not the time.
        #[source]
        source: Option<Box<kube::Error>>,
    },
}

impl CallError {
    /// Whether the object is not there, or is another one of the same name.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Refused { status, .. } => status.code == 404 || status.code == 409,
            Self::NoAnswer { .. } | Self::Changed { .. } => false,
        }
    }

    /// Whether what was asked for may have been done all the same: nobody answered, or a server that had a fault did.
    pub(super) fn may_be_done(&self) -> bool {
        match self {
            Self::Refused { status, .. } => status.code >= 500,
            Self::NoAnswer { .. } => true,
            Self::Changed { .. } => false,
        }
    }

    /// The word that metrics use.
    pub(super) fn result(&self) -> &'static str {
        match self {
            Self::Refused { status, .. } if status.code == 409 => "conflict",
            Self::Refused { .. } => "refused",
            Self::Changed { .. } => "changed",
            Self::NoAnswer { .. } => "unknown",
        }
    }
}

/// Makes a call that ends within `timeout`.
///
/// # Errors
/// When it is refused, or nobody answers.
pub(super) async fn within<T>(
    timeout: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => Err(CallError::Refused { doing, status }),
        Ok(Err(error)) => Err(CallError::NoAnswer {
            doing,
            source: Some(Box::new(error)),
        }),
        Err(_) => Err(CallError::NoAnswer {
            doing,
            source: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::forbidden(403, false)]
    #[case::conflict(409, false)]
    #[case::gateway_timeout(504, true)]
    fn an_answer_of_a_faulty_server_says_nothing_of_what_was_done(
        #[case] code: u16,
        #[case] may_be_done: bool,
    ) {
        let status = Box::new(Status::failure("as it is", "Reason").with_code(code));
        let doing = "test";
        assert_eq!(
            CallError::Refused { doing, status }.may_be_done(),
            may_be_done
        );
        let source = None;
        assert!(CallError::NoAnswer { doing, source }.may_be_done());
    }
}
