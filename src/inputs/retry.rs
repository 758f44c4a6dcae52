//! When to try again, and when to give up. The rules are pure: time and chance come in.

use std::time::Duration;

use tokio::time::Instant;

use super::Times;
use crate::api::{Failure, Healing, InputName, Reason};

/// A refused credential is shown this many times more: servers lock accounts that fail too often.
const REFUSALS: u32 = 2;

/// The tries of one input, so far.
#[derive(Debug)]
struct Retry {
    times: Times,
    tries: u32,
    refusals: u32,
    /// Failures of one kind that have followed one another, and since when.
    row: Option<Row>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    budget: Budget,
    since: Instant,
    length: u32,
}

/// Which of the settings' times a failure uses up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Budget {
    Transient,
    Brief,
    Missing,
}

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Try again after this.
    Wait(Duration),
    /// It stays so. So many tries were made, within so long.
    GiveUp(u32, Duration),
}

impl Retry {
    fn new(times: Times) -> Self {
        Self {
            times,
            tries: 0,
            refusals: 0,
            row: None,
        }
    }

    /// What to do after this failure. `hold` is how long the server asks to be left alone, `chance` is in 0..1.
    fn after(
        &mut self,
        failure: &Failure,
        hold: Option<Duration>,
        now: Instant,
        chance: f64,
    ) -> Next {
        self.tries += 1;
        let Some(budget) = budget(failure) else {
            return Next::GiveUp(self.tries, Duration::ZERO);
        };
        let row = match self.row {
            Some(row) if row.budget == budget => Row {
                length: row.length + 1,
                ..row
            },
            Some(_) | None => Row {
                budget,
                since: now,
                length: 1,
            },
        };
        self.row = Some(row);
        let spent = now.saturating_duration_since(row.since);
        let left = self.allowed(budget).saturating_sub(spent);
        let refused = matches!(
            failure.reason,
            Reason::AuthenticationFailed | Reason::AuthenticationRequired
        );
        self.refusals += u32::from(refused);
        let over = left.is_zero() || hold.is_some_and(|hold| hold > left);
        if over || (refused && self.refusals > REFUSALS) {
            return Next::GiveUp(self.tries, spent);
        }
        let pause = if refused {
            self.spread(chance)
        } else {
            self.pause(row, chance)
        };
        // The last try is made when the time is just up, so that what heals within it is seen.
        Next::Wait(hold.unwrap_or_else(|| pause.min(left)))
    }

    fn allowed(&self, budget: Budget) -> Duration {
        match budget {
            Budget::Transient => self.times.give_up,
            Budget::Brief => self.times.brief,
            Budget::Missing => self.times.missing,
        }
    }

    /// Full jitter: anything up to the bound, which doubles with each try.
    fn pause(&self, row: Row, chance: f64) -> Duration {
        if row.budget == Budget::Missing {
            return self.times.missing_every;
        }
        let doubled = 2_u32.saturating_pow(row.length.saturating_sub(1));
        let bound = self
            .times
            .backoff_first
            .saturating_mul(doubled)
            .min(self.times.backoff_max);
        bound.mul_f64(chance.clamp(0.0, 1.0))
    }

    /// The few tries of a refused credential, over the whole of the brief time.
    fn spread(&self, chance: f64) -> Duration {
        (self.times.brief / REFUSALS).mul_f64(chance.clamp(0.0, 1.0).midpoint(1.0))
    }
}

fn budget(failure: &Failure) -> Option<Budget> {
    match (failure.reason, failure.reason.healing()) {
        (Reason::ConnectorNotFound | Reason::SecretNotFound, _) => Some(Budget::Missing),
        (_, Healing::Transient) => Some(Budget::Transient),
        (_, Healing::Brief) => Some(Budget::Brief),
        (_, Healing::Permanent) => None,
    }
}

/// A try that failed.
#[derive(Debug)]
pub(super) struct Missed {
    /// Why.
    pub(super) failure: Failure,
    /// How long the server asks to be left alone.
    pub(super) hold: Option<Duration>,
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            hold: None,
        }
    }
}

/// Tries for an input until it works, or stays so. Each wait is told.
pub(super) async fn until_settled<T, A: Future<Output = Result<T, Missed>>>(
    times: Times,
    input: &InputName,
    mut attempt: impl FnMut() -> A,
    waiting: impl Fn(&Failure),
) -> Result<T, Failure> {
    let mut retry = Retry::new(times);
    loop {
        let missed = match attempt().await {
            Ok(done) => return Ok(done),
            Err(missed) => missed,
        };
        let failure = Failure {
            input: Some(input.clone()),
            ..missed.failure
        };
        match retry.after(&failure, missed.hold, Instant::now(), chance()) {
            Next::Wait(wait) => {
                tracing::debug!(
                    input = input.as_str(),
                    reason = failure.reason.as_str(),
                    wait_ms = wait.as_millis(),
                    "an input is tried again"
                );
                waiting(&failure);
                tokio::time::sleep(wait).await;
            }
            Next::GiveUp(tries, _) if tries <= 1 => return Err(failure),
            Next::GiveUp(tries, spent) => {
                let text = &failure.message;
                let message = format!("{text} (tried {tries} times in {} s)", spent.as_secs());
                return Err(Failure { message, ..failure });
            }
        }
    }
}

/// A number in 0..1 that no two waiters share.
fn chance() -> f64 {
    let mut bytes = [0_u8; 4];
    // Without randomness all wait for the whole bound, which is slower and not wrong.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        return 1.0;
    }
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// The waits until it is given up, when every try fails like that at once and chance is always `chance`.
    fn waits(reason: Reason, hold: Option<Duration>, chance: f64) -> Vec<u64> {
        let mut retry = Retry::new(Times::default());
        let failure = Failure::new(reason, "x");
        let (mut now, mut waits) = (Instant::now(), Vec::new());
        while let Next::Wait(wait) = retry.after(&failure, hold, now, chance) {
            waits.push(wait.as_secs());
            now += wait;
        }
        waits
    }

    #[rstest]
    #[case::transient(Reason::ServerError, &[1, 2, 4, 8, 16, 32, 60, 60, 60, 57])]
    #[case::not_found(Reason::RepositoryNotFoundOrNoAccess, &[1, 2, 4, 3])]
    #[case::ref_not_found(Reason::RefNotFound, &[1, 2, 4, 3])]
    #[case::refused_twice_more(Reason::AuthenticationFailed, &[5, 5])]
    #[case::permanent(Reason::EmptyRepository, &[])]
    #[case::denied(Reason::AccessDenied, &[])]
    fn the_waits_are_those_of_the_design(#[case] reason: Reason, #[case] want: &[u64]) {
        assert_eq!(waits(reason, None, 1.0), want);
    }

    #[test]
    fn c07_what_is_missing_is_looked_for_during_five_minutes() {
        let waits = waits(Reason::SecretNotFound, None, 0.3);
        assert_eq!((waits.len(), waits.iter().sum::<u64>()), (150, 300));
    }

    #[test]
    fn t02_a_server_that_asks_to_be_left_alone_is() {
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(
            waits(Reason::RateLimited, seconds(20), 0.0).first(),
            Some(&20)
        );
        assert_eq!(waits(Reason::RateLimited, seconds(301), 0.0), &[] as &[u64]);
    }

    #[test]
    fn another_kind_of_failure_starts_its_own_time() {
        let mut retry = Retry::new(Times::default());
        let start = Instant::now();
        let fail = |retry: &mut Retry, reason, at| {
            retry.after(
                &Failure::new(reason, "x"),
                None,
                start + Duration::from_secs(at),
                0.5,
            )
        };
        assert!(matches!(
            fail(&mut retry, Reason::RefNotFound, 0),
            Next::Wait(_)
        ));
        assert!(matches!(
            fail(&mut retry, Reason::ServerError, 5),
            Next::Wait(_)
        ));
        assert!(matches!(
            fail(&mut retry, Reason::RefNotFound, 60),
            Next::Wait(_)
        ));
        assert_eq!(
            fail(&mut retry, Reason::RefNotFound, 70),
            Next::GiveUp(4, Duration::from_secs(10))
        );
    }
}
