//! Laws over many requests: any cut of the same reads gives the same record, and sums are kept.
//!
//! Apart because the inputs are made by chance. Must not know: values worked out by hand.

use pitot_measure::{Ending, Flag, InlineThink, OutcomeKind, UpstreamFailure};
use proptest::prelude::*;

use crate::play::{DONE, MS, Play, ROLE, content, engine, finish, reasoning, usage};

/// One frame of many kinds, good and bad.
fn frame() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => Just(content("a")),
        2 => Just(reasoning("b")),
        1 => Just(content("<think>x</think>y")),
        1 => Just(content("<thi")),
        1 => Just(ROLE.to_owned()),
        1 => Just(": ping\n\n".to_owned()),
        1 => Just("data: {\"choices\":[\n\n".to_owned()),
        1 => Just(content("ü€😀")),
        1 => Just("data: {\"error\":{}}\n\n".to_owned()),
        2 => Just(finish("stop")),
        2 => Just(usage(7, 5)),
        1 => Just(DONE.to_owned()),
        1 => Just(content(&"x".repeat(200))),
    ]
}

#[derive(Debug, Clone)]
struct Made {
    play: Play,
    streamed: bool,
}

fn request() -> impl Strategy<Value = Made> {
    let reads =
        proptest::collection::vec((proptest::collection::vec(frame(), 1..4), 0_u64..50, 0_u64..20), 0..8);
    let line_end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let stamps = proptest::collection::vec(0_u64..500, 4);
    (reads, line_end, 0_usize..4, stamps, any::<bool>(), any::<bool>()).prop_map(
        |(reads, line_end, ending, mut stamps, think, with_engine)| {
            let mut play = Play::chat().options(|options| {
                options.frame_bytes_max = 180;
                options.inline_think = if think { InlineThink::Reasoning } else { InlineThink::Content };
            });
            let mut now = 15;
            let mut seen = 0;
            for (frames, pause, lasted) in reads {
                now += pause;
                play = play.only_read(now, frames.concat().replace('\n', line_end).as_bytes());
                now += lasted;
                play = play.write(now, lasted);
                seen += 1;
            }
            if with_engine {
                stamps.sort_unstable();
                play = play.engine(now, engine(stamps[0], stamps[1], stamps[2], stamps[3], 7, 5));
            }
            let play = match ending {
                0 => play.cut(now + 3, Ending::ClientLeft),
                1 => play.cut(now + 3, Ending::UpstreamFailed(UpstreamFailure::Truncated)),
                _ => play.ended(now + 3),
            };
            Made { play, streamed: seen > 0 }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_cut_of_the_same_reads_gives_the_same_record(made in request(), cuts in proptest::collection::vec(1_usize..40, 1..20)) {
        let whole = made.play.run();
        let mut next = cuts.iter().cycle();
        let cut = made.play.run_cut(&mut |read| {
            let (mut rest, mut pieces) = (read, Vec::new());
            while !rest.is_empty() {
                let length = (*next.next().unwrap()).min(rest.len());
                let (piece, after) = rest.split_at(length);
                pieces.push(piece.to_vec());
                rest = after;
            }
            pieces
        });
        prop_assert_eq!(whole, cut);
    }

    #[test]
    fn time_and_tokens_are_conserved(made in request()) {
        let record = made.play.run();
        let waterfall = record.waterfall;
        let sum: u64 = waterfall.segments().iter().filter_map(|(_, ns)| *ns).sum();
        prop_assert_eq!(sum, record.timeline.downstream_done.0);
        prop_assert_eq!(waterfall.total_ns, record.timeline.downstream_done.0);
        if let (Some(active), Some(first), Some(last)) = (record.active, record.timeline.first_token, record.timeline.last_token) {
            prop_assert_eq!(active.reasoning_ns + active.content_ns + active.gaps_ns, last.0 - first.0);
        }
        let tokens = record.tokens;
        if let (Some(output), Some(reasoning), Some(content)) = (tokens.output.value(), tokens.reasoning.value(), tokens.content.value()) {
            prop_assert_eq!(output, reasoning + content);
        }
        // A success has a token, and a token has a request: started ≥ first token ≥ finished.
        if record.outcome == OutcomeKind::Success && !record.has(Flag::FrameOverCap) {
            prop_assert!(record.timeline.first_token.is_some() && made.streamed);
        }
        let times = record.upstream_times;
        if let (Some(first), Some(full)) = (times.first_token_ns.value(), times.full_response_ns.value()) {
            prop_assert!(first <= full && full <= record.timeline.downstream_done.0.max(1000 * MS));
        }
        prop_assert!(record.flags.is_sorted() && record.flags.len() <= Flag::ALL.len());
    }

    #[test]
    fn nothing_that_comes_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400), stream in any::<bool>()) {
        let play = if stream { Play::chat() } else { Play::whole() };
        let record = play.only_read(50, &bytes).write(60, 3).ended(70).run();
        prop_assert_eq!(record.response_bytes, bytes.len() as u64);
    }
}
