//! What a new token does to its sequence: its text, its channel, and whether it was the last.
//!
//! Apart from the engine because it concerns one sequence and can be read without batches or blocks. Must not
//! know: the scheduler, the runner, clocks.

use crate::engine::Output;
use crate::reasoning::{Channel, Kind};
use crate::sampler::{self, StopText};
use crate::sequence::{Finish, Sequence, StopCause};
use crate::stop::Stopped;
use crate::tokenizer::Tokenizer;

/// What ends every sequence of an engine.
#[derive(Debug, Clone)]
pub(crate) struct Ends {
    /// The model's own end tokens.
    pub eos_token_ids: Vec<u32>,
    /// Most tokens of a sequence, prompt and output.
    pub context_max: usize,
}

/// What a token brought.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Taken {
    pub text: String,
    /// Where `text` belongs.
    pub channel: Channel,
    /// Why it was the last token, if it was.
    pub finish: Option<Finish>,
}

/// Tokens that must not be drawn now: those that would end the sequence before `min_tokens`.
pub(crate) fn banned(sequence: &Sequence, ends: &Ends) -> Vec<u32> {
    let sampling = &sequence.sampling;
    if sequence.tokens_output() >= sampling.min_tokens as usize {
        return Vec::new();
    }
    let eos: &[u32] = if sampling.ignore_eos { &[] } else { &ends.eos_token_ids };
    [eos, &sampling.stop_token_ids].concat()
}

/// Log-probabilities of the prompt's tokens that follow the rows of a step, which end with the last token computed;
/// those reported before a preemption are not reported again.
pub(crate) fn score(sequence: &mut Sequence, rows: &[&[f32]]) -> Option<Output> {
    let count = sequence.sampling.prompt_logprobs?;
    let first = sequence.computed + 1 - rows.len();
    let mut logprobs = Vec::new();
    for (token, row) in (first..sequence.tokens_prompt).zip(rows) {
        if token == sequence.scored {
            logprobs.push(sampler::logprobs(row, sequence.tokens[token], count as usize));
            sequence.scored += 1;
        }
    }
    (!logprobs.is_empty()).then_some(Output::Prompt { id: sequence.id, logprobs })
}

/// Appends a token that the step ending at `at` produced.
pub(crate) fn take(
    sequence: &mut Sequence,
    token: u32,
    at: u64,
    ends: &Ends,
    tokenizer: &Tokenizer,
) -> Taken {
    sequence.tokens.push(token);
    sequence.stamps.first.get_or_insert(at);
    sequence.stamps.last = Some(at);
    let full = sequence.tokens_output() >= sequence.sampling.max_tokens as usize
        || sequence.tokens.len() >= ends.context_max;
    // A marker's own text is dropped, and what was held back before it belongs to the channel that it closes.
    let channel = sequence.classifier.channel();
    if let Some(stop) = stop_token(sequence, token, ends) {
        sequence.classifier.stop_token();
        let rest = sequence.detokenizer.finish(tokenizer);
        let (text, found) = watch(sequence, &rest);
        let finish = Some(Finish::Stop { stop: found.or(stop) });
        return Taken { text, channel, finish };
    }
    let (text, found) = match sequence.classifier.token(token, at) {
        Kind::Marker => take_marker(sequence, token, tokenizer),
        Kind::Text => {
            let mut piece = sequence.detokenizer.push(tokenizer, token);
            if full {
                piece.push_str(&sequence.detokenizer.finish(tokenizer));
            }
            watch(sequence, &piece)
        }
    };
    let finish = match found {
        Some(stop) => Some(Finish::Stop { stop: Some(stop) }),
        None => full.then_some(Finish::Length),
    };
    Taken { text, channel, finish }
}

/// The rest of a sequence's text when it ends; nothing where a stop string cut it.
pub(crate) fn tail(sequence: &mut Sequence, finish: &Finish, tokenizer: &Tokenizer) -> String {
    match finish {
        Finish::Stop { stop: Some(StopCause::Text(_)) } => String::new(),
        Finish::Stop { stop: None | Some(StopCause::TokenId(_)) }
        | Finish::Length
        | Finish::Abort
        | Finish::Error(_) => {
            let mut text = sequence.stop.finish();
            text.push_str(&sequence.detokenizer.finish(tokenizer));
            text
        }
    }
}

/// Whether the token ends the sequence; the inner option is absent for the model's own end tokens.
fn stop_token(sequence: &Sequence, token: u32, ends: &Ends) -> Option<Option<StopCause>> {
    if !sequence.sampling.ignore_eos && ends.eos_token_ids.contains(&token) {
        return Some(None);
    }
    sequence.sampling.stop_token_ids.contains(&token).then_some(Some(StopCause::TokenId(token)))
}

/// Hands on text that cannot be part of a stop string. Before `min_tokens` stop strings are not looked for.
fn watch(sequence: &mut Sequence, piece: &str) -> (String, Option<StopCause>) {
    if sequence.tokens_output() <= sequence.sampling.min_tokens as usize {
        return (piece.to_owned(), None);
    }
    match sequence.stop.push(piece) {
        Stopped::Not { text } => (text, None),
        Stopped::At { mut text, stop } => {
            match sequence.sampling.stop_text {
                StopText::Cut => {}
                StopText::Kept => text.push_str(&stop),
            }
            (text, Some(StopCause::Text(stop)))
        }
    }
}

/// The text held back before a marker. A stop string may end in the marker, which itself has no text.
fn take_marker(sequence: &mut Sequence, token: u32, tokenizer: &Tokenizer) -> (String, Option<StopCause>) {
    let marker = if tokenizer.is_special(token) { String::new() } else { tokenizer.token_text(token) };
    let mut piece = sequence.detokenizer.finish(tokenizer);
    piece.push_str(&marker);
    let (mut text, found) = watch(sequence, &piece);
    if found.is_none() {
        text.push_str(&sequence.stop.finish());
        let kept = text.strip_suffix(marker.as_str()).map_or(text.len(), str::len);
        text.truncate(kept);
    }
    (text, found)
}
