//! The rules over text that is not Rust alone: banned words, names of metrics, documented configuration keys.
//!
//! Apart from the rules over code, since these read any text file. Must not know: which files there are.

use std::collections::BTreeSet;

use crate::checks::Violation;

/// Words that do not belong in the product: hosts of package registries (a machine's own settings name them), and
/// paths of the machines it is written on. Put together here, so that this file does not hold them.
const BANNED: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("/wo", "rk/"),
    concat!("../sha", "red"),
];

/// Units in which a metric's name may end; `total` closes a counter's, after its unit.
const UNITS: &[&str] = &[
    "seconds",
    "bytes",
    "tokens",
    "ratio",
    "requests",
    "sequences",
    "blocks",
    "records",
    "connections",
    "restarts",
];

fn violation(path: &str, line: usize, what: String) -> Violation {
    Violation { path: path.to_owned(), line: line + 1, what }
}

pub fn banned_words(path: &str, text: &str) -> Vec<Violation> {
    let found = |(line, text): (usize, &str)| {
        let words = BANNED.iter().filter(|word| text.contains(**word));
        words.map(|word| violation(path, line, format!("the word `{word}`"))).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(found).collect()
}

/// Names of our metrics in a text, with their lines.
fn metrics(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        found.extend(words.filter(|word| word.starts_with("pitot_")).map(|word| (line, word)));
    }
    found
}

/// Every metric in the list of metrics ends in its unit, or in `_total` after its unit, or in `_info`.
pub fn metric_units(path: &str, text: &str) -> Vec<Violation> {
    let ends_in_unit = |name: &str| {
        let name = name.strip_suffix("_total").unwrap_or(name);
        name.ends_with("_info") || UNITS.iter().any(|unit| name.ends_with(&format!("_{unit}")))
    };
    let wrong = metrics(text).into_iter().filter(|(_, name)| !ends_in_unit(name));
    wrong.map(|(line, name)| violation(path, line, format!("`{name}` does not end in its unit"))).collect()
}

/// A dashboard or an alert names only metrics that the list of metrics has.
pub fn unknown_metrics(path: &str, text: &str, list: &str) -> Vec<Violation> {
    let known: BTreeSet<&str> = metrics(list).into_iter().map(|(_, name)| name).collect();
    let is_known = |name: &str| {
        let series = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        known.contains(name) || series.is_some_and(|histogram| known.contains(histogram))
    };
    let unknown = metrics(text).into_iter().filter(|(_, name)| !is_known(name));
    unknown.map(|(line, name)| violation(path, line, format!("there is no metric `{name}`"))).collect()
}

/// Above each key of a default file stand a sentence and a line that says what the key takes.
pub fn undocumented_keys(path: &str, text: &str) -> Vec<Violation> {
    let (mut comment, mut wrong) = (Vec::new(), Vec::new());
    for (line, text) in text.lines().enumerate() {
        if let Some(text) = text.strip_prefix("# ") {
            comment.push(text);
            continue;
        }
        if let Some((key, _)) = text.split_once('=') {
            let documented = match comment.split_last() {
                Some((takes, sentence)) => {
                    takes.starts_with("Takes: ") && sentence.last().is_some_and(|last| last.ends_with('.'))
                }
                None => false,
            };
            if !documented {
                wrong.push(violation(
                    path,
                    line,
                    format!("`{}` has no sentence with what it takes", key.trim()),
                ));
            }
        }
        comment.clear();
    }
    wrong
}

#[test]
fn each_rule_can_fail() {
    let lines = |found: Vec<Violation>| found.iter().map(|found| found.line).collect::<Vec<_>>();
    for word in BANNED {
        assert_eq!(lines(banned_words("a", &format!("good\nbad {word}x\n"))), [2]);
    }
    let list =
        "`pitot_request_duration_seconds`\n`pitot_output_tokens_total` `pitot_build_info`\n`pitot_queue`\n";
    assert_eq!(lines(metric_units("a", list)), [3]);
    assert_eq!(lines(metric_units("a", "pitot_lost_total")), [1]);
    let board = "sum(pitot_request_duration_seconds_bucket)\nrate(pitot_output_tokens_total[1m])\npitot_gone_seconds\n";
    assert_eq!(lines(unknown_metrics("a", board, list)), [3]);
    let keys =
        "# Says a thing.\n# Takes: bytes\na = 1\nb = 2\n\n# No unit.\nc = 3\n\n# Takes: bytes\nd = 4\n";
    assert_eq!(lines(undocumented_keys("a", keys)), [4, 7, 10]);
}
