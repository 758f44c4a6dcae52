//! Servers that asked to be left alone, until when; and whose turn it is in a namespace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{CredentialKey, Remote};
use crate::api::Namespace;

/// Servers that asked to be left alone. A limit counts for a credential at a server, so all its runs keep it.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<(String, u16, CredentialKey), Instant>>);

impl Holds {
    /// How much longer this server wants no request with this credential.
    pub(super) fn left(&self, remote: &Remote) -> Option<Duration> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = held.get(&key(remote))?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Keeps what a server asked for.
    pub(super) fn hold(&self, remote: &Remote, wait: Duration) {
        let now = Instant::now();
        let Some(until) = now.checked_add(wait) else {
            return;
        };
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, until| *until > now);
        held.insert(key(remote), until);
    }
}

fn key(remote: &Remote) -> (String, u16, CredentialKey) {
    let repository = &remote.repository;
    (
        repository.host().to_owned(),
        repository.port(),
        remote.credential.key(),
    )
}

/// Turns of each namespace, so that one tenant's silent servers take up no other tenant's.
pub(super) struct Turns {
    at_once: usize,
    waiting: Mutex<HashMap<Namespace, Weak<Semaphore>>>,
}

impl Turns {
    pub(super) fn new(at_once: usize) -> Self {
        Self {
            at_once: at_once.max(1),
            waiting: Mutex::default(),
        }
    }

    /// Waits for a turn, which lasts until what comes back is dropped.
    pub(super) async fn turn(&self, namespace: &Namespace) -> Option<OwnedSemaphorePermit> {
        let semaphore = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let known = waiting.get(namespace).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let fresh = Arc::new(Semaphore::new(self.at_once));
                waiting.retain(|_, semaphore| semaphore.strong_count() > 0);
                waiting.insert(namespace.clone(), Arc::downgrade(&fresh));
                fresh
            })
        };
        semaphore.acquire_owned().await.ok()
    }
}
