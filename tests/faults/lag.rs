//! How much this machine held everything up: a metronome that notes when it was late itself.
//!
//! Apart because bounds of time in a test are promises about a machine that others use too: what the metronome lost is
//! added to them. Must not know: what is bounded.

use std::collections::VecDeque;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(2);
/// Lateness that any machine has.
const USUAL: Duration = Duration::from_millis(5);
const KEPT_MAX: usize = 4096;

static LATE: Mutex<VecDeque<(Instant, Duration)>> = Mutex::new(VecDeque::new());

/// Starts the metronome, once for the process.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without it nothing is added.
        let _ = std::thread::Builder::new().name("metronome".into()).spawn(|| {
            loop {
                let began = Instant::now();
                std::thread::sleep(BEAT);
                let late = began.elapsed().saturating_sub(BEAT);
                if late > USUAL {
                    let mut kept = LATE.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.push_back((Instant::now(), late));
                    if kept.len() > KEPT_MAX {
                        kept.pop_front();
                    }
                }
            }
        });
    });
}

/// All that was lost since then.
pub fn since(began: Instant) -> Duration {
    let kept = LATE.lock().unwrap_or_else(PoisonError::into_inner);
    kept.iter().rev().take_while(|(at, _)| *at >= began).map(|(_, late)| *late).sum()
}
