//! Signals: once ends the run in order, twice ends it at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How urgently the user wants the run to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Not at all.
    #[default]
    None,
    /// Stop the agent, then read what it left.
    Cancel,
    /// Now.
    Kill,
}

/// Counts SIGINT, SIGTERM and SIGHUP of this process.
///
/// # Errors
/// When the signals cannot be taken.
pub(super) fn signals(
    tracker: &TaskTracker,
    stop: &CancellationToken,
) -> std::io::Result<watch::Receiver<Urgency>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (sender, receiver) = watch::channel(Urgency::None);
    tracker.spawn(stop.clone().run_until_cancelled_owned(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            sender.send_modify(|urgency| {
                *urgency = if *urgency == Urgency::None {
                    Urgency::Cancel
                } else {
                    Urgency::Kill
                };
            });
        }
    }));
    Ok(receiver)
}

/// Waits until the user is at least that urgent; for ever if they never are.
pub(super) async fn reaches(mut seen: watch::Receiver<Urgency>, at_least: Urgency) {
    if seen.wait_for(|urgency| *urgency >= at_least).await.is_err() {
        std::future::pending::<()>().await;
    }
}
