//! A listener that nobody is to find: it records whether anybody ever connected.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::ForgeError;
use crate::error::doing;

/// A bare TCP listener on a free port of 127.0.0.1. It closes what it accepts, and counts.
pub struct Trap {
    addr: SocketAddr,
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicU64,
    stop: AtomicBool,
}

impl Trap {
    /// Sets it up. It needs no runtime: a thread of its own accepts.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn start() -> Result<Self, ForgeError> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(doing("listening for a trap"))?;
        let addr = listener
            .local_addr()
            .map_err(doing("asking for the own address"))?;
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let thread = std::thread::spawn(move || accept(&listener, &shared));
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

    /// How many connections were made.
    #[must_use]
    pub fn connections(&self) -> u64 {
        // A connection is established before it is accepted. One of our own, which the thread must
        // have counted before we go on, brings those before it to the count.
        let before = self.seen.connections.load(Ordering::SeqCst);
        if self.knock().is_err() {
            return before;
        }
        let total = self.seen.connections.load(Ordering::SeqCst);
        self.seen.connections.fetch_sub(1, Ordering::SeqCst);
        total - 1
    }

    /// Connects and waits until the connection was accepted, counted and closed.
    fn knock(&self) -> io::Result<()> {
        let mut stream = std::net::TcpStream::connect(self.addr)?;
        io::copy(&mut stream, &mut io::sink()).map(drop)
    }
}

fn accept(listener: &TcpListener, seen: &Seen) {
    for stream in listener.incoming() {
        if seen.stop.load(Ordering::SeqCst) {
            return;
        }
        seen.connections.fetch_add(1, Ordering::SeqCst);
        drop(stream);
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::SeqCst);
        // Wakes the thread. If that fails the listener is gone, and so is the thread.
        drop(std::net::TcpStream::connect(self.addr));
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
        drop(std::net::TcpStream::connect(trap.addr()).unwrap());
        assert_eq!(trap.connections(), 1);
        assert_eq!(trap.connections(), 1);
    }
}
