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
        wants: &W,
        ask: impl FnOnce(Ticket<W>) -> F + Send + 'static,
    ) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        let answer = self.join(key, wants, ask);
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
