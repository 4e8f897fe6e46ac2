//! The page for people, the journal and the families say the same.
//!
//! Apart because it reads a file of the repository. Must not know: how the page is printed.

use std::collections::BTreeSet;

use pitot_measure::definitions::{self, DEFINITIONS};
use pitot_measure::families::{self, BUCKETS_SECONDS, Family, FamilyKind};
use pitot_measure::rates::{self, Windows};
use serde_json::Value;

use crate::play::{DONE, Play, content, end_of, engine};

#[test]
fn the_page_is_what_the_code_prints() {
    let page = include_str!("../../../METRICS.md");
    assert!(
        page == definitions::print(),
        "gateway/METRICS.md is not what the code prints: cargo run -p pitot-measure --example metrics > gateway/METRICS.md"
    );
}

fn good() -> Play {
    Play::chat()
        .read(100, &content("a"))
        .engine(190, engine(20, 30, 90, 190, 5, 2))
        .read(200, &[content("b"), end_of("stop", 5, 2)].concat())
        .ended(210)
}

#[test]
fn a_journal_line_is_flat_and_on_the_page() {
    let page = definitions::print();
    for play in [good(), Play::chat().read(20, DONE).ended(30)] {
        let line = serde_json::to_value(play.run()).unwrap();
        let Value::Object(members) = &line else { panic!("{line}") };
        for (key, value) in members {
            let flat = match value {
                Value::Array(items) => {
                    ["flags", "violations"].contains(&key.as_str()) && items.iter().all(Value::is_string)
                }
                Value::Object(_) => false,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
            };
            assert!(flat, "{key}: {value}");
        }
        for definition in &DEFINITIONS {
            assert!(members.contains_key(&definition.key()), "{}", definition.key());
            assert!(members[&definition.mark_key()].is_string(), "{}", definition.mark_key());
        }
        for key in members.keys() {
            let stamp = key.strip_suffix("_ns").map(|key| key.strip_prefix("segment_").unwrap_or(key));
            let quantity = DEFINITIONS.iter().any(|definition| *key == definition.mark_key());
            let part = key.strip_prefix("engine_reasoning_").or(key.strip_prefix("engine_content_"));
            let upstream = key.strip_prefix("upstream_").is_some_and(|key| key.ends_with("_tokens"));
            let total = stamp == Some("total");
            let named = [Some(key.as_str()), stamp].into_iter().flatten();
            let is_there = named.into_iter().any(|name| page.contains(&format!("`{name}`")));
            assert!(is_there || quantity || part.is_some() || upstream || total, "{key} is not on the page");
        }
        for stamp in
            members.keys().filter_map(|key| key.strip_suffix("_ns")).filter(|key| !key.starts_with("engine_"))
        {
            let stamp = stamp.strip_prefix("segment_").unwrap_or(stamp);
            assert!(stamp == "total" || page.contains(&format!("`{stamp}")), "{stamp} is not on the page");
        }
    }
    let line = serde_json::to_value(good().run()).unwrap();
    assert_eq!(line["first_token_time_ns"], 90_000_000);
    assert_eq!(line["first_token_time_mark"], "measured");
    assert_eq!(line["reasoning_time_ns"], Value::Null);
    assert_eq!(line["reasoning_time_mark"], "no_reasoning");
    assert_eq!(line["engine_queued_ns"], 20_000_000);
    assert_eq!(line["outcome"], "success");
    assert_eq!(line["flags"], Value::Array(vec![]));
}

#[test]
fn keys_of_rates_are_on_the_page() {
    let mut windows = Windows::new(3);
    windows.record(0, &good().run());
    let rates = serde_json::to_value(windows.rates(0)).unwrap();
    let Value::Object(summary) = &rates["windows"][0]["all"] else { panic!("{rates}") };
    let found: BTreeSet<&str> = summary.keys().map(String::as_str).collect();
    let defined: BTreeSet<&str> = rates::DEFINITIONS.iter().map(|(key, _)| *key).collect();
    assert_eq!(found, defined);
}

#[test]
fn families_have_names_apart_and_samples_have_their_kind() {
    let names: BTreeSet<&str> = Family::ALL.iter().map(|family| family.about().name).collect();
    assert_eq!(names.len(), Family::ALL.len());
    assert!(BUCKETS_SECONDS.is_sorted() && BUCKETS_SECONDS[0] == 1e-4 && BUCKETS_SECONDS[24] == 3600.0);
    for family in Family::ALL {
        let about = family.about();
        match about.kind {
            FamilyKind::Counter => assert!(about.name.ends_with("_total"), "{}", about.name),
            FamilyKind::Histogram => assert!(about.name.ends_with("_seconds"), "{}", about.name),
            FamilyKind::Gauge => assert!(about.name.ends_with("_requests"), "{}", about.name),
        }
    }
}

#[test]
fn samples_are_the_record_s_numbers() {
    let record = good().run();
    let sample = |family| {
        families::samples(&record).iter().find(|sample| sample.family == family).map(|sample| sample.value)
    };
    assert_eq!(sample(Family::Requests), Some(1.0));
    assert_eq!(sample(Family::FirstToken), Some(0.09));
    assert_eq!(sample(Family::FullResponse), Some(0.19));
    assert_eq!(sample(Family::ClientFullResponse), Some(0.196));
    assert_eq!(sample(Family::TimePerToken), Some(0.1));
    assert_eq!(sample(Family::OutputTokens), Some(2.0));
    assert_eq!(sample(Family::EngineQueue), Some(0.01));
    assert_eq!(sample(Family::EnginePrefill), Some(0.06));
    assert_eq!(sample(Family::EngineDecode), Some(0.1));
    assert_eq!(sample(Family::ClientBackpressure), Some(0.002));
    for absent in [Family::Reasoning, Family::CachedInputTokens, Family::CacheKnown, Family::UsageMissing] {
        assert_eq!(sample(absent), None, "{absent:?}");
    }
    for label in families::Family::Requests.about().labels {
        assert!(families::label_value(&record, *label).is_some(), "{label:?}");
    }
}
