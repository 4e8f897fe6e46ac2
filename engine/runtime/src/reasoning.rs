//! Which output tokens are reasoning and which are content, by `<think>` and `</think>` tokens.
//!
//! Apart because it is a rule about token ids alone. Must not know: text, sampling, where stamps come from.
//!
//! It works where the vocabulary has both markers as single tokens; elsewhere everything is content.

use crate::tokenizer::Tokenizer;

/// A part of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    Reasoning,
    Content,
}

/// Tokens of one channel; instants in the caller's nanoseconds, absent when it has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    pub tokens: u32,
    /// End of the step that produced the first.
    pub first: Option<u64>,
    /// End of the step that produced the last.
    pub last: Option<u64>,
}

/// Output tokens by channel; the three counts add up to the usage's output tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputSplit {
    pub reasoning: Part,
    pub content: Part,
    /// Markers and the stop token.
    pub tokens_unclassified: u32,
}

/// The two markers, when the vocabulary has both as single tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Markers {
    pub open: u32,
    pub close: u32,
}

impl Markers {
    pub fn of(tokenizer: &Tokenizer) -> Option<Markers> {
        Some(Markers { open: tokenizer.token_id("<think>")?, close: tokenizer.token_id("</think>")? })
    }

    /// The channel that follows a token, if it is a marker.
    fn entered(self, token: u32) -> Option<Channel> {
        if token == self.open {
            Some(Channel::Reasoning)
        } else if token == self.close {
            Some(Channel::Content)
        } else {
            None
        }
    }
}

/// What a token turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Marker,
    Text,
}

/// Sorts a sequence's output tokens.
#[derive(Debug)]
pub(crate) struct Classifier {
    markers: Option<Markers>,
    channel: Channel,
    split: OutputSplit,
}

impl Classifier {
    /// Starts in reasoning when the prompt ends inside an open `<think>`, as some templates write it.
    pub fn new(markers: Option<Markers>, prompt: &[u32]) -> Classifier {
        let channel = markers
            .and_then(|markers| prompt.iter().rev().find_map(|token| markers.entered(*token)))
            .unwrap_or(Channel::Content);
        Classifier { markers, channel, split: OutputSplit::default() }
    }

    /// The channel that text now belongs to.
    pub fn channel(&self) -> Channel {
        self.channel
    }

    /// Counts an output token that is not the stop token.
    pub fn token(&mut self, token: u32, at: u64) -> Kind {
        if let Some(entered) = self.markers.and_then(|markers| markers.entered(token)) {
            self.channel = entered;
            self.split.tokens_unclassified += 1;
            return Kind::Marker;
        }
        let part = match self.channel {
            Channel::Reasoning => &mut self.split.reasoning,
            Channel::Content => &mut self.split.content,
        };
        part.tokens += 1;
        part.first.get_or_insert(at);
        part.last = Some(at);
        Kind::Text
    }

    /// Counts the stop token.
    pub fn stop_token(&mut self) {
        self.split.tokens_unclassified += 1;
    }

    pub fn split(&self) -> OutputSplit {
        self.split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKERS: Markers = Markers { open: 1, close: 2 };

    fn part(tokens: u32, first: u64, last: u64) -> Part {
        Part { tokens, first: Some(first), last: Some(last) }
    }

    /// Output token i is stamped at 10 * i.
    #[track_caller]
    fn check(markers: Option<Markers>, prompt: &[u32], output: &[u32], expected: OutputSplit) {
        let mut classifier = Classifier::new(markers, prompt);
        for (index, token) in output.iter().enumerate() {
            classifier.token(*token, 10 * index as u64);
        }
        assert_eq!(classifier.split(), expected);
    }

    #[test]
    fn tokens_fall_between_the_markers() {
        let both =
            OutputSplit { reasoning: part(2, 10, 20), content: part(1, 40, 40), tokens_unclassified: 2 };
        check(Some(MARKERS), &[9], &[1, 5, 6, 2, 7], both);
        let opened =
            OutputSplit { reasoning: part(1, 0, 0), content: part(1, 20, 20), tokens_unclassified: 1 };
        check(Some(MARKERS), &[9, 1], &[5, 2, 7], opened);
        let closed = OutputSplit { content: part(1, 0, 0), ..OutputSplit::default() };
        check(Some(MARKERS), &[1, 4, 2], &[5], closed);
        let unclosed =
            OutputSplit { reasoning: part(1, 10, 10), tokens_unclassified: 1, ..OutputSplit::default() };
        check(Some(MARKERS), &[9], &[1, 5], unclosed);
        let none = OutputSplit { content: part(3, 0, 20), ..OutputSplit::default() };
        check(None, &[1], &[1, 5, 2], none);
    }

    #[test]
    fn the_stop_token_is_in_neither() {
        let mut classifier = Classifier::new(None, &[]);
        assert_eq!(classifier.token(5, 3), Kind::Text);
        classifier.stop_token();
        let expected =
            OutputSplit { content: part(1, 3, 3), tokens_unclassified: 1, ..OutputSplit::default() };
        assert_eq!(classifier.split(), expected);
    }
}
