//! Fields that ask for what the engine does not do.
//!
//! Apart so that the list can be read and shrinks in one place. To ignore such a field would answer another question
//! than the one that was asked, so it is refused by its name; fields that nobody here has heard of are ignored, as
//! OpenAI's servers do. Must not know: what the engine does.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// Fields of earlier servers by which output was constrained; there is no value that means nothing.
const REMOVED: [&str; 7] = [
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "structural_tag",
];

/// Whether a value asks for nothing.
type ChangesNothing = fn(&Value) -> bool;

/// Fields that are not done yet, and which values of them change nothing.
const NOT_DONE: [(&str, ChangesNothing); 21] = [
    ("response_format", |value| value["type"] == "text"),
    ("structured_outputs", is_empty),
    ("use_beam_search", is_false),
    ("length_penalty", |value| value.as_f64() == Some(1.0)),
    ("truncate_prompt_tokens", |_| false),
    ("allowed_token_ids", is_empty),
    ("bad_words", is_empty),
    ("prompt_logprobs", |_| false),
    ("thinking_token_budget", |value| value.as_i64() == Some(-1)),
    ("top_a", is_zero),
    ("tfs", |value| value.as_f64() == Some(1.0)),
    ("eta_cutoff", is_zero),
    ("epsilon_cutoff", is_zero),
    ("mirostat_mode", is_zero),
    ("dynatemp_min", is_zero),
    ("dynatemp_max", is_zero),
    ("smoothing_factor", is_zero),
    ("xtc_probability", is_zero),
    ("dry_multiplier", is_zero),
    ("nsigma", is_zero),
    ("repetition_detection", |_| false),
];

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_false(value: &Value) -> bool {
    value == &Value::Bool(false)
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Refuses fields that would change the answer if they were heeded.
///
/// # Errors
/// Naming the first of them.
pub fn refuse_what_is_not_done(fields: &Fields) -> Result<(), ApiError> {
    for name in REMOVED {
        if fields.get(name).is_some() {
            let message = format!("`{name}` is not supported: the output would not be constrained by it");
            return Err(ApiError::field(name, message));
        }
    }
    NOT_DONE.iter().try_for_each(|(name, neutral)| fields.unsupported(name, *neutral))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Result<(), &str>) {
        let found = refuse_what_is_not_done(&Fields::parse(body.as_bytes()).unwrap());
        let found = found.map_err(|error| error.param.expect("a field's error names it"));
        assert_eq!(found, expected.map_err(str::to_owned), "{body}");
    }

    #[test]
    fn what_would_change_the_answer_is_refused_by_name() {
        check(r#"{"guided_json":{"type":"object"}}"#, Err("guided_json"));
        check(r#"{"guided_regex":""}"#, Err("guided_regex"));
        check(r#"{"guided_choice":null}"#, Ok(()));
        check(r#"{"response_format":{"type":"json_object"}}"#, Err("response_format"));
        check(r#"{"response_format":{"type":"text"}}"#, Ok(()));
        check(r#"{"use_beam_search":true}"#, Err("use_beam_search"));
        check(r#"{"use_beam_search":false,"bad_words":[],"structured_outputs":{},"top_a":0}"#, Ok(()));
        check(r#"{"bad_words":["x"]}"#, Err("bad_words"));
        check(r#"{"never_heard_of":1}"#, Ok(()));
    }
}
