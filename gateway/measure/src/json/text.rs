//! What stands between the quotes of a JSON text, its escapes resolved on the way.
//!
//! Apart because text is looked at byte by byte and never made into a string. Must not know: where it stood.

/// What stands between the quotes of a text, its escapes unresolved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    pub(super) fn of(raw: &'a [u8]) -> Self {
        Text(raw)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text's bytes, in UTF-8.
    pub fn bytes(&self) -> Bytes<'a> {
        Bytes { raw: self.0, resolved: [0; 4], left: 0 }
    }

    /// The text in one piece: itself, or in the buffer if it holds escapes; empty if it does not fit there.
    pub fn within<'b>(&self, buffer: &'b mut [u8]) -> &'b [u8]
    where
        'a: 'b,
    {
        if !self.0.contains(&b'\\') {
            return self.0;
        }
        let mut length = 0;
        for byte in self.bytes() {
            let Some(place) = buffer.get_mut(length) else { return &[] };
            *place = byte;
            length += 1;
        }
        &buffer[..length]
    }
}

/// The bytes of a text with its escapes resolved. A surrogate without its other half is U+FFFD.
#[derive(Debug, Clone)]
pub struct Bytes<'a> {
    raw: &'a [u8],
    /// The character that an escape stood for; its last `left` bytes are still to come.
    resolved: [u8; 4],
    left: usize,
}

impl Bytes<'_> {
    pub fn is_empty(&self) -> bool {
        self.left == 0 && self.raw.is_empty()
    }

    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.raw.split_first()?;
        self.raw = rest;
        Some(*first)
    }

    fn hex(&mut self) -> Option<u32> {
        let (digits, rest) = self.raw.split_at_checked(4)?;
        self.raw = rest;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    fn unicode(&mut self) -> char {
        let Some(unit) = self.hex() else { return char::REPLACEMENT_CHARACTER };
        if (0xD800..0xDC00).contains(&unit) && self.raw.starts_with(b"\\u") {
            let mut ahead = self.clone();
            ahead.raw = &ahead.raw[2..];
            if let Some(low) = ahead.hex().filter(|low| (0xDC00..0xE000).contains(low)) {
                self.raw = ahead.raw;
                let code = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
                return char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            }
        }
        char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

impl Iterator for Bytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if self.left == 0 {
            let byte = self.take()?;
            if byte != b'\\' {
                return Some(byte);
            }
            let character = match self.take()? {
                b'n' => '\n',
                b't' => '\t',
                b'r' => '\r',
                b'b' => '\u{8}',
                b'f' => '\u{c}',
                b'u' => self.unicode(),
                itself => char::from(itself),
            };
            let length = character.len_utf8();
            // At the end of the array, so that the bytes still to come are its last ones.
            character.encode_utf8(&mut self.resolved[4 - length..]);
            self.left = length;
        }
        let byte = self.resolved[4 - self.left];
        self.left -= 1;
        Some(byte)
    }
}
