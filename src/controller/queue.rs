//! Which runs are to be looked at, and when: each at most once at a time, each as soon as its turn comes.
//!
//! kube's own controller merges all triggers behind one backoff and keeps no backoff for each object; this is the small
//! part of it that is needed here, without either. Waking a run that waits is free, so whoever knows of a change wakes.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::RunUid;

/// The first pause after a failure; doubled for each further one in a row.
const BACKOFF: Duration = Duration::from_millis(250);
/// The longest pause between two tries.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// What is to be done, in the order of its coming.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<RunUid>,
    /// Those in `ready`.
    queued: HashSet<RunUid>,
    /// Those that a worker has.
    busy: HashSet<RunUid>,
    /// Those that were woken while a worker had them.
    again: HashSet<RunUid>,
    due: BTreeSet<(Instant, RunUid)>,
    /// The time in `due`, by run.
    timers: HashMap<RunUid, Instant>,
    /// Failures in a row.
    failures: HashMap<RunUid, u32>,
}

impl Queue {
    /// Wakes a run: something about it changed.
    pub(super) fn wake(&self, run: &RunUid) {
        self.state().wake(run);
        self.changed.notify_one();
    }

    /// The next run, when its turn comes. Its worker says [`Queue::done`] in any case.
    pub(super) async fn next(&self) -> RunUid {
        loop {
            let due = {
                let mut state = self.state();
                state.ripen(Instant::now());
                if let Some(run) = state.take() {
                    if !state.ready.is_empty() {
                        self.changed.notify_one(); // for the next worker
                    }
                    return run;
                }
                state.due.first().map(|(at, _)| *at)
            };
            match due {
                Some(at) => {
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// A worker is done with a run: woken again by `next_at` at the latest.
    pub(super) fn done(&self, run: &RunUid, next_at: Option<Instant>) {
        self.state().done(run, next_at);
        self.changed.notify_one();
    }

    /// A worker failed: the run is tried again, later each time. The pause.
    pub(super) fn failed(&self, run: &RunUid) -> Duration {
        let pause = self.state().failed(run, Instant::now());
        self.changed.notify_one();
        pause
    }

    /// How many wait for a worker, and how many have one.
    pub(super) fn depth(&self) -> (usize, usize) {
        let state = self.state();
        (state.ready.len(), state.busy.len())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&mut self, run: &RunUid) {
        self.cancel_timer(run);
        if self.busy.contains(run) {
            self.again.insert(run.clone());
        } else if self.queued.insert(run.clone()) {
            self.ready.push_back(run.clone());
        }
    }

    fn take(&mut self) -> Option<RunUid> {
        let run = self.ready.pop_front()?;
        self.queued.remove(&run);
        self.busy.insert(run.clone());
        Some(run)
    }

    /// Moves those whose time has come.
    fn ripen(&mut self, now: Instant) {
        while let Some((at, run)) = self.due.first().cloned() {
            if at > now {
                return;
            }
            self.wake(&run);
        }
    }

    fn done(&mut self, run: &RunUid, next_at: Option<Instant>) {
        self.failures.remove(run);
        self.release(run, next_at);
    }

    fn failed(&mut self, run: &RunUid, now: Instant) -> Duration {
        let failures = self.failures.entry(run.clone()).or_default();
        let pause = BACKOFF
            .saturating_mul(1 << (*failures).min(10))
            .min(BACKOFF_MAX);
        *failures += 1;
        // What changed meanwhile waits for the pause, too: a run that fails must not be tried in a loop.
        self.again.remove(run);
        self.release(run, Some(now + pause));
        pause
    }

    fn release(&mut self, run: &RunUid, next_at: Option<Instant>) {
        self.busy.remove(run);
        if self.again.remove(run) {
            self.wake(run);
        } else if let Some(at) = next_at {
            self.cancel_timer(run);
            self.timers.insert(run.clone(), at);
            self.due.insert((at, run.clone()));
        }
    }

    fn cancel_timer(&mut self, run: &RunUid) {
        if let Some(at) = self.timers.remove(run) {
            self.due.remove(&(at, run.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: u32) -> RunUid {
        format!("{n:04}").parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_is_worked_at_once_at_a_time_and_no_wake_is_lost() {
        let queue = Queue::default();
        queue.wake(&run(1));
        queue.wake(&run(1));
        assert_eq!(queue.next().await, run(1));
        queue.wake(&run(1)); // while it is worked at
        queue.wake(&run(2));
        assert_eq!(queue.next().await, run(2));
        assert_eq!(queue.depth(), (0, 2));
        queue.done(&run(1), None);
        assert_eq!(queue.next().await, run(1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_comes_at_its_time_and_a_wake_comes_before() {
        let queue = Queue::default();
        let began = Instant::now();
        for n in [1, 2] {
            queue.wake(&run(n));
            queue.next().await;
        }
        queue.done(&run(1), Some(began + Duration::from_mins(1)));
        queue.done(&run(2), Some(began + Duration::from_secs(30)));
        assert_eq!(queue.next().await, run(2));
        assert_eq!(began.elapsed().as_secs(), 30);
        queue.wake(&run(1));
        assert_eq!(queue.next().await, run(1));
        assert_eq!(began.elapsed().as_secs(), 30, "the timer is not waited for");
        queue.done(&run(1), None);
        let nothing = tokio::time::timeout(Duration::from_hours(1), queue.next());
        assert!(nothing.await.is_err(), "an old timer rings no more");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_with_each_failure_and_are_forgotten_on_success() {
        let queue = Queue::default();
        let mut pauses = Vec::new();
        queue.wake(&run(1));
        for _ in 0..4 {
            assert_eq!(queue.next().await, run(1));
            queue.wake(&run(1)); // a change does not shorten the pause
            pauses.push(queue.failed(&run(1)).as_millis());
        }
        assert_eq!(pauses, [250, 500, 1000, 2000]);
        queue.next().await;
        queue.done(&run(1), None);
        queue.wake(&run(1));
        queue.next().await;
        assert_eq!(queue.failed(&run(1)), BACKOFF);
    }

    #[tokio::test]
    async fn several_workers_share_the_work() {
        let queue = std::sync::Arc::new(Queue::default());
        for n in 0..1000 {
            queue.wake(&run(n));
        }
        let workers = (0..16).map(|_| {
            let queue = std::sync::Arc::clone(&queue);
            async move {
                let mut count = 0;
                let quiet = Duration::from_millis(200);
                while let Ok(run) = tokio::time::timeout(quiet, queue.next()).await {
                    tokio::task::yield_now().await;
                    queue.done(&run, None);
                    count += 1;
                }
                count
            }
        });
        let counts: Vec<usize> = futures::future::join_all(workers).await;
        assert_eq!(counts.iter().sum::<usize>(), 1000, "{counts:?}");
    }
}
