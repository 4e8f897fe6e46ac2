//! The gateways on the control channel, and what the engine says to all of them.
//!
//! Apart from the socket so that the engine's thread has one door that never blocks. What a gateway has not read yet
//! is kept for it up to a bound, past which it is let go and counted. Must not know: how a gateway came here, HTTP,
//! the runtime.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pitot_control::{FromEngine, RequestStamps, State, encode};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::clock::monotonic_ns;

/// Most gateways at once.
pub const PEERS_MAX: usize = 16;
/// Most bytes that are kept for a gateway which does not read.
const PENDING_BYTES_MAX: usize = 512 * 1024;
/// Shortest time between two states, which change with every step.
const STATE_SPACING: Duration = Duration::from_millis(20);
/// Longest time between two states.
const STATE_PERIOD: Duration = Duration::from_secs(1);

/// Names one gateway's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerId(u64);

/// All connected gateways.
#[derive(Debug, Default)]
pub struct Hub {
    inside: Mutex<Inside>,
    /// Wakes the beat.
    due: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Inside {
    peers: Vec<Peer>,
    next: u64,
    state: State,
    /// When all gateways were last told the state.
    told_ns: u64,
    /// Whether the state has changed since.
    changed: bool,
    closed: bool,
}

#[derive(Debug)]
struct Peer {
    id: PeerId,
    stream: UnixStream,
    /// Bytes that the socket did not take yet.
    pending: Vec<u8>,
}

/// Whether a gateway is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    Goes,
}

impl Peer {
    /// Hands the socket what it takes now.
    fn flush(&mut self) -> Fate {
        while !self.pending.is_empty() {
            match send(&self.stream, &self.pending, SendFlags::DONTWAIT) {
                Ok(bytes) => drop(self.pending.drain(..bytes)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return Fate::Stays,
                Err(_) => return Fate::Goes,
            }
        }
        Fate::Stays
    }

    fn say(&mut self, frame: &[u8]) -> Fate {
        if self.pending.len() + frame.len() > PENDING_BYTES_MAX && self.flush() == Fate::Goes {
            return Fate::Goes;
        }
        if self.pending.len() + frame.len() > PENDING_BYTES_MAX {
            return Fate::Goes;
        }
        self.pending.extend_from_slice(frame);
        self.flush()
    }
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
        inside.peers.push(Peer { id, stream, pending: Vec::new() });
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

    /// Tells all gateways the state if it differs from what they know: now, or from the beat when they were told
    /// something just before. `at_ns` is set when it is told.
    pub fn state(&self, state: State) {
        let mut inside = self.inside();
        let known = State { at_ns: 0, ..state };
        if inside.state == known {
            return;
        }
        inside.state = known;
        if until(&inside, STATE_SPACING).is_zero() {
            self.tell_state(&mut inside);
        } else if !inside.changed {
            inside.changed = true;
            self.due.notify_all();
        }
    }

    /// Tells all gateways what became of a request. The bytes are in their sockets when this returns, unless a
    /// gateway is behind with its reading.
    pub fn stamps(&self, stamps: RequestStamps) {
        self.say_to(&mut self.inside(), None, &FromEngine::Stamps(stamps));
    }

    /// How many gateways were let go because they did not read.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Tells states that became due, at least one a period as a sign of life, and hands out what sockets did not
    /// take at once. Returns after [`Hub::close`]; meant for a thread of its own.
    pub fn beat(&self) {
        let mut inside = self.inside();
        while !inside.closed {
            let behind = inside.peers.iter().any(|peer| !peer.pending.is_empty());
            let state = until(&inside, if inside.changed { STATE_SPACING } else { STATE_PERIOD });
            let wait = if behind { state.min(STATE_SPACING) } else { state };
            if !wait.is_zero() {
                let woken = self.due.wait_timeout(inside, wait);
                inside = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
            self.keep(&mut inside, Peer::flush);
            if until(&inside, if inside.changed { STATE_SPACING } else { STATE_PERIOD }).is_zero() {
                self.tell_state(&mut inside);
            }
        }
    }

    /// Ends all connections and the beat; the connections' threads see the end of their streams.
    pub fn close(&self) {
        let mut inside = self.inside();
        inside.closed = true;
        self.due.notify_all();
        for peer in inside.peers.drain(..) {
            // It may be closed from the other side already.
            let _ = peer.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn tell_state(&self, inside: &mut Inside) {
        inside.told_ns = monotonic_ns();
        inside.changed = false;
        let state = State { at_ns: inside.told_ns, ..inside.state.clone() };
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
        self.keep(inside, |peer| match only.is_none_or(|only| only == peer.id) {
            true => peer.say(&frame),
            false => Fate::Stays,
        });
        if inside.peers.iter().any(|peer| !peer.pending.is_empty()) {
            self.due.notify_all();
        }
    }

    /// Lets go of the gateways whose fate it is.
    fn keep(&self, inside: &mut Inside, mut fate: impl FnMut(&mut Peer) -> Fate) {
        inside.peers.retain_mut(|peer| {
            if fate(peer) == Fate::Stays {
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

/// Time left until the state was last told that long ago.
fn until(inside: &Inside, spacing: Duration) -> Duration {
    spacing.saturating_sub(Duration::from_nanos(monotonic_ns().saturating_sub(inside.told_ns)))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Arc;

    use super::*;

    fn joined(hub: &Hub) -> (PeerId, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (hub.join(ours).unwrap(), theirs)
    }

    fn pending(hub: &Hub) -> usize {
        hub.inside().peers.iter().map(|peer| peer.pending.len()).sum()
    }

    #[test]
    fn a_gateway_that_does_not_read_is_let_go_when_its_buffer_is_full() {
        let hub = Hub::default();
        let (id, _theirs) = joined(&hub);
        let mut most = 0;
        // Any socket buffer and ours are smaller than this many messages.
        for nonce in 0..1_000_000 {
            if hub.dropped() > 0 {
                break;
            }
            most = most.max(pending(&hub));
            hub.answer(id, &FromEngine::Pong { nonce });
        }
        assert_eq!((hub.dropped(), pending(&hub)), (1, 0));
        assert!((PENDING_BYTES_MAX - 100..=PENDING_BYTES_MAX).contains(&most), "{most}");
    }

    #[test]
    fn a_gateway_that_is_behind_gets_all_in_order() {
        let hub = Arc::new(Hub::default());
        let (id, mut theirs) = joined(&hub);
        let mut said = 0;
        while pending(&hub) < PENDING_BYTES_MAX / 2 {
            hub.answer(id, &FromEngine::Pong { nonce: said });
            said += 1;
        }
        let beat = Arc::clone(&hub);
        let beating = std::thread::spawn(move || beat.beat());
        let (mut decoder, mut buffer, mut next) = (pitot_control::Decoder::default(), [0; 4096], 0);
        while next < said {
            let bytes = theirs.read(&mut buffer).unwrap();
            decoder.push(&buffer[..bytes]);
            while let Some(message) = decoder.next_message::<FromEngine>().unwrap() {
                if let FromEngine::Pong { nonce } = message {
                    assert_eq!(nonce, next);
                    next += 1;
                }
            }
        }
        hub.close();
        beating.join().unwrap();
        assert_eq!(hub.dropped(), 0);
    }

    #[test]
    fn states_are_spaced_and_the_last_one_arrives() {
        let hub = Arc::new(Hub::default());
        let (_id, mut theirs) = joined(&hub);
        let beat = Arc::clone(&hub);
        let beating = std::thread::spawn(move || beat.beat());
        let last = 10_000;
        for running in 1..=last {
            hub.state(State { requests_running: running, ..State::default() });
        }
        let (mut decoder, mut buffer, mut told) = (pitot_control::Decoder::default(), [0; 4096], Vec::new());
        while told.last().is_none_or(|(_, running)| *running != last) {
            let bytes = theirs.read(&mut buffer).unwrap();
            decoder.push(&buffer[..bytes]);
            while let Some(FromEngine::State(state)) = decoder.next_message().unwrap() {
                told.push((state.at_ns, state.requests_running));
            }
        }
        hub.close();
        beating.join().unwrap();
        // The first is told as the gateway joins.
        let spacing = STATE_SPACING.as_nanos() as u64;
        assert!(told[1..].windows(2).all(|pair| pair[1].0 - pair[0].0 >= spacing), "{told:?}");
    }

    #[test]
    fn gateways_are_bounded() {
        let hub = Hub::default();
        let pairs: Vec<_> = (0..=PEERS_MAX).map(|_| UnixStream::pair().unwrap()).collect();
        let joined = pairs.iter().filter(|(ours, _)| hub.join(ours.try_clone().unwrap()).is_some()).count();
        assert_eq!(joined, PEERS_MAX);
    }
}
