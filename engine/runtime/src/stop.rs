//! Finds stop strings in arriving text and holds back what may be the start of one.
//!
//! Apart so that it can be tested under every cut of the text. Must not know: tokens, sequences.

/// What a push gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// No stop string yet; the text is safe to hand out.
    Not { text: String },
    /// A stop string was found; the text before it that was not handed out yet.
    At { text: String, stop: String },
}

/// Looks for stop strings. The result does not depend on how the text is cut: the match that ends first wins,
/// of those that end together the longest.
#[derive(Debug)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// Empty stop strings are dropped.
    pub fn new(stops: &[String]) -> StopMatcher {
        StopMatcher {
            stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(),
            held: String::new(),
        }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Stopped {
        if self.stops.is_empty() {
            return Stopped::Not { text: text.to_owned() };
        }
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, stop)))
            .min_by_key(|(end, start, _)| (*end, *start));
        if let Some((_, start, stop)) = found {
            let stop = stop.clone();
            self.held.truncate(start);
            return Stopped::At { text: std::mem::take(&mut self.held), stop };
        }
        let kept = self.start_of_a_stop();
        let rest = self.held.split_off(kept);
        Stopped::Not { text: std::mem::replace(&mut self.held, rest) }
    }

    /// The held-back text, when no more will come.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the longest end of the held text that begins a stop string starts.
    fn start_of_a_stop(&self) -> usize {
        self.held
            .char_indices()
            .map(|(start, _)| start)
            .find(|start| self.stops.iter().any(|stop| stop.starts_with(&self.held[*start..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds the pieces; gives all text handed out and the stop string found.
    fn feed<'a>(stops: &[&str], pieces: impl Iterator<Item = &'a str>) -> (String, Option<String>) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut out = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                Stopped::Not { text } => out.push_str(&text),
                Stopped::At { text, stop } => {
                    out.push_str(&text);
                    return (out, Some(stop));
                }
            }
        }
        out.push_str(&matcher.finish());
        (out, None)
    }

    #[track_caller]
    fn check(stops: &[&str], text: &str, expected: &str, stop: Option<&str>) {
        let expected = (expected.to_owned(), stop.map(str::to_owned));
        assert_eq!(feed(stops, std::iter::once(text)), expected, "in one piece");
        let characters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(feed(stops, characters.iter().map(String::as_str)), expected, "by character");
        for (cut, _) in text.char_indices() {
            assert_eq!(feed(stops, [&text[..cut], &text[cut..]].into_iter()), expected, "cut at {cut}");
        }
    }

    #[test]
    fn the_first_match_to_end_wins() {
        check(&["STOP"], "go STOP now", "go ", Some("STOP"));
        check(&["STOP"], "go STO", "go STO", None);
        check(&["ab", "abc"], "xabc", "x", Some("ab"));
        check(&["abcde", "bcd"], "xabcde", "xa", Some("bcd"));
        check(&["cd", "bcd"], "abcd", "a", Some("bcd"));
        check(&["aab"], "aaab", "a", Some("aab"));
        check(&["🙂b"], "x🙂🙂b", "x🙂", Some("🙂b"));
        check(&[""], "text", "text", None);
        check(&[], "text", "text", None);
    }

    #[test]
    fn only_a_possible_start_is_held() {
        let mut matcher = StopMatcher::new(&["\n\nQ:".to_owned()]);
        assert_eq!(matcher.push("one\n"), Stopped::Not { text: "one".to_owned() });
        assert_eq!(matcher.push("\nQ"), Stopped::Not { text: String::new() });
        assert_eq!(matcher.push("uiet"), Stopped::Not { text: "\n\nQuiet".to_owned() });
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(text in "[ab]{0,24}", stops in proptest::collection::vec("[ab]{1,5}", 0..3), piece in 1usize..6) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole = feed(&stops, std::iter::once(text.as_str()));
            let pieces: Vec<String> = text.as_bytes().chunks(piece).map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
            prop_assert_eq!(feed(&stops, pieces.iter().map(String::as_str)), whole);
        }
    }
}
