//! One measured request for a person: a table of every quantity, and where the time went.
//!
//! Apart because it is a view: every number and its meaning come from the record and the table of definitions. Must
//! not know: how anything was measured.

use std::fmt::Write;

use pitot_measure::definitions::{self, DEFINITIONS, Number};

use crate::emit::Finished;

/// Columns of the waterfall's bars.
const BAR: usize = 44;

/// Gives the text, without colours.
pub fn text(finished: &Finished) -> String {
    let record = &finished.record;
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\nrequest {}  {}  {}", record.id, record.model, record.outcome.name());
    let _ = writeln!(
        out,
        "\n  {:<28} {:>14}  {:<9} where it comes from, or why it is not there",
        "metric", "value", "unit"
    );
    for definition in &DEFINITIONS {
        let quantity = definitions::quantity(record, definition.metric);
        let (value, unit) = shown(quantity.value(), definition.unit);
        let _ = writeln!(out, "  {:<28} {value:>14}  {unit:<9} {}", definition.name, quantity.mark());
    }
    let _ = writeln!(out, "\n  where the time went (ms)");
    let total = record.waterfall.total_ns.max(1);
    let mut begun = 0;
    for (name, ns) in record.waterfall.segments() {
        let Some(ns) = ns else {
            let _ = writeln!(out, "  {:<28} {:>14}", name, "null");
            continue;
        };
        let _ = writeln!(out, "  {:<28} {:>14}  {}", name, ms(ns), bar(begun, ns, total));
        begun += ns;
    }
    for (name, from, to) in stages(finished) {
        let line = match from.zip(to) {
            Some((from, to)) => {
                format!("{:>14}  {}", ms(to.saturating_sub(from)), bar(from, to.saturating_sub(from), total))
            }
            None => format!("{:>14}", "null"),
        };
        let _ = writeln!(out, "  {name:<28} {line}");
    }
    let _ = writeln!(out, "  {:<28} {:>14}", "total", ms(record.waterfall.total_ns));
    for violation in &record.violations {
        let _ = writeln!(out, "  does not add up: {violation}");
    }
    out
}

/// The stages as the caller's side sees them, beside the segments that sum to the total.
fn stages(finished: &Finished) -> [(&'static str, Option<u64>, Option<u64>); 2] {
    let timeline = &finished.record.timeline;
    let ns = |at: Option<pitot_measure::At>| at.map(|at| at.0);
    [
        ("· reasoning_time", ns(timeline.reasoning_first), ns(timeline.reasoning_last)),
        ("· content_time", ns(timeline.content_first), ns(timeline.content_last)),
    ]
}

fn shown(value: Option<Number>, unit: &'static str) -> (String, &'static str) {
    match (value, unit) {
        (None, "nanoseconds") => ("null".to_owned(), "ms"),
        (None, "tokens per second") => ("null".to_owned(), "tokens/s"),
        (Some(Number::Count(count)), "tokens per second") => (count.to_string(), "tokens/s"),
        (Some(Number::Float(number)), "tokens per second") => (format!("{number:.3}"), "tokens/s"),
        (None, unit) => ("null".to_owned(), unit),
        (Some(Number::Count(count)), "nanoseconds") => (ms(count), "ms"),
        (Some(Number::Float(number)), "nanoseconds") => (format!("{:.3}", number / 1e6), "ms"),
        (Some(Number::Count(count)), unit) => (count.to_string(), unit),
        (Some(Number::Float(number)), unit) => (format!("{number:.3}"), unit),
    }
}

fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// A bar from where a segment begins, as long as it lasts; a short one is still a mark, and none is nothing.
fn bar(begun: u64, ns: u64, total: u64) -> String {
    let columns = |ns: u64| u128::from(ns) * BAR as u128;
    let from = usize::try_from(columns(begun) / u128::from(total)).unwrap_or(BAR).min(BAR - 1);
    let rounded = (columns(ns) + u128::from(total / 2)) / u128::from(total);
    let length = usize::try_from(rounded).unwrap_or(BAR).min(BAR - from);
    match (ns, length) {
        (0, _) => String::new(),
        (_, 0) => format!("{}▏", " ".repeat(from)),
        (_, length) => format!("{}{}", " ".repeat(from), "█".repeat(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_lie_where_their_segments_do() {
        assert_eq!(bar(0, 44, 44), "█".repeat(44));
        assert_eq!(bar(22, 11, 44), format!("{}{}", " ".repeat(22), "█".repeat(11)));
        assert_eq!(bar(43, 0, 44), "");
        assert_eq!(bar(44, 0, 44), "");
        assert_eq!(bar(0, 1, 1000), "▏");
        // 3 of 1000 is 0.13 of 44 columns, also where it lies across the edge of one.
        assert_eq!(bar(998, 2, 1000), format!("{}▏", " ".repeat(43)));
        assert_eq!(
            bar(u64::MAX / 4, u64::MAX / 4, u64::MAX),
            format!("{}{}", " ".repeat(10), "█".repeat(11))
        );
    }
}
