//! Runs whose program was killed: closed by the next invocation, which says what is known and removes what they left.

use super::state::State;
use super::terminal::Screen;
use crate::api::{Attempt, Failure, Reason};
use crate::audit::{Abandon, Event, Record, RecordError, RunKey, RunState};

/// Closes every open run of this machine that nobody watches any more.
///
/// # Errors
/// When the record cannot be read or written.
pub(super) async fn close(
    record: &Record,
    state: &State,
    screen: &Screen,
) -> Result<(), RecordError> {
    for open in record.open_runs().await? {
        if !state.is_watched(&open.run.uid) {
            close_one(record, state, screen, &open.run).await?;
        }
    }
    Ok(())
}

async fn close_one(
    record: &Record,
    state: &State,
    screen: &Screen,
    run: &RunKey,
) -> Result<(), RecordError> {
    let attempt = RunState::of(&record.events(&run.uid).await?).attempt();
    let known = match attempt {
        None => "it had not begun".to_owned(),
        Some(attempt) => known_of(record, run, attempt).await?,
    };
    // A workspace is made safe after the last word, or when that could not be written.
    let kept = state.is_kept(&run.uid);
    let what = if kept {
        "could not write the record"
    } else {
        "was killed"
    };
    let message = format!("the program that watched this run {what}; {known}");
    let failure = Failure::new(Reason::RunAbandoned, message.clone());
    let ended = Event::RunEnded {
        attempt,
        exit_code: None,
        failure: Some(failure),
        millis: 0,
    };
    record.append(run, ended).await?;
    screen.warn(
        "abandoned",
        &format!("{}/{} ({}): {message}", run.namespace, run.name, run.uid),
    );
    if kept {
        return Ok(());
    }
    if let Err(error) = state.remove_run(&run.uid) {
        screen.warn("abandoned", &error.to_string());
    }
    Ok(())
}

/// Whether the agent had started is a fact, not a guess: an attempt is abandoned by compare and set.
async fn known_of(record: &Record, run: &RunKey, attempt: Attempt) -> Result<String, RecordError> {
    Ok(
        match record.abandon(run, attempt, Reason::RunAbandoned).await? {
            Abandon::Abandoned => "its agent never started".to_owned(),
            Abandon::AlreadyStarted { .. } => {
                "its agent had started, and died with the program; what it left is not in the record"
                    .to_owned()
            }
        },
    )
}
