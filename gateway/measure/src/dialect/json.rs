//! Leaves of JSON that are read leniently: a value of an unexpected type is an absent one.
//!
//! Apart because servers differ in details that must not cost a frame its measurement: an index as text, a
//! finish reason as a number. Must not know: which field is what.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Makes a type readable from any JSON value: what its visitor does not take reads as the default.
pub trait Leaf<'de>: Default {
    fn of_text(_text: &str) -> Self {
        Self::default()
    }
    fn of_borrowed_text(text: &'de str) -> Self {
        Self::of_text(text)
    }
    fn of_count(_count: u64) -> Self {
        Self::default()
    }
    fn of_value() -> Self {
        Self::default()
    }
    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::of_value())
    }
}

struct LeafVisitor<T>(PhantomData<T>);

impl<'de, T: Leaf<'de>> Visitor<'de> for LeafVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }
    fn visit_bool<E>(self, _: bool) -> Result<T, E> {
        Ok(T::of_value())
    }
    fn visit_u64<E>(self, count: u64) -> Result<T, E> {
        Ok(T::of_count(count))
    }
    fn visit_i64<E>(self, _: i64) -> Result<T, E> {
        Ok(T::of_value())
    }
    fn visit_f64<E>(self, number: f64) -> Result<T, E> {
        // Some servers write counts as 12.0. The bound keeps the conversion exact.
        let whole = (0.0..=9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0;
        Ok(if whole { T::of_count(number as u64) } else { T::of_value() })
    }
    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::of_text(text))
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<T, E> {
        Ok(T::of_borrowed_text(text))
    }
    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::of_list(list)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(T::of_value())
    }
}

macro_rules! readable {
    ($type:ty $(, $borrowed:lifetime)?) => {
        impl<'de $(: $borrowed, $borrowed)?> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(LeafVisitor(PhantomData))
            }
        }
    };
}

/// Whether a text is there and not empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filled(pub bool);

impl Leaf<'_> for Filled {
    fn of_text(text: &str) -> Self {
        Filled(!text.is_empty())
    }
}
readable!(Filled);

/// Whether a value other than null is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Present(pub bool);

impl Leaf<'_> for Present {
    fn of_text(_: &str) -> Self {
        Present(true)
    }
    fn of_count(_: u64) -> Self {
        Present(true)
    }
    fn of_value() -> Self {
        Present(true)
    }
}
readable!(Present);

/// A count; absent is not 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count(pub Option<u64>);

impl Leaf<'_> for Count {
    fn of_count(count: u64) -> Self {
        Count(Some(count))
    }
}
readable!(Count);

/// A text, borrowed where it has no escapes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'de: 'a, 'a> Leaf<'de> for Text<'a> {
    fn of_text(text: &str) -> Self {
        Text(Cow::Owned(text.to_owned()))
    }
    fn of_borrowed_text(text: &'de str) -> Self {
        Text(Cow::Borrowed(text))
    }
}
readable!(Text<'a>, 'a);

/// Content: a text, or a list of parts of which some may be reasoning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content<'a> {
    pub text: Cow<'a, str>,
    pub reasoning: bool,
    /// A part that is neither text nor reasoning.
    pub other: bool,
}

#[derive(serde::Deserialize)]
struct Part<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(default)]
    thinking: Present,
}

impl<'de: 'a, 'a> Leaf<'de> for Content<'a> {
    fn of_text(text: &str) -> Self {
        Content { text: Cow::Owned(text.to_owned()), ..Content::default() }
    }
    fn of_borrowed_text(text: &'de str) -> Self {
        Content { text: Cow::Borrowed(text), ..Content::default() }
    }
    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut content = Content::default();
        while let Some(part) = list.next_element::<Part<'de>>()? {
            if part.thinking.0 || part.kind.0 == "thinking" {
                content.reasoning = true;
            } else if !part.text.0.is_empty() {
                content.text.to_mut().push_str(&part.text.0);
            } else if part.kind.0 != "text" {
                content.other = true;
            }
        }
        Ok(content)
    }
}
readable!(Content<'a>, 'a);
