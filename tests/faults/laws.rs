//! Laws that every record keeps, whatever the case: derived numbers are made again from the ones they derive from.
//!
//! Apart from the cases, which say what the numbers are, and written from the definitions alone: nothing of the
//! measuring code is used. Must not know: cases.

use serde_json::Value;

/// Stamps in the order in which they must come; those that are null are skipped.
const IN_ORDER: [&[&str]; 5] = [
    &["request_read_ns", "request_sent_ns", "terminal_ns", "downstream_done_ns"],
    &["request_sent_ns", "head_ns", "first_frame_ns", "first_token_ns", "last_token_ns", "upstream_eof_ns"],
    &["first_token_ns", "reasoning_first_ns", "reasoning_last_ns", "last_token_ns"],
    &["first_token_ns", "content_first_ns", "content_last_ns", "last_token_ns"],
    &["head_ns", "first_frame_ns", "finish_ns", "upstream_eof_ns"],
];

const SEGMENTS: [&str; 8] = [
    "segment_gateway_in_ns",
    "segment_local_hop_ns",
    "segment_engine_queue_ns",
    "segment_prefill_ns",
    "segment_decode_ns",
    "segment_gateway_out_ns",
    "segment_client_backpressure_ns",
    "segment_residual_ns",
];

struct Record<'r> {
    record: &'r Value,
    broken: Vec<String>,
}

/// What the record breaks, each in words.
pub fn broken(record: &Value) -> Vec<String> {
    let mut laws = Record { record, broken: Vec::new() };
    laws.order();
    laws.legs();
    laws.sums();
    laws.times();
    laws.speeds();
    laws.marks();
    laws.broken
}

impl Record<'_> {
    fn number(&self, field: &str) -> Option<u64> {
        self.record[field].as_u64()
    }

    fn same(&mut self, field: &str, expected: Option<u64>, by: &str) {
        let found = self.number(field);
        if found != expected && !self.record[field].is_f64() {
            self.broken.push(format!("{field} is {}, by {by} it is {expected:?}", self.record[field]));
        }
    }

    fn order(&mut self) {
        for chain in IN_ORDER {
            let known: Vec<_> = chain.iter().filter_map(|name| Some((*name, self.number(name)?))).collect();
            for pair in known.windows(2) {
                let ((before, earlier), (after, later)) = (pair[0], pair[1]);
                if earlier > later {
                    self.broken.push(format!("{before} ({earlier}) is behind {after} ({later})"));
                }
            }
        }
        if self.record["violations"].as_array().is_none_or(|violations| !violations.is_empty()) {
            self.broken.push(format!("violations are {}", self.record["violations"]));
        }
    }

    /// What the caller waited for holds what the gateway waited for.
    fn legs(&mut self) {
        for name in ["first_token_time_ns", "full_response_time_ns"] {
            let own = self.number(name);
            let client = self.number(&format!("client_{name}"));
            if own.zip(client).is_some_and(|(own, client)| client < own) {
                self.broken.push(format!("client_{name} ({client:?}) is less than {name} ({own:?})"));
            }
        }
    }

    fn sums(&mut self) {
        let sum: u64 = SEGMENTS.iter().filter_map(|name| self.number(name)).sum();
        self.same("segment_total_ns", Some(sum), "the sum of its segments");
        self.same("segment_total_ns", self.number("downstream_done_ns"), "accepted to downstream_done");
        let span = self.number("last_token_ns").zip(self.number("first_token_ns"));
        let span = span.and_then(|(last, first)| last.checked_sub(first));
        let parts = ["reasoning_active_ns", "content_active_ns", "gaps_ns"].map(|name| self.number(name));
        if let (Some(span), [Some(reasoning), Some(content), Some(gaps)]) = (span, parts)
            && reasoning + content + gaps != span
        {
            self.broken.push(format!("{reasoning} + {content} + {gaps} ns of stages are not {span} ns"));
        }
        let total = self.number("input_tokens").zip(self.number("output_tokens")).map(|(i, o)| i + o);
        self.same("total_tokens", total, "input + output");
        let content = self.number("output_tokens").zip(self.number("reasoning_tokens"));
        self.same("content_tokens", content.and_then(|(o, r)| o.checked_sub(r)), "output − reasoning");
    }

    fn between(&self, from: &str, to: &str) -> Option<u64> {
        self.number(to)?.checked_sub(self.number(from)?)
    }

    fn times(&mut self) {
        let streamed = self.record["transfer"] == "streamed";
        let one = |tokens: &str| self.number(tokens) == Some(1);
        let (one_reasoning, one_content) = (one("reasoning_tokens"), one("content_tokens"));
        let zero_if_one = |one: bool, time: Option<u64>| if one { time.map(|_| 0) } else { time };
        let first = self.between("request_sent_ns", "first_token_ns").filter(|_| streamed);
        self.same("first_token_time_ns", first, "first_token − request_sent");
        if streamed {
            let full = self.between("request_sent_ns", "last_token_ns");
            self.same("full_response_time_ns", full, "last_token − request_sent");
        }
        let has = |name: &str| self.number(name).is_some();
        let (has_reasoning, has_content) = (has("reasoning_first_ns"), has("content_first_ns"));
        let reasoning = self.between("first_token_ns", "reasoning_last_ns");
        let reasoning = zero_if_one(one_reasoning, reasoning).filter(|_| streamed && has_reasoning);
        let inferred = |mark: &str| self.record[mark] == "inferred";
        if !inferred("reasoning_time_mark") {
            self.same("reasoning_time_ns", reasoning, "reasoning_last − first_token");
        }
        let content = self.between("content_first_ns", "content_last_ns");
        let content = zero_if_one(one_content, content).filter(|_| streamed && has_content);
        if !inferred("content_time_mark") {
            self.same("content_time_ns", content, "content_last − content_first");
        }
        self.per_token(streamed);
    }

    fn per_token(&mut self, streamed: bool) {
        let sequences =
            self.number("choices").unwrap_or(1).max(1) * self.number("prompts").unwrap_or(1).max(1);
        let span = self.number("full_response_time_ns").zip(self.number("first_token_time_ns"));
        let expected = match (span, self.number("output_tokens")) {
            (Some((full, first)), Some(output)) if streamed && sequences == 1 && output > 1 => {
                Some((full - first) as f64 / (output - 1) as f64)
            }
            _ => None,
        };
        let found = self.record["time_per_token_ns"].as_f64();
        if !close(found, expected) {
            self.broken.push(format!(
                "time_per_token_ns is {found:?}, by (full − first) / (output − 1) it is {expected:?}"
            ));
        }
    }

    fn speeds(&mut self) {
        for (name, tokens, time) in [
            ("reasoning_speed", "reasoning_tokens", "reasoning_time_ns"),
            ("content_speed", "content_tokens", "content_time_ns"),
            ("average_speed", "total_tokens", "full_response_time_ns"),
        ] {
            let parts = self.number(tokens).zip(self.number(time).filter(|time| *time > 0));
            let rounded = parts.map(|(tokens, ns)| {
                let up = (u128::from(tokens) * 1_000_000_000).div_ceil(u128::from(ns));
                u64::try_from(up).unwrap_or(u64::MAX)
            });
            let by = format!("{tokens} / {time}, rounded up");
            self.same(&format!("{name}_tokens_per_second"), rounded, &by);
            let exact = parts.map(|(tokens, ns)| tokens as f64 * 1e9 / ns as f64);
            let found = self.record[&format!("{name}_exact_tokens_per_second")].as_f64();
            if !close(found, exact) {
                self.broken.push(format!("{name}_exact is {found:?}, by {tokens} / {time} it is {exact:?}"));
            }
        }
        let parts = self.number("output_tokens").zip(self.number("full_response_time_ns").filter(|t| *t > 0));
        let exact = parts.map(|(tokens, ns)| tokens as f64 * 1e9 / ns as f64);
        let found = self.record["average_output_speed_tokens_per_second"].as_f64();
        if !close(found, exact) {
            self.broken
                .push(format!("average_output_speed is {found:?}, by output / full time it is {exact:?}"));
        }
    }

    /// A number has a source, a null has a reason.
    fn marks(&mut self) {
        let sources = ["reported", "measured", "inferred", "estimated"];
        for name in [
            "input_tokens",
            "output_tokens",
            "reasoning_tokens",
            "content_tokens",
            "cached_tokens",
            "total_tokens",
        ] {
            let mark = self.record[&format!("{name}_mark")].as_str().unwrap_or_default();
            if self.record[name].is_null() == sources.contains(&mark) || mark.is_empty() {
                self.broken.push(format!("{name} is {} with the mark {mark:?}", self.record[name]));
            }
        }
        for name in
            ["first_token_time", "reasoning_time", "content_time", "full_response_time", "time_per_token"]
        {
            let mark = self.record[&format!("{name}_mark")].as_str().unwrap_or_default();
            let value = &self.record[&format!("{name}_ns")];
            if value.is_null() == sources.contains(&mark) || mark.is_empty() {
                self.broken.push(format!("{name}_ns is {value} with the mark {mark:?}"));
            }
        }
    }
}

/// Equal as far as a double tells.
fn close(found: Option<f64>, expected: Option<f64>) -> bool {
    match (found, expected) {
        (Some(found), Some(expected)) => (found - expected).abs() <= expected.abs() * 1e-9,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lawful() -> Value {
        let mut record = json!({
            "transfer": "streamed", "choices": 1, "prompts": 1, "violations": [],
            "request_sent_ns": 10, "head_ns": 20, "first_frame_ns": 30, "first_token_ns": 110,
            "content_first_ns": 110, "content_last_ns": 410, "last_token_ns": 410, "upstream_eof_ns": 500,
            "downstream_done_ns": 600, "segment_total_ns": 600, "segment_residual_ns": 600,
            "reasoning_active_ns": 0, "content_active_ns": 300, "gaps_ns": 0,
            "input_tokens": 5, "output_tokens": 4, "total_tokens": 9, "reasoning_tokens": 0, "content_tokens": 4,
            "first_token_time_ns": 100, "full_response_time_ns": 400, "content_time_ns": 300,
            "time_per_token_ns": 100.0,
            "content_speed_tokens_per_second": 13_333_334, "content_speed_exact_tokens_per_second": 4e9 / 300.0,
            "average_speed_tokens_per_second": 22_500_000, "average_speed_exact_tokens_per_second": 22_500_000.0,
            "average_output_speed_tokens_per_second": 10_000_000.0,
        });
        for name in ["input_tokens", "output_tokens", "reasoning_tokens", "content_tokens", "total_tokens"] {
            record[format!("{name}_mark")] = json!("reported");
        }
        for name in ["first_token_time", "content_time", "full_response_time", "time_per_token"] {
            record[format!("{name}_mark")] = json!("measured");
        }
        record["cached_tokens_mark"] = json!("not_reported");
        record["reasoning_time_mark"] = json!("no_reasoning");
        record
    }

    #[test]
    fn a_lawful_record_breaks_nothing_and_each_change_does() {
        assert_eq!(broken(&lawful()), [""; 0]);
        for (field, value) in [
            ("head_ns", json!(31)),
            ("request_read_ns", json!(11)),
            ("client_first_token_time_ns", json!(99)),
            ("violations", json!(["x"])),
            ("segment_residual_ns", json!(599)),
            ("gaps_ns", json!(1)),
            ("total_tokens", json!(8)),
            ("content_tokens", json!(3)),
            ("first_token_time_ns", json!(101)),
            ("content_time_ns", json!(null)),
            ("time_per_token_ns", json!(null)),
            ("content_speed_tokens_per_second", json!(13_333_333)),
            ("average_output_speed_tokens_per_second", json!(2.25e7)),
            ("cached_tokens", json!(0)),
            ("output_tokens_mark", json!("not_reported")),
        ] {
            let mut record = lawful();
            record[field] = value;
            assert!(!broken(&record).is_empty(), "{field} may be changed");
        }
    }
}
