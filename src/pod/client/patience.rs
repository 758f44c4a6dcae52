//! How often and how long a call is made again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::CallError;

/// Tries after the first, whatever the time: with the pauses between them about 6 s.
const TRIES: u32 = 6;
/// The first pause; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(3200);
/// A gateway that has just started may not know yet whose pods there are.
const IDENTITY: Duration = Duration::from_secs(30);

/// Decides whether a call that failed is made again, and waits before it is.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    since: Instant,
    tries: u32,
    pause: Duration,
}

impl Patience {
    /// A few tries, and as many more as fit into `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            since: Instant::now(),
            tries: 0,
            pause: FIRST_PAUSE,
        }
    }

    /// Something came: everything begins anew.
    pub(crate) fn renew(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Waits for the next try. False: there is none, and the error stands.
    pub(crate) async fn outlasts(&mut self, error: &CallError) -> bool {
        let elapsed = self.since.elapsed();
        let again = if error.is_unknown_identity() {
            elapsed < IDENTITY
        } else {
            error.is_passing() && (self.tries < TRIES || elapsed < self.limit)
        };
        if again {
            sleep(self.pause).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            self.tries += 1;
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Reason;
    use crate::api::wire::Problem;
    use hyper::StatusCode;

    async fn lasts(error: CallError, limit: Duration) -> (u32, Duration) {
        let (began, mut patience) = (Instant::now(), Patience::new(limit));
        while patience.outlasts(&error).await {}
        (patience.tries, began.elapsed())
    }

    fn refused(status: u16, reason: Reason) -> CallError {
        let problem = Box::new(Problem::new(status, reason, "", ""));
        let status = StatusCode::from_u16(status).unwrap();
        CallError::Refused { status, problem }
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again_and_a_clear_no_is_not() {
        let away = || CallError::Connect(std::io::ErrorKind::ConnectionRefused.into());
        let (tries, took) = lasts(away(), Duration::ZERO).await;
        assert_eq!((tries, took.as_secs()), (6, 6));
        let (_, took) = lasts(away(), Duration::from_mins(3)).await;
        assert!((180..185).contains(&took.as_secs()), "{took:?}");
        let no = refused(409, Reason::GrantLost);
        assert_eq!(lasts(no, Duration::from_mins(3)).await.0, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_does_not_know_us_yet_is_asked_for_30_s() {
        let unknown = || refused(401, Reason::IdentityUnknown);
        for limit in [Duration::ZERO, Duration::from_mins(3)] {
            let (_, took) = lasts(unknown(), limit).await;
            assert!((30..35).contains(&took.as_secs()), "{took:?}");
        }
    }
}
