//! Rates over windows: sums by hand, edges of windows, bounds.
//!
//! Apart because it is about many requests. Must not know: one request's rules.

use pitot_measure::rates::{By, Range, Windows};
use pitot_measure::{BodyKind, Ending, Endpoint, Record};
use proptest::prelude::*;

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
    // What shares a series keeps its upstream, which callers cannot invent.
    assert!(series.iter().all(|series| series.upstream == "u" && series.key_alias.is_none()));
    // A day later their places are free.
    windows.record(200_000 * SECOND, &named("e"));
    let rates = windows.rates(200_000 * SECOND);
    assert_eq!(window(&rates.windows, "1m").series[0].model, "e");
}

#[test]
fn invented_names_cannot_keep_a_real_model_out() {
    let mut windows = Windows::new(3);
    let named = |model: String, record: Record| Record { model, ..record };
    for turn in 0..100 {
        windows.record(SECOND, &named(format!("invented-{turn}"), status(404)));
    }
    windows.record(2 * SECOND, &named("real".into(), good()));
    windows.record(3 * SECOND, &named("real".into(), status(500)));
    let all = window(&windows.rates(3 * SECOND).windows, "1m").clone();
    let real = all.series.iter().find(|series| series.model == "real").expect("it succeeded");
    assert_eq!((real.summary.requests, real.summary.success_rate), (2, Some(0.5)));
    assert_eq!(all.series.len(), 4); // two invented ones, the real one, and the rest
    // Nothing is lost by making room.
    assert_eq!(all.all.requests, 102);
    assert_eq!(all.series.iter().map(|series| series.summary.requests).sum::<u64>(), 102);
}

#[test]
fn series_sum_up_by_model_upstream_and_key() {
    let mut windows = Windows::new(10);
    for (model, upstream, key) in
        [("a", "x", Some("k1")), ("a", "y", Some("k1")), ("b", "x", Some("k2")), ("b", "x", None)]
    {
        let key_alias = key.map(str::to_owned);
        windows
            .record(SECOND, &Record { model: model.into(), upstream: upstream.into(), key_alias, ..good() });
    }
    let grouped = |by| {
        let groups = windows.grouped(0, 2 * SECOND, 2 * SECOND, by);
        groups.into_iter().map(|group| (group.name, group.summary.requests)).collect::<Vec<_>>()
    };
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(grouped(By::Model), [(some("a"), 2), (some("b"), 2)]);
    assert_eq!(grouped(By::Upstream), [(some("x"), 3), (some("y"), 1)]);
    assert_eq!(grouped(By::KeyAlias), [(None, 1), (some("k1"), 2), (some("k2"), 1)]);
}

#[test]
fn keys_and_upstreams_are_bounded_too() {
    let mut windows = Windows::new(5);
    for turn in 0..1000 {
        let alias = Some(format!("key-{turn}"));
        windows.record(SECOND, &Record { key_alias: alias, upstream: format!("up-{turn}"), ..good() });
    }
    let rates = windows.rates(SECOND);
    let day = window(&rates.windows, "24h");
    assert!(day.series.len() <= 5 + 65, "{}", day.series.len());
    assert_eq!(day.all.requests, 1000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn rates_sum_to_one_and_grow_with_the_window(ends in proptest::collection::vec((0_u64..90_000, 0_usize..7, 0_usize..3), 1..40)) {
        let kinds = [good(), cached(0), cached(50), status(500), status(400), left(), status(204)];
        let mut windows = Windows::new(2);
        let mut ends = ends;
        ends.sort_unstable();
        for (second, kind, model) in &ends {
            let model = ["a", "b", "c"][*model].to_owned();
            windows.record(second * SECOND, &Record { model, ..kinds[*kind].clone() });
        }
        let now = ends.last().map_or(0, |end| end.0) * SECOND;
        let rates = windows.rates(now);
        for range in &rates.windows {
            let all = &range.all;
            let sum: f64 = [all.success_rate, all.cancelled_rate, all.timeout_rate, all.http_error_rate, all.interruption_rate, all.other_rate].into_iter().flatten().sum();
            prop_assert!((sum - 1.0).abs() < 1e-12, "{sum}");
            prop_assert_eq!(range.series.iter().map(|series| series.summary.requests).sum::<u64>(), all.requests);
            prop_assert!(all.cache_hit_rate <= all.cache_hit_coverage);
        }
        let requests: Vec<u64> = rates.windows.iter().map(|range| range.all.requests).collect();
        prop_assert!(requests.is_sorted(), "{:?}", requests);
        let by_model: u64 = windows.grouped(0, now, now, By::Model).iter().map(|group| group.summary.requests).sum();
        prop_assert_eq!(by_model, windows.between(0, now, now).all.requests);
    }
}
