//! Runs that are open in the record and gone from the cluster: their deletion was missed, so it is done now.

use super::desk::Desk;

/// After the first lists, and after each that came again.
pub(super) async fn forever(desk: &Desk) {
    loop {
        desk.sweep.notified().await;
        match desk.gateway.record.open_runs().await {
            Ok(open) => {
                for run in open {
                    // What was never listed is not known to be gone: another operator's, or one without rights now.
                    let listed = desk.store.has_listed(&run.run.namespace);
                    if listed && desk.store.run(&run.run.uid).is_none() {
                        desk.queue.wake(&run.run.uid);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "open runs could not be read from the record; tried again");
                tokio::time::sleep(desk.limits.record_retry).await;
                desk.sweep.notify_one();
            }
        }
    }
}
