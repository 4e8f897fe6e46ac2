//! A number with where it comes from, or the reason why there is none.
//!
//! Apart because null is never 0: every published number goes through this type, so that none can be filled in
//! silently. Must not know: which quantities there are.

use serde::Serialize;

/// Where a number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Said by the upstream, in its reply or over the control channel.
    Reported,
    /// From the gateway's own stamps.
    Measured,
    /// Follows from what was or was not seen.
    Inferred,
    /// A tokenizer's count where the upstream is silent.
    Estimated,
}

impl Source {
    pub fn name(self) -> &'static str {
        match self {
            Source::Reported => "reported",
            Source::Measured => "measured",
            Source::Inferred => "inferred",
            Source::Estimated => "estimated",
        }
    }
}

/// Why there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Absent {
    /// The endpoint generates nothing.
    NotGenerating,
    /// No request went upstream.
    NotSent,
    /// The upstream did not report it.
    NotReported,
    /// Reasoning was seen and its tokens were not counted.
    ReasoningUnknown,
    /// No event with a payload came.
    NoValidToken,
    /// No reasoning payload came.
    NoReasoning,
    /// No body payload came.
    NoBody,
    /// The upstream's reply was not a stream.
    NotStreamed,
    /// The reply did not end.
    NotComplete,
    /// The caller did not get the bytes in question.
    NotDelivered,
    /// One token or none: nothing lies between tokens.
    OneToken,
    /// Several choices or prompts share the stream.
    SeveralSequences,
    /// The count that it is made of is absent.
    TokensUnknown,
    /// The time that it is made of is absent.
    TimeUnknown,
    /// The time that it is divided by is 0.
    TimeZero,
    /// Stamps contradict each other.
    StampsContradict,
}

impl Absent {
    pub const ALL: [Absent; 16] = [
        Absent::NotGenerating,
        Absent::NotSent,
        Absent::NotReported,
        Absent::ReasoningUnknown,
        Absent::NoValidToken,
        Absent::NoReasoning,
        Absent::NoBody,
        Absent::NotStreamed,
        Absent::NotComplete,
        Absent::NotDelivered,
        Absent::OneToken,
        Absent::SeveralSequences,
        Absent::TokensUnknown,
        Absent::TimeUnknown,
        Absent::TimeZero,
        Absent::StampsContradict,
    ];

    pub fn name(self) -> &'static str {
        self.texts().0
    }

    /// The sentence for people.
    pub fn meaning(self) -> &'static str {
        self.texts().1
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Absent::NotGenerating => ("not_generating", "the endpoint generates nothing"),
            Absent::NotSent => ("not_sent", "no request went upstream"),
            Absent::NotReported => ("not_reported", "the upstream did not report it"),
            Absent::ReasoningUnknown => {
                ("reasoning_unknown", "reasoning was seen and its tokens were not counted")
            }
            Absent::NoValidToken => ("no_valid_token", "no event with a payload came"),
            Absent::NoReasoning => ("no_reasoning", "no reasoning payload came"),
            Absent::NoBody => ("no_body", "no body payload came"),
            Absent::NotStreamed => ("not_streamed", "the upstream's reply was not a stream"),
            Absent::NotComplete => ("not_complete", "the reply did not end"),
            Absent::NotDelivered => ("not_delivered", "the caller did not get the bytes in question"),
            Absent::OneToken => ("one_token", "one token or none: nothing lies between tokens"),
            Absent::SeveralSequences => ("several_sequences", "several choices or prompts share the stream"),
            Absent::TokensUnknown => ("tokens_unknown", "the count that it is made of is absent"),
            Absent::TimeUnknown => ("time_unknown", "the time that it is made of is absent"),
            Absent::TimeZero => ("time_zero", "the time that it is divided by is 0"),
            Absent::StampsContradict => ("stamps_contradict", "stamps contradict each other"),
        }
    }
}

/// A number and its source, or why it is absent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantity<T> {
    Known { value: T, source: Source },
    Absent(Absent),
}

impl<T: Copy> Quantity<T> {
    pub fn reported(value: T) -> Self {
        Quantity::Known { value, source: Source::Reported }
    }

    pub fn measured(value: T) -> Self {
        Quantity::Known { value, source: Source::Measured }
    }

    pub fn inferred(value: T) -> Self {
        Quantity::Known { value, source: Source::Inferred }
    }

    pub fn value(&self) -> Option<T> {
        match self {
            Quantity::Known { value, .. } => Some(*value),
            Quantity::Absent(_) => None,
        }
    }

    pub fn absent(&self) -> Option<Absent> {
        match self {
            Quantity::Known { .. } => None,
            Quantity::Absent(reason) => Some(*reason),
        }
    }

    /// The source of a number that is there, or the reason why it is not.
    pub fn mark(&self) -> &'static str {
        match self {
            Quantity::Known { source, .. } => source.name(),
            Quantity::Absent(reason) => reason.name(),
        }
    }

    /// The same with the value changed; source or reason stay.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Quantity<U> {
        match self {
            Quantity::Known { value, source } => Quantity::Known { value: change(value), source },
            Quantity::Absent(reason) => Quantity::Absent(reason),
        }
    }
}
