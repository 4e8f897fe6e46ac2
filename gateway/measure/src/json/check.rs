//! Whether bytes are JSON.
//!
//! Apart because the reader relies on it and then checks nothing itself. Must not know: what is read.

use super::{DEPTH_MAX, is_space};

/// Checks the grammar without recursion.
pub(super) struct Check<'a> {
    json: &'a [u8],
    at: usize,
    /// One bit for each level, the innermost lowest: set for a list.
    lists: u128,
    depth: u32,
}

impl<'a> Check<'a> {
    pub(super) fn new(json: &'a [u8]) -> Self {
        Check { json, at: 0, lists: 0, depth: 0 }
    }

    /// One value and nothing but white space behind it. None where the grammar is broken, as from all below.
    pub(super) fn whole(&mut self) -> Option<()> {
        loop {
            if self.value()? == Begun::Nested {
                continue;
            }
            loop {
                if self.depth == 0 {
                    self.spaces();
                    return (self.at == self.json.len()).then_some(());
                }
                let in_list = self.lists & 1 == 1;
                match (self.next()?, in_list) {
                    (b',', true) => break,
                    (b',', false) => {
                        self.key()?;
                        break;
                    }
                    (b']', true) | (b'}', false) => {
                        self.lists >>= 1;
                        self.depth -= 1;
                    }
                    _ => return None,
                }
            }
        }
    }

    fn spaces(&mut self) {
        while self.json.get(self.at).is_some_and(|byte| is_space(*byte)) {
            self.at += 1;
        }
    }

    /// The next byte that is no white space.
    fn next(&mut self) -> Option<u8> {
        self.spaces();
        let byte = *self.json.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn value(&mut self) -> Option<Begun> {
        match self.next()? {
            b'{' => {
                self.nest(0)?;
                self.spaces();
                if self.json.get(self.at) == Some(&b'}') {
                    return Some(Begun::Whole);
                }
                self.key()?;
                Some(Begun::Nested)
            }
            b'[' => {
                self.nest(1)?;
                self.spaces();
                let empty = self.json.get(self.at) == Some(&b']');
                Some(if empty { Begun::Whole } else { Begun::Nested })
            }
            b'"' => self.text().map(|()| Begun::Whole),
            b't' => self.word(b"rue"),
            b'f' => self.word(b"alse"),
            b'n' => self.word(b"ull"),
            b'-' => {
                let first = *self.json.get(self.at)?;
                self.at += 1;
                self.number(first)
            }
            first => self.number(first),
        }
    }

    fn nest(&mut self, list: u128) -> Option<()> {
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        self.lists = (self.lists << 1) | list;
        Some(())
    }

    /// A key with its colon.
    fn key(&mut self) -> Option<()> {
        if self.next()? != b'"' {
            return None;
        }
        self.text()?;
        (self.next()? == b':').then_some(())
    }

    fn word(&mut self, rest: &[u8]) -> Option<Begun> {
        let fits = self.json.get(self.at..)?.starts_with(rest);
        self.at += rest.len();
        fits.then_some(Begun::Whole)
    }

    fn text(&mut self) -> Option<()> {
        loop {
            let byte = *self.json.get(self.at)?;
            self.at += 1;
            match byte {
                b'"' => return Some(()),
                0..=0x1f => return None,
                b'\\' => {
                    let escaped = *self.json.get(self.at)?;
                    self.at += 1;
                    match escaped {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                        b'u' => {
                            let digits = self.json.get(self.at..self.at + 4)?;
                            if !digits.iter().all(u8::is_ascii_hexdigit) {
                                return None;
                            }
                            self.at += 4;
                        }
                        _ => return None,
                    }
                }
                _ => {}
            }
        }
    }

    fn number(&mut self, first: u8) -> Option<Begun> {
        match first {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return None,
        }
        if self.json.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.some_digits()?;
        }
        if matches!(self.json.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.json.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.some_digits()?;
        }
        Some(Begun::Whole)
    }

    fn digits(&mut self) {
        while self.json.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    fn some_digits(&mut self) -> Option<()> {
        let from = self.at;
        self.digits();
        (self.at > from).then_some(())
    }
}

/// What became of the value that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// It is over; of an object or a list without members but for its closing mark.
    Whole,
    /// An object or a list, whose first value comes next.
    Nested,
}
