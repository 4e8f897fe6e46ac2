//! A Rust file as the checks see it: code without the insides of comments and literals, and which lines are tests.
//!
//! Apart from the checks so that each of them is a few lines over plain text. A lexer of its own and no parser,
//! since a parser sees nothing inside macro calls. Must not know: any rule.

use std::ops::Range;

/// One file with its path from the root of the repository, parts joined by `/`.
pub struct Source {
    pub path: String,
    pub text: String,
    /// The text, byte for byte as long, with comments and the insides of literals blank.
    pub code: String,
    /// Byte ranges of test code; the whole file for one that is only compiled for tests.
    tests: Vec<Range<usize>>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let code = blank(text);
        let whole =
            ["tests", "benches", "examples"].iter().any(|folder| path.split('/').any(|part| part == *folder));
        let tests = if whole { std::iter::once(0..text.len()).collect() } else { test_items(&code) };
        Source { path: path.to_owned(), text: text.to_owned(), code, tests }
    }

    /// Declares the whole file to be test code, for a module that another file declares under `cfg(test)`.
    pub fn mark_as_test(&mut self) {
        self.tests = std::iter::once(0..self.text.len()).collect();
    }

    pub fn is_test(&self, offset: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&offset))
    }

    /// Line of an offset, from 1.
    pub fn line(&self, offset: usize) -> usize {
        self.code[..offset].matches('\n').count() + 1
    }

    /// Offsets at which a pattern stands in code, not inside a longer word.
    pub fn finds(&self, pattern: &str) -> Vec<usize> {
        let starts_in_word = pattern.starts_with(in_word);
        let ends_in_word = pattern.ends_with(in_word);
        let alone = |offset: &usize| {
            let before = self.code[..*offset].chars().next_back().is_some_and(in_word);
            let after = self.code[offset + pattern.len()..].chars().next().is_some_and(in_word);
            !(starts_in_word && before || ends_in_word && after)
        };
        self.code.match_indices(pattern).map(|(offset, _)| offset).filter(alone).collect()
    }

    /// Paths of files that may hold the modules declared here for tests only.
    pub fn test_modules(&self) -> Vec<String> {
        let (folder, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let stem = file.trim_end_matches(".rs");
        let inside = if ["lib", "main", "mod"].contains(&stem) {
            folder.to_owned()
        } else {
            format!("{folder}/{stem}")
        };
        let declared = self.tests.iter().filter_map(|range| {
            let item = self.code[range.clone()].strip_suffix(';')?;
            let (_, name) = item.rsplit_once("mod ")?;
            Some(name.trim().to_owned())
        });
        declared.flat_map(|name| [format!("{inside}/{name}.rs"), format!("{inside}/{name}/mod.rs")]).collect()
    }

    /// Each function with a body: its name and the lines from `fn` to the closing brace.
    pub fn functions(&self) -> Vec<(String, Range<usize>)> {
        let function = |offset: usize| {
            let rest = &self.code[offset + 2..];
            let name: String = rest.trim_start().chars().take_while(|c| in_word(*c)).collect();
            let end = item_end(&self.code, offset)?;
            let has_body = !name.is_empty() && self.code[..end].ends_with('}');
            has_body.then(|| (name, self.line(offset)..self.line(end - 1)))
        };
        self.finds("fn").into_iter().filter_map(function).collect()
    }

    /// Every path that a `use` brings in, groups written out, with the offset of its `use`.
    pub fn imports(&self) -> Vec<(usize, String)> {
        let mut imports = Vec::new();
        for offset in self.finds("use") {
            let rest = &self.code[offset + 3..];
            let Some(end) = rest.find(';') else { continue };
            let tree: String = rest[..end].split_whitespace().collect::<Vec<_>>().join(" ");
            imports.extend(written_out(&tree).into_iter().map(|path| (offset, path)));
        }
        imports
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn written_out(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else { return vec![tree.replace(' ', "")] };
    let inside = rest.rsplit_once('}').map_or(rest, |(inside, _)| inside);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (offset, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[start..offset]);
                start = offset + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[start..]);
    let nested = parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(written_out);
    nested.map(|part| format!("{}{part}", prefix.replace(' ', ""))).collect()
}

/// Where the item that holds this offset ends: past its closing brace, or past its semicolon.
fn item_end(code: &str, offset: usize) -> Option<usize> {
    let (mut round, mut curly) = (0_i32, 0_i32);
    for (at, c) in code[offset..].char_indices() {
        match c {
            '(' | '[' => round += 1,
            ')' | ']' => round -= 1,
            '{' => curly += 1,
            '}' => {
                curly -= 1;
                if curly == 0 && round == 0 {
                    return Some(offset + at + 1);
                }
            }
            ';' if curly == 0 && round == 0 => return Some(offset + at + 1),
            _ => {}
        }
        if round < 0 || curly < 0 {
            return None;
        }
    }
    None
}

/// Items under `#[cfg(test)]` (also inside `all`), from the attribute to their end.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let attribute = |(offset, _): (usize, &str)| {
        let rest = &code[offset..];
        let end = rest.find(']')?;
        let is_test = rest[..end].split(|c| !in_word(c)).any(|word| word == "test");
        let item = offset + end + 1;
        (is_test && !rest[..end].contains("not(test")).then_some(offset..item_end(code, item)?)
    };
    code.match_indices("#[cfg(").filter_map(attribute).collect()
}

/// Blanks comments and the insides of literals, keeping line ends and length.
fn blank(text: &str) -> String {
    let mut blanked = text.as_bytes().to_vec();
    let mut offset = 0;
    while offset < text.len() {
        let rest = &text[offset..];
        let before = text[..offset].chars().next_back();
        let (quiet, length) = literal_or_comment(rest, before);
        for byte in &mut blanked[offset + quiet.start..offset + quiet.end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        offset += length;
    }
    String::from_utf8(blanked).expect("whole characters were replaced by spaces")
}

/// The part to blank at the start of this text, and how far to go on.
fn literal_or_comment(rest: &str, before: Option<char>) -> (Range<usize>, usize) {
    if rest.starts_with("//") {
        let end = rest.find('\n').unwrap_or(rest.len());
        return (0..end, end);
    }
    if rest.starts_with("/*") {
        let end = block_comment_end(rest);
        return (0..end, end);
    }
    if rest.starts_with('r') && !before.is_some_and(|c| in_word(c) && c != 'b' && c != 'c') {
        let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
        if rest[1 + hashes..].starts_with('"') {
            let start = hashes + 2;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = rest[start..].find(&close).map_or(rest.len(), |end| start + end);
            return (start..end, (end + close.len()).min(rest.len()));
        }
    }
    if rest.starts_with('"') {
        let end = unescaped(rest, '"');
        return (1..end, (end + 1).min(rest.len()));
    }
    if let Some(inside) = rest.strip_prefix('\'') {
        let mut chars = inside.chars();
        let first = chars.next();
        if first == Some('\\') || (first.is_some() && chars.next() == Some('\'')) {
            let end = unescaped(rest, '\'');
            return (1..end, (end + 1).min(rest.len()));
        }
    }
    (0..0, rest.chars().next().map_or(1, char::len_utf8))
}

/// Offset of the quote that closes the literal at the start of this text.
fn unescaped(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (offset, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return offset,
            _ => {}
        }
    }
    rest.len()
}

/// Block comments nest.
fn block_comment_end(rest: &str) -> usize {
    let (mut depth, mut offset) = (0, 0);
    while let Some(at) = rest[offset..].find(['/', '*']) {
        offset += at;
        if rest[offset..].starts_with("/*") {
            depth += 1;
            offset += 2;
        } else if rest[offset..].starts_with("*/") {
            depth -= 1;
            offset += 2;
            if depth == 0 {
                return offset;
            }
        } else {
            offset += 1;
        }
    }
    rest.len()
}

#[test]
fn literals_and_comments_are_blank() {
    for (text, expected) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"f("unsafe \" {", x)"#, r#"f("           ", x)"#),
        ("r\"a\\\" + b", "r\"  \" + b"),
        ("r#\"a\"b\"# c", "r#\"   \"# c"),
        ("br#\"a\"# c", "br#\" \"# c"),
        ("for r in x", "for r in x"),
        ("'{' '\\'' b'}' 'a", "' ' '  ' b' ' 'a"),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ("'é' é", "'  ' é"),
        ("\"é", "\"  "),
    ] {
        assert_eq!(blank(text), expected, "{text}");
    }
}

#[test]
fn tests_are_told_from_code() {
    let text =
        "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(not(test))]\nfn d() {}\n";
    let source = Source::new("a/src/lib.rs", text);
    let names: Vec<bool> = source.finds("fn").into_iter().map(|offset| source.is_test(offset)).collect();
    assert_eq!(names, [false, true, false, false]);
    let declares = Source::new("a/src/b.rs", "#[cfg(test)]\nmod tests;\nmod other;\n");
    assert_eq!(declares.test_modules(), ["a/src/b/tests.rs", "a/src/b/tests/mod.rs"]);
    assert!(Source::new("a/tests/b.rs", "fn a() {}").is_test(0));
}

#[test]
fn functions_have_their_length() {
    let text = "trait T {\n    fn none(&self);\n    fn one(&self) -> [u8; 3] { x }\n}\nfn two(\n    f: fn(u8),\n) {\n    '}';\n}\n";
    let functions = Source::new("a/src/lib.rs", text).functions();
    assert_eq!(functions, [("one".to_owned(), 3..3), ("two".to_owned(), 5..9)]);
}

#[test]
fn imports_are_written_out() {
    let text = "use std::{fs, time::{Duration, Instant as Now}};\npub use a::b;\n";
    let paths: Vec<String> =
        Source::new("a/src/lib.rs", text).imports().into_iter().map(|(_, path)| path).collect();
    assert_eq!(paths, ["std::fs", "std::time::Duration", "std::time::InstantasNow", "a::b"]);
}
