//! Places for connections: bounded for each peer as long as nobody knows whose it is, and for each run after that.
//!
//! Every container of a pod can reach the gateway's port, the agent's too. Without a token it gets nothing, but it could
//! hold connections and let us shake hands until nobody else is heard. So a peer that has not shown a token has few
//! places, soon loses them, and gets new ones at a bounded rate.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Connections of one address that have not shown a token yet. A pod's own programs show theirs within milliseconds.
const STRANGERS: u32 = 64;
/// Connections of one address at once that never show a token: handshakes cost us more than an agent.
const BURST: u32 = 320;
/// One more new connection each.
const REFILL: Duration = Duration::from_millis(20);
/// Addresses that are remembered before those with nothing to remember are forgotten.
const REMEMBERED: usize = 4096;

/// What each address has opened.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    peers: Mutex<HashMap<IpAddr, Peer>>,
}

#[derive(Debug)]
struct Peer {
    open: u32,
    left: u32,
    refilled: Instant,
}

impl Peer {
    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.refilled);
        let more = u32::try_from(since.as_millis() / REFILL.as_millis()).unwrap_or(u32::MAX);
        if more > 0 {
            self.left = self.left.saturating_add(more).min(BURST);
            self.refilled = now;
        }
    }
}

impl Strangers {
    /// A place for a new connection of this address; `None`: it has enough.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr, now: Instant) -> Option<Place> {
        let peer = peer.to_canonical();
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= REMEMBERED {
            peers.retain(|_, seen| {
                seen.refill(now);
                seen.open > 0 || seen.left < BURST
            });
        }
        let seen = peers.entry(peer).or_insert(Peer {
            open: 0,
            left: BURST,
            refilled: now,
        });
        seen.refill(now);
        if seen.open >= STRANGERS || seen.left == 0 {
            return None;
        }
        seen.open += 1;
        seen.left -= 1;
        Some(Place {
            strangers: Arc::clone(self),
            peer,
        })
    }
}

/// The place of a connection that has not shown a token. Dropped once it has, or with the connection.
#[derive(Debug)]
pub(super) struct Place {
    strangers: Arc<Strangers>,
    peer: IpAddr,
}

impl Place {
    /// It has shown a token that is somebody's: it does not count any more.
    pub(super) fn known(self) {
        let mut peers = self
            .strangers
            .peers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = peers.get_mut(&self.peer) {
            seen.left = seen.left.saturating_add(1).min(BURST);
        }
        drop(peers); // before this place goes, too
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut peers = self
            .strangers
            .peers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = peers.get_mut(&self.peer) {
            seen.open = seen.open.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn one_peer_that_holds_on_does_not_keep_others_out() {
        let (strangers, now) = (Arc::new(Strangers::default()), Instant::now());
        let held: Vec<_> = (0..100).map(|_| strangers.enter(ip(1), now)).collect();
        assert_eq!(held.iter().flatten().count(), STRANGERS as usize);
        assert!(strangers.enter(ip(2), now).is_some());
        drop(held);
        assert!(strangers.enter(ip(1), now).is_some(), "places come back");
    }

    #[test]
    fn one_peer_that_comes_and_goes_is_slowed_down_and_forgotten() {
        let (strangers, now) = (Arc::new(Strangers::default()), Instant::now());
        let mut entered = 0;
        while let Some(place) = strangers.enter(ip(1), now) {
            entered += 1;
            drop(place);
        }
        assert_eq!(entered, BURST);
        let later = now + REFILL * 3;
        let again = (0..10)
            .filter_map(|_| strangers.enter(ip(1), later))
            .count();
        assert_eq!(again, 3);
        let much_later = now + REFILL * (BURST + 3);
        for n in 0..u32::try_from(REMEMBERED).unwrap() + 8 {
            drop(strangers.enter(IpAddr::from(n.to_be_bytes()), much_later));
        }
        drop(strangers.enter(ip(1), much_later + REFILL * 2));
        assert_eq!(strangers.peers.lock().unwrap().len(), 1);
    }

    #[test]
    fn one_peer_that_shows_its_token_is_not_slowed_down() {
        let (strangers, now) = (Arc::new(Strangers::default()), Instant::now());
        for _ in 0..BURST * 3 {
            strangers.enter(ip(1), now).unwrap().known();
        }
    }

    #[test]
    fn an_address_in_two_spellings_is_one() {
        let strangers = Arc::new(Strangers::default());
        let (now, mapped) = (Instant::now(), "::ffff:10.0.0.1".parse().unwrap());
        let held: Vec<_> = (0..STRANGERS)
            .map(|_| strangers.enter(mapped, now))
            .collect();
        assert!(strangers.enter(ip(1), now).is_none());
        drop(held);
    }
}
