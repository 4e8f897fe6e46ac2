//! JSON read where it lies: one pass that checks it, then a reader that goes through it without copying.
//!
//! Apart because every frame of every stream is read here, and that must cost no allocation; a library's typed
//! reader copies each text that holds an escape, which most pieces of generated text do. Leaves are lenient: a
//! value of an unexpected type is an absent one, since servers differ in details that must not cost a frame its
//! measurement. Must not know: which field is what.
//!
//! Grammar: RFC 8259. Not checked is what reading does not need: that text is UTF-8 and that surrogates come in
//! pairs. Nesting is bounded by [`DEPTH_MAX`].

mod check;
#[cfg(test)]
mod tests;
mod text;

use check::Check;
pub use text::{Bytes, Text};

/// Deepest nesting that is read, as in serde_json.
pub const DEPTH_MAX: u32 = 128;

/// Counts above this (2^53) are read as none: floats do not tell them apart, and no request has as many tokens.
pub const COUNT_MAX: u64 = 1 << 53;

/// Longest key with an escape that is resolved; longer than any that is looked for.
const KEY_BYTES_MAX: usize = 48;

/// Bytes that are not one JSON object, or not one of the expected shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Checks that the bytes are one JSON object and gives a reader that stands before it.
pub fn object(json: &[u8]) -> Result<Reader<'_>, Malformed> {
    let reader = Reader { json, at: 0 };
    if reader.peek() != Some(b'{') {
        return Err(Malformed);
    }
    Check::new(json).whole().ok_or(Malformed)?;
    Ok(reader)
}

/// A place in JSON that has been checked. Each method but `peek` takes the value that begins there.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    json: &'a [u8],
    at: usize,
}

/// A count as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// None there, or not a count.
    Absent,
    Known(u64),
    /// Above [`COUNT_MAX`].
    Absurd,
}

impl<'a> Reader<'a> {
    /// The first byte of the next value, which tells its type.
    pub fn peek(&self) -> Option<u8> {
        self.json.get(self.at..)?.iter().copied().find(|byte| !is_space(*byte))
    }

    fn skip_spaces(&mut self) {
        while self.json.get(self.at).is_some_and(|byte| is_space(*byte)) {
            self.at += 1;
        }
    }

    /// Goes through the members of an object. `each` takes the value or leaves it; keys of more than
    /// [`KEY_BYTES_MAX`] bytes that hold an escape come as empty. A value of another type has no members.
    pub fn members(&mut self, mut each: impl FnMut(&[u8], &mut Reader<'a>)) {
        if self.peek() != Some(b'{') {
            self.skip();
            return;
        }
        self.skip_spaces();
        self.at += 1;
        let mut buffer = [0; KEY_BYTES_MAX];
        loop {
            match self.peek() {
                Some(b'"') => {}
                Some(b',') => {
                    self.skip_spaces();
                    self.at += 1;
                    continue;
                }
                Some(_) | None => break,
            }
            let Some(key) = self.text() else { return };
            self.skip_spaces();
            self.at += 1; // the colon
            self.skip_spaces();
            let before = self.at;
            each(key.within(&mut buffer), self);
            if self.at == before {
                self.skip();
            }
        }
        self.skip_spaces();
        self.at += 1;
    }

    /// Goes through the items of a list. `each` takes the value or leaves it. A value of another type has no items.
    pub fn items(&mut self, mut each: impl FnMut(&mut Reader<'a>)) {
        if self.peek() != Some(b'[') {
            self.skip();
            return;
        }
        self.skip_spaces();
        self.at += 1;
        loop {
            match self.peek() {
                Some(b']') | None => break,
                Some(b',') => {
                    self.skip_spaces();
                    self.at += 1;
                }
                Some(_) => {
                    self.skip_spaces();
                    let before = self.at;
                    each(self);
                    if self.at == before {
                        self.skip();
                    }
                    if self.at == before {
                        return; // a stray byte, which a checked text does not have
                    }
                }
            }
        }
        self.skip_spaces();
        self.at += 1;
    }

    /// The place of a member's value, the first of that name. The reader itself does not move.
    pub fn find(&self, name: &[u8]) -> Option<Reader<'a>> {
        let mut found = None;
        let mut reader = *self;
        reader.members(|key, value| {
            if found.is_none() && key == name {
                found = Some(*value);
            }
            if found.is_some() {
                value.at = value.json.len(); // ends the search
            }
        });
        found
    }

    /// A text; None of another type.
    pub fn text(&mut self) -> Option<Text<'a>> {
        let is_text = self.peek() == Some(b'"');
        let from = self.value_start();
        self.skip();
        let raw = self.json.get(from + 1..self.at.checked_sub(1)?)?;
        is_text.then_some(Text::of(raw))
    }

    /// Whether a text is there and not empty.
    pub fn filled(&mut self) -> bool {
        self.text().is_some_and(|text| !text.is_empty())
    }

    /// Whether a value other than null is there.
    pub fn present(&mut self) -> bool {
        let present = self.peek().is_some_and(|byte| byte != b'n');
        self.skip();
        present
    }

    /// A number of any kind.
    pub fn number(&mut self) -> Option<f64> {
        let digits = self.peek().is_some_and(|byte| byte == b'-' || byte.is_ascii_digit());
        let from = self.value_start();
        self.skip();
        let text = std::str::from_utf8(self.json.get(from..self.at)?).ok()?;
        if digits { text.parse().ok() } else { None }
    }

    /// A count. Some servers write 12.0, which is one; a negative or broken number is none.
    pub fn count(&mut self) -> Count {
        match self.number() {
            Some(number) if number > COUNT_MAX as f64 => Count::Absurd,
            // Up to the bound the conversion is exact.
            Some(number) if number >= 0.0 && number.fract() == 0.0 => Count::Known(number as u64),
            Some(_) | None => Count::Absent,
        }
    }

    /// Passes over one value.
    pub fn skip(&mut self) {
        self.skip_spaces();
        match self.json.get(self.at) {
            Some(b'"') => self.skip_text(),
            Some(b'{' | b'[') => self.skip_nested(),
            Some(_) => {
                let rest = &self.json[self.at..];
                let end = rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']') || is_space(*byte));
                self.at += end.unwrap_or(rest.len());
            }
            None => {}
        }
    }

    fn skip_text(&mut self) {
        self.at = text_end(self.json, self.at + 1).unwrap_or(self.json.len());
    }

    fn skip_nested(&mut self) {
        let mut depth = 0_u32;
        while let Some(byte) = self.json.get(self.at) {
            match byte {
                b'"' => {
                    self.skip_text();
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    fn value_start(&mut self) -> usize {
        self.skip_spaces();
        self.at
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The offset behind the closing quote of a text whose inside begins at `from`.
fn text_end(json: &[u8], from: usize) -> Option<usize> {
    // Texts are short: a loop is faster than a vector search that has to be called.
    let mut at = from;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}
