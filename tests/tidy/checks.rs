//! The rules over one file, each a function from the file to what is wrong with it.
//!
//! Apart from the tree and the exceptions, so that each rule is shown to fail on a small bad snippet at the end
//! of this file. Must not know: which files there are.

use crate::source::Source;

/// What is wrong, and on which line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub path: String,
    pub line: usize,
    pub what: String,
}

pub const FUNCTION_LINES_MAX: usize = 70;
pub const FILE_LINES_MAX: usize = 600;

/// Shortest opening comment, in characters, that can say what a file is and why it is apart.
const OPENING_CHARS_MIN: usize = 60;

/// Folders of the cores, with a closing slash.
pub const CORES: &[&str] = &[
    "gateway/measure/src/",
    "gateway/quality/src/",
    "engine/control/src/",
    "engine/kernels/src/",
    "engine/runtime/src/",
];

/// What a core never names: the world belongs to the shells.
const NOT_IN_CORES: &[&str] = &[
    "std::time::Instant",
    "std::time::SystemTime",
    "std::fs",
    "std::net",
    "std::os::unix::net",
    "std::env",
    "tokio",
    "log",
    "tracing",
];

/// Libraries with one importer in each program that has them.
const ONLY_IMPORTERS: &[(&str, &[&str])] = &[
    ("cudarc", &["engine/kernels/src/cuda"]),
    ("hf_hub", &["engine/server/src/pull"]),
    ("pingora", &["gateway/proxy/src/"]),
    ("prometheus", &["gateway/proxy/src/sinks/prometheus", "engine/server/src/exposition"]),
    ("figment", &["config/src/"]),
];

/// Where `unsafe` is at home: instructions of one processor family, the pool that shares slices with its workers,
/// and calls to a driver. The plain kernels, which are the oracle, stay without it.
const UNSAFE_HOMES: &[&str] = &["engine/kernels/src/cpu/", "engine/kernels/src/cuda/"];
const UNSAFE_NEVER: &[&str] = &["engine/kernels/src/cpu/naive", "engine/kernels/src/cpu/mod.rs"];

fn violation(source: &Source, line: usize, what: String) -> Violation {
    Violation { path: source.path.clone(), line, what }
}

/// A `//!` that says something opens the file.
pub fn opening(source: &Source) -> Vec<Violation> {
    let opening: Vec<&str> = source.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let length = opening.iter().map(|line| line.trim().chars().count()).sum::<usize>();
    if length >= OPENING_CHARS_MIN {
        return Vec::new();
    }
    vec![violation(
        source,
        1,
        "no `//!` that says what this is, why it is apart, what it must not know".to_owned(),
    )]
}

pub fn file_length(source: &Source) -> Vec<Violation> {
    let lines = source.text.lines().count();
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![violation(source, lines, format!("{lines} lines in a file, at most {FILE_LINES_MAX}"))]
}

pub fn function_length(source: &Source) -> Vec<Violation> {
    let long = |(name, lines): (String, std::ops::Range<usize>)| {
        let length = lines.end - lines.start + 1;
        let what = format!("{length} lines in `{name}`, at most {FUNCTION_LINES_MAX}");
        (length > FUNCTION_LINES_MAX).then(|| violation(source, lines.start, what))
    };
    source.functions().into_iter().filter_map(long).collect()
}

/// Nothing that panics without a reason, and no leftovers, outside tests.
pub fn leftovers(source: &Source) -> Vec<Violation> {
    let patterns = [".unwrap()", ".unwrap_err()", "todo!", "unimplemented!", "dbg!"];
    let found = |pattern: &&'static str| {
        let pattern = *pattern;
        let offsets = source.finds(pattern).into_iter().filter(|offset| !source.is_test(*offset));
        offsets
            .map(move |offset| violation(source, source.line(offset), format!("`{pattern}` outside tests")))
    };
    patterns.iter().flat_map(found).collect()
}

pub fn ignored_tests(source: &Source) -> Vec<Violation> {
    let ignored = |offset| violation(source, source.line(offset), "an ignored test".to_owned());
    source.finds("#[ignore").into_iter().map(ignored).collect()
}

/// Unsafe code stands only where it is at home.
pub fn unsafe_code(source: &Source) -> Vec<Violation> {
    let below = |places: &[&str]| places.iter().any(|place| source.path.starts_with(place));
    if below(UNSAFE_HOMES) && !below(UNSAFE_NEVER) {
        return Vec::new();
    }
    let found = |offset| violation(source, source.line(offset), "`unsafe`".to_owned());
    source.finds("unsafe").into_iter().map(found).collect()
}

/// A core names no clock, no files, no network, no environment, no runtime and no log outside its tests.
pub fn core_reaches_out(source: &Source) -> Vec<Violation> {
    if !CORES.iter().any(|core| source.path.starts_with(core)) {
        return Vec::new();
    }
    let found = |(offset, name): (usize, &str)| {
        violation(source, source.line(offset), format!("a core names `{name}`"))
    };
    let names =
        NOT_IN_CORES.iter().flat_map(|name| names(source, name).into_iter().map(|offset| (offset, *name)));
    names.filter(|(offset, _)| !source.is_test(*offset)).map(found).collect()
}

/// Each of these libraries is named below one folder or in one file only.
pub fn only_importers(source: &Source) -> Vec<Violation> {
    let is_home = |homes: &[&str]| homes.iter().any(|home| source.path.starts_with(home));
    let others = ONLY_IMPORTERS.iter().filter(|(_, homes)| !is_home(homes));
    let found = |(library, homes): &(&str, &[&str])| {
        let what = format!("`{library}` is named outside {}", homes.join(" and "));
        let offsets = names(source, library).into_iter();
        offsets.map(|offset| violation(source, source.line(offset), what.clone())).collect::<Vec<_>>()
    };
    others.flat_map(found).collect()
}

/// Offsets at which a path or something below it is imported, or written in full.
fn names(source: &Source, path: &str) -> Vec<usize> {
    let imported = source.imports().into_iter().filter(|(_, import)| {
        let import = import.trim_start_matches("::");
        import.strip_prefix(path).is_some_and(|rest| {
            let renamed = rest.strip_prefix("as").is_some_and(|name| name.starts_with(char::is_uppercase));
            rest.is_empty() || rest.starts_with("::") || renamed
        })
    });
    let mut offsets: Vec<usize> = imported.map(|(offset, _)| offset).collect();
    let uses = source.finds("use");
    let inline = source.finds(path).into_iter().filter(|offset| {
        let before = &source.code[..*offset];
        let first = match before.strip_suffix("::") {
            Some(before) => !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '>'),
            None => true,
        };
        let is_path = path.contains("::") || source.code[offset + path.len()..].starts_with("::");
        let end = |start: usize| start + source.code[start..].find(';').unwrap_or(0);
        first && is_path && !uses.iter().any(|start| (*start..end(*start)).contains(offset))
    });
    offsets.extend(inline);
    offsets.sort_unstable();
    offsets
}

/// Each rule finds its bad snippet on the line given, and leaves the good one alone.
#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rule: fn(&Source) -> Vec<Violation>, path: &str, bad: &str, line: usize, good: &str) {
        let lines =
            |text: &str| rule(&Source::new(path, text)).iter().map(|found| found.line).collect::<Vec<_>>();
        assert_eq!(lines(bad), [line], "in {bad}");
        assert_eq!(lines(good), [0; 0], "in {good}");
    }

    #[test]
    fn openings() {
        let good = "//! Frames of a stream, apart because any chunking gives the same ones.\n//! Must not know: clocks.\n";
        for bad in [
            "fn a() {}\n",
            "//! (to be written)\n",
            "// Not a doc comment, however long it may be, and it is long enough.\n",
        ] {
            check(opening, "a/src/lib.rs", bad, 1, good);
        }
    }

    #[test]
    fn lengths() {
        let function = |lines: usize| format!("\nfn a() {{\n{}}}\n", "    b();\n".repeat(lines - 2));
        check(function_length, "a/src/lib.rs", &function(71), 2, &function(70));
        check(file_length, "a/src/lib.rs", &"\n".repeat(601), 601, &"\n".repeat(600));
    }

    #[test]
    fn what_is_left_over() {
        for bad in ["x.unwrap()", "x\n.unwrap_err()", "todo!()", "unimplemented!(\"a\")", "dbg!(x)"] {
            let good = format!(
                "#[cfg(test)]\nmod tests {{ fn a() {{ {bad} }} }}\n/* {bad} */\nconst A: &str = {bad:?};"
            );
            let line = bad.lines().count();
            check(leftovers, "a/src/lib.rs", bad, line, &good);
        }
        check(
            leftovers,
            "a/src/lib.rs",
            "\nx.unwrap();",
            2,
            "x.unwrap_or(1); mytodo!(); x.expect(\"a reason\")",
        );
        check(
            ignored_tests,
            "a/src/lib.rs",
            "#[test]\n#[ignore = \"slow\"]\nfn a() {}",
            2,
            "#[test]\nfn ignore() {}",
        );
    }

    #[test]
    fn unsafe_is_a_word() {
        let good = "#![deny(unsafe_op_in_unsafe_fn)]\n// unsafe\nlet a = \"unsafe\";";
        let bad = "fn a() {\n    unsafe { b() }\n}";
        check(unsafe_code, "a/src/lib.rs", bad, 2, good);
        check(unsafe_code, "engine/kernels/src/cpu/naive.rs", bad, 2, good);
        assert_eq!(unsafe_code(&Source::new("engine/kernels/src/cpu/avx2.rs", bad)), []);
    }

    #[test]
    fn cores() {
        let good = "use std::time::Duration;\nuse crate::log::Line;\nlet log = std::cmp::max(a, b);\nenv!(\"A\");\nlog.push(1);";
        for bad in [
            "use std::time::Instant;",
            "use std::{collections::BTreeMap, time::{Duration, SystemTime}};",
            "use std::time::Instant as Now;",
            "use std::{fs, io};",
            "use std::fs::File;",
            "let now = std::time::Instant::now();",
            "let file = ::std::fs::read(path);",
            "std::env::var(name)",
            "use std::os::unix::net::UnixStream;",
            "tokio::spawn(a)",
            "use tokio::sync::mpsc;",
            "log::info!(\"a\");",
            "tracing::info!(a);",
        ] {
            check(core_reaches_out, "engine/runtime/src/a.rs", bad, 1, good);
            let tests = format!("#[cfg(test)]\nmod tests {{\n    {bad}\n}}");
            check(core_reaches_out, "engine/runtime/src/a.rs", bad, 1, &tests);
            assert_eq!(core_reaches_out(&Source::new("engine/server/src/a.rs", bad)), []);
        }
    }

    #[test]
    fn importers() {
        let good = "use crate::sinks::prometheus::Sink;\nmod prometheus;";
        for bad in ["use prometheus::Registry;", "let a = prometheus::Registry::new();"] {
            check(only_importers, "gateway/proxy/src/app.rs", bad, 1, good);
            assert_eq!(only_importers(&Source::new("gateway/proxy/src/sinks/prometheus.rs", bad)), []);
        }
    }
}
