//! A listener that nobody is to find: it records whether anybody ever connected.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::ForgeError;
use crate::error::doing;

/// A bare TCP listener on a free port of 127.0.0.1. It counts what it accepts, and closes it or never says a
/// word on it.
pub struct Trap {
    addr: SocketAddr,
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    peers: Mutex<Vec<SocketAddr>>,
    more: Condvar,
    stop: AtomicBool,
}

impl Trap {
    /// A trap that closes each connection at once. It needs no runtime: a thread of its own accepts.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn start() -> Result<Self, ForgeError> {
        Self::with(false)
    }

    /// A trap that takes each connection and keeps it, without a word: not even TLS begins.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn silent() -> Result<Self, ForgeError> {
        Self::with(true)
    }

    fn with(silent: bool) -> Result<Self, ForgeError> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(doing("listening for a trap"))?;
        let addr = listener
            .local_addr()
            .map_err(doing("asking for the own address"))?;
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let thread = std::thread::spawn(move || accept(&listener, &shared, silent));
        Ok(Self {
            addr,
            seen,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// An HTTPS URL of a repository there.
    #[must_use]
    pub fn url(&self, repo: &str) -> String {
        format!("https://{}/{repo}.git", self.addr)
    }

    /// How many connections were made so far. Connections are accepted in order, so one of our own shows that
    /// those before it were counted; it is not counted itself.
    #[must_use]
    pub fn connections(&self) -> u64 {
        let Ok(own) = TcpStream::connect(self.addr).and_then(|stream| stream.local_addr()) else {
            return self.seen.count(None);
        };
        self.seen.count(Some(own))
    }
}

impl Seen {
    fn count(&self, own: Option<SocketAddr>) -> u64 {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = own {
            while !peers.contains(&own) && !self.stop.load(Ordering::SeqCst) {
                peers = self
                    .more
                    .wait(peers)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            peers.retain(|peer| *peer != own);
        }
        peers.len() as u64
    }
}

fn accept(listener: &TcpListener, seen: &Seen, silent: bool) {
    let mut kept = Vec::new();
    while let Ok((stream, peer)) = listener.accept() {
        if seen.stop.load(Ordering::SeqCst) {
            return;
        }
        seen.peers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(peer);
        seen.more.notify_all();
        if silent {
            kept.push(stream);
        }
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::SeqCst);
        // Wakes the thread. If that fails the listener is gone, and so is the thread.
        drop(TcpStream::connect(self.addr));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_counts_others_and_not_itself() {
        let trap = Trap::start().unwrap();
        assert_eq!(trap.connections(), 0);
        drop(TcpStream::connect(trap.addr()).unwrap());
        assert_eq!(trap.connections(), 1);
        assert_eq!(trap.connections(), 1);
    }

    #[test]
    fn a_silent_trap_keeps_its_guests() {
        let trap = Trap::silent().unwrap();
        let guest = TcpStream::connect(trap.addr()).unwrap();
        assert_eq!(trap.connections(), 1);
        guest.set_nonblocking(true).unwrap();
        let nothing = std::io::Read::read(&mut &guest, &mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    }
}
