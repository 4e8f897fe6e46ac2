//! Mutated replies of every wire format through the whole observer: nothing panics, hangs or breaks a law.
//!
//! Apart because the inputs are made by chance from the recordings, by a seeded generator, so that a failure can be
//! played again. By itself it runs a bounded number of executions; the variable `PITOT_FUZZ_EXECUTIONS`, read when
//! the test is built, asks for more. Must not know: what a mutation means.

use pitot_measure::{
    At, BodyKind, Ending, Endpoint, Event, InlineThink, Observer, Options, OutcomeKind, Record,
};

use crate::play::Play;
use crate::recordings::{STREAMS, WHOLE};

/// So many take about a second.
const EXECUTIONS: u64 = 20_000;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Pieces that tend to matter to a parser.
const PIECES: [&[u8]; 26] = [
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\r\r",
    b"data:",
    b"data: [DONE]\n\n",
    b"event: error\n",
    b":",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud83d",
    b",",
    b"null",
    b"-",
    b"1e999",
    b"18446744073709551616",
    b"<think>",
    b"</think>",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
];

fn mutate(bytes: &mut Vec<u8>, chance: &mut Chance) {
    let place = chance.below(bytes.len() + 1);
    let end = (place + chance.below(40)).min(bytes.len());
    match chance.below(7) {
        0 => {
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= 1 << chance.below(8);
            }
        }
        1 => {
            bytes.drain(place..end);
        }
        2 => {
            let again = bytes[place..end].to_vec();
            let to = chance.below(bytes.len() + 1);
            bytes.splice(to..to, again);
        }
        3 => bytes.truncate(place),
        4 => {
            // A value repeated many times: deep nesting, long numbers, long lines.
            let piece = PIECES[chance.below(PIECES.len())].repeat(1 + chance.below(300));
            bytes.splice(place..place, piece);
        }
        5 => {
            let other = STREAMS[chance.below(STREAMS.len())].1.as_bytes();
            let from = chance.below(other.len());
            let until = (from + chance.below(400)).min(other.len());
            bytes.splice(place..end, other[from..until].iter().copied());
        }
        _ => {
            let piece = PIECES[chance.below(PIECES.len())];
            bytes.splice(place..end, piece.iter().copied());
        }
    }
}

/// Plays bytes in reads of chance length, all at stamps that rise.
fn play(endpoint: Endpoint, body: BodyKind, bytes: &[u8], seed: u64, cuts: Option<&mut Chance>) -> Record {
    let mut options = Options { frame_bytes_max: 2_000, ..Options::default() };
    options.inline_think = if seed.is_multiple_of(2) { InlineThink::Reasoning } else { InlineThink::Content };
    let facts = Play::new(endpoint, body == BodyKind::EventStream).facts;
    let mut observer = Observer::new(facts, options);
    observer.observe(At(10), Event::AttemptStarted);
    observer.observe(At(11), Event::RequestSent);
    observer.observe(At(12), Event::Head { status: 200, body });
    let mut rest = bytes;
    let mut cuts = cuts;
    while !rest.is_empty() {
        let length = cuts.as_mut().map_or(rest.len(), |chance| 1 + chance.below(rest.len().min(90)));
        let (read, after) = rest.split_at(length);
        observer.observe(At(20), Event::UpstreamBytes(read));
        rest = after;
    }
    let ahead = observer.so_far_with(At(30), bytes);
    assert!(ahead.times.full_response_ns.value().is_none_or(|ns| ns <= 19));
    observer.observe(At(30), Event::Forwarded { upstream_bytes: bytes.len() as u64, since: At(21) });
    observer.observe(At(31), Event::UpstreamEof);
    observer.finish(At(32), Ending::UpstreamEnded, Some(200))
}

fn laws(record: &Record) {
    let sum: u64 = record.waterfall.segments().iter().filter_map(|(_, ns)| *ns).sum();
    assert_eq!(sum, record.timeline.downstream_done.0);
    let tokens = &record.tokens;
    if let (Some(output), Some(reasoning), Some(content)) =
        (tokens.output.value(), tokens.reasoning.value(), tokens.content.value())
    {
        assert_eq!(output, reasoning + content);
    }
    if record.outcome == OutcomeKind::Success {
        assert!(record.timeline.terminal.is_some());
    }
    assert!(serde_json::to_string(record).is_ok());
}

#[test]
fn mutated_replies_keep_the_laws() {
    let asked: Option<u64> = option_env!("PITOT_FUZZ_EXECUTIONS").and_then(|text| text.parse().ok());
    let executions = asked.unwrap_or(EXECUTIONS);
    let mut chance = Chance(SEED);
    let mut outcomes = [0_u64; 2];
    for execution in 0..executions {
        let seed = chance.0;
        let pick = chance.below(STREAMS.len() + WHOLE.len());
        let (endpoint, text, body) = match STREAMS.get(pick) {
            Some((endpoint, text)) => (*endpoint, *text, BodyKind::EventStream),
            None => (WHOLE[pick - STREAMS.len()].0, WHOLE[pick - STREAMS.len()].1, BodyKind::Json),
        };
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..chance.below(6) {
            mutate(&mut bytes, &mut chance);
        }
        let outcome = std::panic::catch_unwind(|| {
            let whole = play(endpoint, body, &bytes, seed, None);
            let cut = play(endpoint, body, &bytes, seed, Some(&mut Chance(seed)));
            laws(&whole);
            assert_eq!(whole, cut, "the cut of the reads shows");
            whole.outcome == OutcomeKind::Success
        });
        match outcome {
            Ok(success) => outcomes[usize::from(success)] += 1,
            Err(_) => panic!("execution {execution}, seed {seed:#x}: {:?}", String::from_utf8_lossy(&bytes)),
        }
    }
    println!("{executions} executions, {} of them still a success", outcomes[1]);
    // Both sides of the judgement were reached.
    assert!(outcomes[0] > executions / 20 && outcomes[1] > executions / 20, "{outcomes:?}");
}
