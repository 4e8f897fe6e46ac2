//! The gateways on the control channel, and what the engine says to all of them.
//!
//! Apart from the socket so that the engine's thread has one door that never blocks. A gateway that does not read
//! is let go and counted. Must not know: how a gateway came here, HTTP, the runtime.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pitot_control::{FromEngine, RequestStamps, State, encode};
use rustix::net::{SendFlags, send};

use crate::clock::monotonic_ns;

/// Most gateways at once.
pub const PEERS_MAX: usize = 16;

/// Names one gateway's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerId(u64);

/// All connected gateways.
#[derive(Debug, Default)]
pub struct Hub {
    inside: Mutex<Inside>,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Inside {
    peers: Vec<Peer>,
    next: u64,
    state: State,
}

#[derive(Debug)]
struct Peer {
    id: PeerId,
    stream: UnixStream,
}

impl Hub {
    /// Takes in a gateway whose handshake is done, and tells it the present state. None when there are too many.
    pub fn join(&self, stream: UnixStream) -> Option<PeerId> {
        let mut inside = self.inside();
        if inside.peers.len() >= PEERS_MAX {
            return None;
        }
        let id = PeerId(inside.next);
        inside.next += 1;
        let state = State { at_ns: monotonic_ns(), ..inside.state.clone() };
        inside.peers.push(Peer { id, stream });
        self.say_to(&mut inside, Some(id), &FromEngine::State(state));
        Some(id)
    }

    /// Lets a gateway go.
    pub fn leave(&self, id: PeerId) {
        self.inside().peers.retain(|peer| peer.id != id);
    }

    /// Says something to one gateway.
    pub fn answer(&self, id: PeerId, message: &FromEngine) {
        self.say_to(&mut self.inside(), Some(id), message);
    }

    /// Tells all gateways the state if it differs from what they know. `at_ns` is set here.
    pub fn state(&self, state: State) {
        let mut inside = self.inside();
        let known = State { at_ns: 0, ..state };
        if inside.state != known {
            inside.state = known;
            self.repeat(&mut inside);
        }
    }

    /// Tells all gateways the state that they know already, as a sign of life.
    pub fn repeat_state(&self) {
        self.repeat(&mut self.inside());
    }

    /// Tells all gateways what became of a request. The bytes are in their sockets when this returns.
    pub fn stamps(&self, stamps: RequestStamps) {
        self.say_to(&mut self.inside(), None, &FromEngine::Stamps(stamps));
    }

    /// How many gateways were let go because they did not read.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Ends all connections; their threads see the end of their streams.
    pub fn close(&self) {
        for peer in self.inside().peers.drain(..) {
            // It may be closed from the other side already.
            let _ = peer.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn repeat(&self, inside: &mut Inside) {
        let state = State { at_ns: monotonic_ns(), ..inside.state.clone() };
        self.say_to(inside, None, &FromEngine::State(state));
    }

    /// Says something to one gateway, or to all.
    fn say_to(&self, inside: &mut Inside, only: Option<PeerId>, message: &FromEngine) {
        let frame = match encode(message) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::error!(%error, "a control message was not sent");
                return;
            }
        };
        inside.peers.retain(|peer| {
            if only.is_some_and(|only| only != peer.id) {
                return true;
            }
            // Part of a frame would spoil the stream, so that a full buffer ends the connection either way.
            let sent = send(&peer.stream, &frame, SendFlags::DONTWAIT);
            if sent == Ok(frame.len()) {
                return true;
            }
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(dropped, "a gateway did not read its control channel and was let go");
            let _ = peer.stream.shutdown(std::net::Shutdown::Both);
            false
        });
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // Each change is complete before anything can panic.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_does_not_read_is_let_go() {
        let hub = Hub::default();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        hub.join(ours).unwrap();
        // Any socket buffer is smaller than this many messages.
        for _ in 0..1_000_000 {
            if hub.dropped() > 0 {
                break;
            }
            hub.repeat_state();
        }
        assert_eq!(hub.dropped(), 1);
        assert!(hub.inside().peers.is_empty());
    }

    #[test]
    fn gateways_are_bounded() {
        let hub = Hub::default();
        let pairs: Vec<_> = (0..=PEERS_MAX).map(|_| UnixStream::pair().unwrap()).collect();
        let joined = pairs.iter().filter(|(ours, _)| hub.join(ours.try_clone().unwrap()).is_some()).count();
        assert_eq!(joined, PEERS_MAX);
    }
}
