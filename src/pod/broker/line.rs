//! The broker's own connection to the gateway for a grant: stops come over it, and that it is open says that `exec` lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::desk::Desk;
use crate::api::wire::GrantLine;
use crate::api::{Fault as _, Reason};
use crate::pod::client::CallError;
use crate::pod::grant::{self, Grant, GrantError};

/// The gateway sends a line every 5 s: three are missing.
const SILENCE: Duration = Duration::from_secs(15);
/// The first pause before the connection is made again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A gateway that has just started may not know this pod yet. One that still does not then means it: the attempt is no
/// more.
const IDENTITY: Duration = Duration::from_secs(30);

/// Holds the line while there is an `exec`, for as long as the broker lives. A gateway that is away changes nothing for the
/// agent; a clear no stops it.
pub(super) async fn hold(desk: Arc<Desk>, nonce: String, mut grant: Option<Grant>) {
    let mut seen = desk.watch();
    loop {
        // Its `exec` is about to hear the yes, or (after a restart) to come back.
        if seen.wait_for(|seen| seen.streams > 0).await.is_err() {
            return;
        }
        let lost = tokio::select! {
            () = desk.left_alone() => None,
            reason = listen(&desk, &nonce, grant.take()) => Some(reason),
        };
        match lost {
            // The connection is closed by now, which is how the gateway learns that the agent is gone.
            None => {}
            Some(reason) => {
                desk.stop(reason);
                return;
            }
        }
    }
}

/// Listens until there is a reason to stop the agent, over as many connections as it takes.
async fn listen(desk: &Desk, nonce: &str, mut grant: Option<Grant>) -> Reason {
    loop {
        let mut line = match grant.take() {
            Some(grant) => grant,
            None => match again(desk, nonce).await {
                Ok(grant) => grant,
                Err(reason) => return reason,
            },
        };
        while let Ok(Ok(heard)) = timeout(SILENCE, line.next()).await {
            match heard {
                // Held on, so that the gateway sees the agent until it is gone.
                GrantLine::Stop { reason } => desk.stop(reason),
                GrantLine::Alive | GrantLine::Granted { .. } => {}
            }
        }
    }
}

/// The same yes over a new connection.
async fn again(desk: &Desk, nonce: &str) -> Result<Grant, Reason> {
    let mut pause = FIRST_PAUSE;
    let mut unknown_since: Option<Instant> = None;
    loop {
        match grant::request(desk.gateway(), nonce).await {
            Ok(grant) => return Ok(grant),
            Err(GrantError::NotGranted(error)) if error.is_unknown_identity() => {
                let since = *unknown_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= IDENTITY {
                    return Err(Reason::GrantLost);
                }
            }
            Err(GrantError::NotGranted(error)) if is_away(&error) => unknown_since = None,
            Err(error) => return Err(error.reason()),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn is_away(error: &CallError) -> bool {
    error.is_passing()
}
