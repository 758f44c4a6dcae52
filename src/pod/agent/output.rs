//! Passes the agent's output on, byte for byte, and notices when there is none.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use tokio::sync::oneshot;

/// When the agent last said something.
#[derive(Debug)]
pub(super) struct Watch {
    start: Instant,
    last_millis: AtomicU64,
    /// Copiers that wait for whoever reads our own output: the agent is not to blame for that.
    blocked: [AtomicBool; 2],
}

impl Watch {
    pub(super) fn new() -> Arc<Self> {
        let blocked = [AtomicBool::new(false), AtomicBool::new(false)];
        Arc::new(Self {
            start: Instant::now(),
            last_millis: AtomicU64::new(0),
            blocked,
        })
    }

    /// For how long nothing came.
    pub(super) fn silent_for(&self) -> Duration {
        if self.blocked.iter().any(|b| b.load(Ordering::Relaxed)) {
            return Duration::ZERO;
        }
        let last = Duration::from_millis(self.last_millis.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last)
    }

    fn heard(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(now, Ordering::Relaxed);
    }

    fn blocked(&self, stream: usize, is: bool) {
        if let Some(flag) = self.blocked.get(stream) {
            flag.store(is, Ordering::Relaxed);
        }
    }
}

/// Copies one stream on a thread of its own, through one buffer. The receiver learns of the end.
///
/// A thread and not a task: our own output may be shared with others, so it cannot be made non-blocking.
pub(super) fn copy(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    stream: usize,
    watch: Arc<Watch>,
) -> oneshot::Receiver<()> {
    let (ended, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    watch.heard();
                    watch.blocked(stream, true);
                    let bytes = buffer.get(..length).unwrap_or_default();
                    // If nobody takes our output any more, the agent's still flows, so that it can end.
                    let _closed = to.write_all(bytes).and_then(|()| to.flush());
                    watch.blocked(stream, false);
                    watch.heard();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _nobody_waits = ended.send(());
    });
    receiver
}
