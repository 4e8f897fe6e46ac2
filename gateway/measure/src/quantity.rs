//! A number with where it comes from, or the reason why there is none.
//!
//! Apart because null is never 0: every published number goes through this type, so that none can be filled in
//! silently. Must not know: which quantities there are.

use crate::named::named;

named! {
    /// Where a number comes from.
    pub enum Source {
        Reported = "reported": "said by the upstream, in its reply or over the control channel",
        Measured = "measured": "made of the gateway's own stamps",
        Inferred = "inferred": "follows from what was or was not seen",
        Estimated = "estimated": "events with a payload, counted where the upstream says no number of tokens",
    }
}

named! {
    /// Why there is no number.
    pub enum Absent {
        NotGenerating = "not_generating": "the endpoint generates nothing",
        NotSent = "not_sent": "no request went upstream",
        NotReported = "not_reported": "the upstream did not report it",
        ReasoningUnknown = "reasoning_unknown": "reasoning was seen and its tokens were not counted",
        NoValidToken = "no_valid_token": "no event with a payload came",
        NoReasoning = "no_reasoning": "no reasoning payload came",
        NoBody = "no_body": "no body payload came",
        NotStreamed = "not_streamed": "the upstream's reply was not a stream",
        NotComplete = "not_complete": "the reply did not end",
        NotDelivered = "not_delivered": "the caller did not get the bytes in question",
        OneToken = "one_token": "one token or none: nothing lies between tokens",
        SeveralSequences = "several_sequences": "several choices or prompts share the stream",
        TokensUnknown = "tokens_unknown": "the count that it is made of is absent",
        TimeZero = "time_zero": "the time that it is divided by is 0",
        StampsContradict = "stamps_contradict": "stamps contradict each other",
    }
}

impl Source {
    /// The source of what is made of two numbers: the less sure one.
    pub fn weaker(self, other: Source) -> Source {
        let rank = |source| match source {
            Source::Reported => 0,
            Source::Measured => 1,
            Source::Inferred => 2,
            Source::Estimated => 3,
        };
        if rank(other) > rank(self) { other } else { self }
    }

    /// The source of a time or of a speed that is made with a count: its own, unless the count is an estimate.
    pub(crate) fn or_estimated(self, count: Source) -> Source {
        match count {
            Source::Estimated => Source::Estimated,
            Source::Reported | Source::Measured | Source::Inferred => self,
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

    pub fn estimated(value: T) -> Self {
        Quantity::Known { value, source: Source::Estimated }
    }

    /// The value unless it is an estimate: for sums and laws, which an estimate would spoil.
    pub fn certain(&self) -> Option<T> {
        match self {
            Quantity::Known { value, source } => match source {
                Source::Reported | Source::Measured | Source::Inferred => Some(*value),
                Source::Estimated => None,
            },
            Quantity::Absent(_) => None,
        }
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
