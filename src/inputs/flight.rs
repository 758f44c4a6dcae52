//! One question to a server at a time, shared by all who ask the same.
//!
//! Who asks while a question is still being gathered joins it; who asks after it was sent waits for the next one,
//! since the answer under way may be older than what the asker has just pushed. So a hundred runs at once cost one or
//! two questions, and nobody gets an answer from before he asked. Whoever waits drives the work; when the last one
//! is gone, it ends.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};

/// Something that can be asked for together.
pub(super) trait Gather: Default + Send + 'static {
    /// Adds what another one asks for.
    fn add(&mut self, other: &Self);
}

/// Questions under way, by what makes them the same.
pub(super) struct Flights<K, W, T: Clone>(Mutex<HashMap<K, Last<W, T>>>);

/// The newest question of a key.
struct Last<W, T: Clone> {
    answer: WeakShared<BoxFuture<'static, T>>,
    gathered: Arc<Gathered<W>>,
}

/// What a question asks for; `None` once it was sent.
struct Gathered<W>(Mutex<Option<W>>);

/// The right to ask, once: whoever holds it decides when nobody can join any more.
pub(super) struct Ticket<W>(Arc<Gathered<W>>);

impl<W: Gather> Ticket<W> {
    /// What all who joined ask for. Who comes now waits for the next question.
    pub(super) fn close(self) -> W {
        self.0.take().unwrap_or_default()
    }
}

impl<W: Gather> Gathered<W> {
    fn take(&self) -> Option<W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Adds, unless it was sent.
    fn add(&self, wants: &W) -> bool {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_mut().map(|open| open.add(wants)).is_some()
    }
}

impl<K, W, T: Clone> Default for Flights<K, W, T> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Hash + Eq, W: Gather, T: Clone + Send + Sync + 'static> Flights<K, W, T> {
    /// The answer to a question that holds `wants`. `ask` runs only if there is none to join.
    pub(super) async fn ask<F>(
        &self,
        key: K,
        wants: W,
        ask: impl FnOnce(Ticket<W>) -> F + Send + 'static,
    ) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        let answer = self.join(key, &wants, ask);
        answer.await
    }

    fn join<F>(
        &self,
        key: K,
        wants: &W,
        ask: impl FnOnce(Ticket<W>) -> F + Send + 'static,
    ) -> Shared<BoxFuture<'static, T>>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = flights
            .get(&key)
            .and_then(|last| Some((last.answer.upgrade()?, last)));
        if let Some((answer, last)) = &before
            && answer.peek().is_none()
            && last.gathered.add(wants)
        {
            return answer.clone();
        }
        let before = before.map(|(answer, _)| answer);
        let gathered = Arc::new(Gathered(Mutex::new(Some(W::default()))));
        gathered.add(wants);
        let ticket = Ticket(Arc::clone(&gathered));
        let answer = async move {
            if let Some(before) = before {
                drop(before.await);
            }
            ask(ticket).await
        };
        let answer = answer.boxed().shared();
        // Whoever asks pays for tidying; what is over has no waiter, or an answer.
        flights.retain(|_, last| last.answer.upgrade().is_some_and(|a| a.peek().is_none()));
        if let Some(weak) = answer.downgrade() {
            flights.insert(
                key,
                Last {
                    answer: weak,
                    gathered,
                },
            );
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    impl Gather for BTreeSet<u32> {
        fn add(&mut self, other: &Self) {
            self.extend(other);
        }
    }

    type Numbers = Flights<&'static str, BTreeSet<u32>, BTreeSet<u32>>;

    fn number(n: u32) -> BTreeSet<u32> {
        BTreeSet::from([n])
    }

    #[tokio::test]
    async fn all_who_ask_in_time_share_one_question_that_holds_what_each_wants() {
        let (flights, flights_joined) = (Numbers::default(), Arc::new(AtomicUsize::new(0)));
        let questions = Arc::new(AtomicUsize::new(0));
        let asked = (0..100).map(|n| {
            let (questions, joined) = (Arc::clone(&questions), Arc::clone(&flights_joined));
            let flights = &flights;
            async move {
                joined.fetch_add(1, Ordering::Relaxed);
                let answer = flights.ask("key", number(n), move |ticket| async move {
                    questions.fetch_add(1, Ordering::Relaxed);
                    while joined.load(Ordering::Relaxed) < 100 {
                        tokio::task::yield_now().await;
                    }
                    ticket.close()
                });
                (n, answer.await)
            }
        });
        for (n, answer) in join_all(asked).await {
            assert!(answer.contains(&n) && answer.len() == 100);
        }
        assert_eq!(questions.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn who_comes_after_the_question_waits_for_the_next_and_asks_one_at_a_time() {
        let flights = Numbers::default();
        let (sent, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, wait) = (Arc::clone(&sent), Arc::clone(&go));
        let first = flights.ask("key", number(1), move |ticket| async move {
            let wants = ticket.close();
            tell.notify_one();
            wait.notified().await;
            wants
        });
        let second = async {
            sent.notified().await;
            let second = flights.ask("key", number(2), |ticket| async { ticket.close() });
            let third = flights.ask("key", number(3), |ticket| async { ticket.close() });
            let (second, third, ()) = tokio::join!(second, third, async { go.notify_one() });
            (second, third)
        };
        let (first, (second, third)) = tokio::join!(first, second);
        assert_eq!(first, number(1));
        assert_eq!((second.len(), &second), (2, &third));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_ends_and_is_forgotten() {
        let flights = Numbers::default();
        let never = flights.ask("key", number(1), |_| std::future::pending());
        let gone = tokio::time::timeout(std::time::Duration::from_millis(1), never).await;
        assert!(gone.is_err());
        let again = flights
            .ask("key", number(2), |ticket| async { ticket.close() })
            .await;
        assert_eq!(
            again,
            number(2),
            "the dead question is neither joined nor waited for"
        );
        flights
            .ask("other", number(3), |ticket| async { ticket.close() })
            .await;
        assert_eq!(flights.0.lock().unwrap().len(), 1);
    }
}
