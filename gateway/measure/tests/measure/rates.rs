//! Rates over windows: sums by hand, edges of windows, bounds.
//!
//! Apart because it is about many requests. Must not know: one request's rules.

use pitot_measure::rates::{Range, Windows};
use pitot_measure::{BodyKind, Ending, Endpoint, Record};

use crate::play::{DONE, Play, content, end_of, finish, usage_of};

const SECOND: u64 = 1_000_000_000;

fn good() -> Record {
    Play::chat()
        .read(110, &content("a"))
        .read(210, &[content("b"), end_of("stop", 90, 10)].concat())
        .ended(220)
        .run()
}

fn cached(count: u64) -> Record {
    let usage = usage_of(&format!(
        "{{\"prompt_tokens\":100,\"completion_tokens\":1,\"prompt_tokens_details\":{{\"cached_tokens\":{count}}}}}"
    ));
    Play::chat().read(110, &[content("a"), finish("stop"), usage, DONE.into()].concat()).ended(120).run()
}

fn status(status: u16) -> Record {
    Play::new(Endpoint::ChatCompletions, true)
        .sent(10)
        .head(15, status, BodyKind::Json)
        .read(20, "{}")
        .ended(21)
        .run()
}

fn left() -> Record {
    Play::chat().read(110, &content("a")).cut(120, Ending::ClientLeft).run()
}

fn window<'a>(ranges: &'a [Range], name: &str) -> &'a Range {
    ranges.iter().find(|range| range.window == Some(name)).expect("the window is one of five")
}

#[test]
fn rates_are_shares_of_all_requests() {
    let mut windows = Windows::new(10);
    let models = Play::new(Endpoint::Other, false)
        .sent(10)
        .head(15, 200, BodyKind::Json)
        .read(20, "{}")
        .ended(21)
        .run();
    for record in
        [good(), good(), cached(0), cached(50), status(500), status(504), status(400), left(), models]
    {
        windows.record(100 * SECOND, &record);
    }
    let rates = windows.rates(100 * SECOND);
    let all = &window(&rates.windows, "1m").all;
    assert_eq!((all.requests, all.requests_apart), (8, 1));
    assert_eq!(all.success_rate, Some(0.5));
    assert_eq!(all.http_error_rate, Some(0.25));
    assert_eq!(all.other_rate, Some(0.125));
    assert_eq!(all.cancelled_rate, Some(0.125));
    assert_eq!((all.timeout_rate, all.interruption_rate), (Some(0.0), Some(0.0)));
    assert_eq!(all.literal_http_error_rate, Some(0.25));
    assert_eq!(all.literal_interruption_rate, Some(0.125)); // the one that left after its first packet
    assert_eq!((all.cache_hit_rate, all.cache_hit_coverage), (Some(0.125), Some(0.25)));
    assert_eq!(all.cached_token_ratio, Some(0.25)); // 50 of 200
    assert_eq!((all.input_tokens, all.output_tokens), (380, 22));
    // Two of 200 ms with 100 tokens, two of 100 ms with 101: 402 tokens in 0.6 s.
    assert_eq!(all.average_speed_tokens_per_second, Some(670));
    let times = all.times.iter().find(|times| times.name == "full_response_time_ns").unwrap();
    assert_eq!((times.requests, times.mean), (5, Some(140e6))); // 200, 200, 100, 100, 100 ms
    assert_eq!((times.min, times.max), (Some(100e6), Some(200e6)));
    let p50 = times.p50.unwrap();
    assert!((p50 / 100e6 - 1.0).abs() <= rates.quantile_relative_error, "{p50}");
}

#[test]
fn nothing_has_no_rate() {
    let rates = Windows::new(1).rates(SECOND);
    let all = &window(&rates.windows, "24h").all;
    assert_eq!((all.requests, all.success_rate, all.cache_hit_coverage), (0, None, None));
    assert_eq!(all.average_speed_tokens_per_second, None);
}

#[test]
fn windows_roll() {
    let mut windows = Windows::new(1);
    windows.record(100_000 * SECOND, &good());
    for (later, expected) in [
        (0, [1; 5]),
        (61, [0, 1, 1, 1, 1]),
        (306, [0, 0, 1, 1, 1]),
        (916, [0, 0, 0, 1, 1]),
        (3661, [0, 0, 0, 0, 1]),
        (87_301, [0; 5]),
    ] {
        let rates = windows.rates((100_000 + later) * SECOND);
        let found: Vec<u64> = rates.windows.iter().map(|range| range.all.requests).collect();
        assert_eq!(found, expected, "{later} s later");
    }
}

#[test]
fn a_stretch_is_taken_from_the_finest_slots_that_reach_it() {
    let mut windows = Windows::new(1);
    for second in [1000, 1010, 1020, 4000] {
        windows.record(second * SECOND, &good());
    }
    let now = 4000 * SECOND;
    let recent = windows.between(3990 * SECOND, now, now);
    assert_eq!((recent.all.requests, recent.resolution_seconds), (1, 1));
    let old = windows.between(990 * SECOND, 1015 * SECOND, now);
    assert_eq!(old.resolution_seconds, 60);
    assert_eq!(old.all.requests, 2); // 990 to 1015 s lies in the slot from 960 to 1020 s
    assert_eq!(windows.between(2000 * SECOND, 3000 * SECOND, now).all.requests, 0);
}

#[test]
fn series_are_bounded() {
    let mut windows = Windows::new(2);
    let named = |model: &str| Record { model: model.into(), ..good() };
    for model in ["a", "b", "c", "d", &"long".repeat(100)] {
        windows.record(SECOND, &named(model));
    }
    let rates = windows.rates(SECOND);
    let series = &window(&rates.windows, "1h").series;
    let found: Vec<(&str, u64)> =
        series.iter().map(|series| (series.model.as_str(), series.summary.requests)).collect();
    assert_eq!(found, [("a", 1), ("b", 1), ("other", 3)]);
    assert_eq!(window(&rates.windows, "1h").all.requests, 5);
    // A day later their places are free.
    windows.record(200_000 * SECOND, &named("e"));
    let rates = windows.rates(200_000 * SECOND);
    assert_eq!(window(&rates.windows, "1m").series[0].model, "e");
}
