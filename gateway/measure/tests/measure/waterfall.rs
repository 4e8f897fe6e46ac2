//! Where the time of a request went, and the laws that its numbers keep.
//!
//! Apart because the sum is a law. Must not know: outcomes.

use pitot_measure::{Ending, Endpoint, RefusalReason, Violation, Waterfall};

use crate::play::{DONE, MS, Play, check, content, end_of, engine, finish, usage};

#[track_caller]
fn segments(name: &str, waterfall: &Waterfall, expected_ms: [Option<u64>; 8]) {
    let found = waterfall.segments().map(|(_, ns)| ns.map(|ns| ns / MS));
    assert_eq!(found, expected_ms, "{name}");
    let sum: u64 = waterfall.segments().iter().filter_map(|(_, ns)| *ns).sum();
    assert_eq!(sum, waterfall.total_ns, "{name}");
}

#[test]
fn every_segment_lies_between_its_stamps() {
    let play = Play::chat()
        .only_read(100, content("a").as_bytes())
        .write(101, 1) // decode has it
        .engine(195, engine(14, 20, 90, 190, 5, 2))
        .only_read(200, [content("b"), finish("stop")].concat().as_bytes())
        .write(230, 25) // of the 25 ms from 205, nothing belongs to the engine
        .only_read(235, [usage(5, 2), DONE.into()].concat().as_bytes())
        .write(240, 2)
        .ended(245);
    let record = check("all", &play, &[]);
    segments(
        "all",
        &record.waterfall,
        [
            Some(10),  // accepted 0 → sent 10
            Some(14),  // sent 10 → queued 14, last 190 → finish 200
            Some(6),   // queued 14 → scheduled 20
            Some(70),  // scheduled 20 → first 90
            Some(100), // first 90 → last 190
            Some(0),   // end of the upstream 245 → done 245
            Some(27),  // 205 → 230 and 238 → 240
            Some(18),  // finish 200 → end of the upstream 245 without the 27
        ],
    );
    assert_eq!(record.waterfall.total_ns, 245 * MS);
    assert_eq!(record.client_backpressure_ns, 28 * MS);
    assert_eq!(record.violations, []);
    assert_eq!(record.waterfall.residual_ns_max(), MS + 245 * MS / 100);
}

#[test]
fn without_an_engine_its_segments_are_absent() {
    let play = Play::chat().read(100, &content("a")).read(200, &end_of("stop", 5, 1)).ended(201);
    segments(
        "no engine",
        &play.run().waterfall,
        [Some(10), None, None, None, None, Some(0), Some(2), Some(189)],
    );
}

#[test]
fn a_refused_request_was_in_the_gateway_all_the_time() {
    let play = Play::new(Endpoint::ChatCompletions, true)
        .cut(7, Ending::Refused(RefusalReason::BadRequest))
        .status(Some(400));
    segments("refused", &play.run().waterfall, [Some(7), None, None, None, None, None, Some(0), Some(0)]);
}

#[test]
fn an_engine_that_was_stopped_early_has_the_segments_it_got_to() {
    let mut times = engine(14, 20, 90, 190, 5, 0);
    (times.first, times.last) = (None, None);
    let play = Play::chat().engine(50, times).cut(60, Ending::ClientLeft);
    // No byte was read, so nothing says when the upstream ended.
    segments(
        "stopped",
        &play.run().waterfall,
        [Some(10), Some(4), Some(6), None, None, None, Some(0), Some(40)],
    );
}

#[test]
fn laws_that_are_broken_are_named() {
    let with = |times| {
        Play::chat()
            .read(100, &content("a"))
            .engine(195, times)
            .read(200, &[content("b"), end_of("stop", 5, 2)].concat())
            .ended(210)
            .run()
            .violations
    };
    assert_eq!(with(engine(14, 20, 90, 190, 5, 2)), []);
    assert_eq!(with(engine(14, 13, 90, 190, 5, 2)), [Violation::EngineStampsOutOfOrder]);
    assert_eq!(with(engine(9, 20, 90, 190, 5, 2)), [Violation::EngineBeforeRequest]);
    // From queued 9 to first 101 are 92 ms; from sent 10 to the first token 100 are 90.
    assert_eq!(
        with(engine(9, 20, 101, 190, 5, 2)),
        [Violation::EngineBeforeRequest, Violation::TokenBeforeEngine, Violation::FirstTokenFasterThanEngine]
    );
    assert_eq!(with(engine(14, 20, 90, 190, 6, 2)), [Violation::InputDiffersFromEngine]);
    assert_eq!(with(engine(14, 20, 90, 190, 5, 3)), [Violation::OutputDiffersFromEngine]);
    let mut split = engine(14, 20, 90, 190, 5, 2);
    split.tokens_unclassified = 1;
    assert_eq!(with(split), [Violation::EngineSplitSum]);
    let early = Play::chat().sent(10).cut(30, Ending::Dropped).run();
    assert_eq!(early.violations, []);
    let late = Play::chat().read(14, &content("a")).cut(30, Ending::Dropped).run();
    assert_eq!(
        late.violations,
        [Violation::StampsOutOfOrder],
        "a first frame at 14 ms before the head at 15 ms"
    );
}
