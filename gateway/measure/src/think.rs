//! A leading `<think>…</think>` inside content, told apart as it arrives.
//!
//! Apart because the marks may be cut anywhere between deltas. White space before the opening mark is allowed;
//! the marks belong to the reasoning; what follows the closing mark is body. Must not know: time.

const OPEN: &[u8] = b"<think>";
const CLOSE: &[u8] = b"</think>";

/// Where one choice stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Think {
    /// Content is body, without looking.
    Off,
    /// Nothing but white space and this many bytes of the opening mark has come.
    Before(usize),
    /// Inside, with this many bytes of a closing mark.
    Inside(usize),
    /// The reasoning is over, or there was none.
    Over,
}

/// What a piece of content turned out to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub reasoning: bool,
    pub body: bool,
    /// It may still be either; what comes next decides about this and everything undecided before.
    pub undecided: bool,
}

impl Think {
    /// Takes the next piece of content, which is not empty.
    pub fn push(&mut self, text: impl Iterator<Item = u8>) -> Seen {
        let mut seen = Seen::default();
        for byte in text {
            match *self {
                Think::Off | Think::Over => {
                    seen.body = true;
                    return seen;
                }
                Think::Before(0) if byte.is_ascii_whitespace() => {}
                Think::Before(matched) if byte == OPEN[matched] => {
                    *self =
                        if matched + 1 == OPEN.len() { Think::Inside(0) } else { Think::Before(matched + 1) };
                }
                Think::Before(_) => {
                    *self = Think::Over;
                    seen.body = true;
                    return seen;
                }
                Think::Inside(matched) => *self = inside(matched, byte),
            }
            seen.reasoning |= matches!(self, Think::Inside(_) | Think::Over);
        }
        seen.undecided = matches!(self, Think::Before(_));
        seen
    }
}

/// Goes on looking for the closing mark, which holds its first byte only once, so that a failed match begins anew.
fn inside(matched: usize, byte: u8) -> Think {
    if byte == CLOSE[matched] {
        if matched + 1 == CLOSE.len() { Think::Over } else { Think::Inside(matched + 1) }
    } else {
        Think::Inside(usize::from(byte == CLOSE[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each piece with what it is: r(easoning), b(ody), u(ndecided).
    #[track_caller]
    fn check(pieces: &[(&str, &str)]) {
        let mut think = Think::Before(0);
        for (text, expected) in pieces {
            let seen = think.push(text.bytes());
            let mut letters = String::new();
            for (is, letter) in [(seen.reasoning, 'r'), (seen.body, 'b'), (seen.undecided, 'u')] {
                if is {
                    letters.push(letter);
                }
            }
            assert_eq!(letters, *expected, "{text:?} in {pieces:?}");
        }
    }

    #[test]
    fn marks_are_found_wherever_they_are_cut() {
        check(&[("<think>a</think>b", "rb")]);
        check(&[("<think>a</think>", "r"), ("b", "b")]);
        check(&[
            ("\n", "u"),
            (" <th", "u"),
            ("ink", "u"),
            (">", "r"),
            ("a</", "r"),
            ("think>", "r"),
            ("\n", "b"),
        ]);
        check(&[("<think>", "r"), ("a << b </thin</think>c", "rb"), ("<think>", "b")]);
        check(&[("<thin king", "b"), ("<think>", "b")]);
        check(&[("<", "u"), ("b>", "b")]);
        check(&[("Hello <think>", "b")]);
        check(&[("<think>ü</think>é", "rb")]);
    }
}
