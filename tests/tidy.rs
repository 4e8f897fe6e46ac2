//! The house rules that a compiler does not hold, as tests over the repository's text.
//!
//! Apart from every crate because it reads them all. The rules are in `tidy/`; here are the files that each is
//! held against, and the exceptions: named, with a reason, and only ever fewer, since an unused one fails too. Must
//! not know: what the code does.

#[path = "tidy/checks.rs"]
mod checks;
#[path = "tidy/graph.rs"]
mod graph;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/words.rs"]
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use checks::Violation;
use source::Source;

/// A file (or a folder, with a closing slash) that a rule does not hold for, and why.
type Exception = (&'static str, &'static str);

/// `unsafe` outside the kernels.
const UNSAFE: &[Exception] =
    &[("engine/server/src/mapped.rs", "mapping the weights' files is unsafe, and the kernels know no files")];

const NONE: &[Exception] = &[];

/// Folders that hold nothing of ours.
const NOT_OURS: &[&str] = &[".git", ".venv", "__pycache__", "node_modules", "target"];

/// Ends of names of text files that people write.
const TEXT: &[&str] = &[
    "rs", "toml", "md", "py", "js", "mjs", "ts", "sh", "json", "yaml", "yml", "cu", "cuh", "html", "css",
    "service", "jinja", "tpl", "run", "up",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository")
}

/// Every text file of the repository as (path from its root, text), in order of paths.
fn files() -> Vec<(String, String)> {
    let (mut folders, mut files) = (vec![root().to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the repository can be read") {
            let path = entry.expect("the repository can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !NOT_OURS.contains(&name.as_str()) {
                folders.push(path);
            } else if TEXT.contains(&name.rsplit('.').next().unwrap_or_default()) {
                files.push(path);
            }
        }
    }
    files.sort();
    let text = |path: PathBuf| {
        let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
        // A file that is being replaced while the test runs, or is no text, has no lines to judge.
        Some((name, fs::read_to_string(&path).ok()?))
    };
    files.into_iter().filter_map(text).collect()
}

/// Every Rust file.
fn sources() -> Vec<Source> {
    let files = files();
    let rust = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let mut sources: Vec<Source> = rust.map(|(path, text)| Source::new(path, text)).collect();
    let for_tests: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
    sources.iter_mut().filter(|source| for_tests.contains(&source.path)).for_each(Source::mark_as_test);
    assert!(sources.len() > 30, "only {} Rust files were found", sources.len());
    sources
}

/// What breaks the rule and is no exception, and exceptions that nothing needs.
fn complaints(violations: &[Violation], exceptions: &[Exception]) -> Vec<String> {
    let covers = |(place, _): &Exception, violation: &Violation| match place.ends_with('/') {
        true => violation.path.starts_with(place),
        false => violation.path == *place,
    };
    let broken = violations
        .iter()
        .filter(|violation| !exceptions.iter().any(|exception| covers(exception, violation)))
        .map(|Violation { path, line, what }| format!("{path}:{line}: {what}"));
    let unused = exceptions
        .iter()
        .filter(|exception| !violations.iter().any(|violation| covers(exception, violation)))
        .map(|(place, _)| format!("{place}: an exception that nothing needs any more"));
    let unfounded =
        exceptions.iter().filter(|(_, why)| why.len() < 10).map(|(place, _)| format!("{place}: why?"));
    broken.chain(unused).chain(unfounded).collect()
}

#[track_caller]
fn held(violations: Vec<Violation>, exceptions: &[Exception]) {
    let complaints = complaints(&violations, exceptions);
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

#[track_caller]
fn held_for_sources(rule: fn(&Source) -> Vec<Violation>, exceptions: &[Exception]) {
    held(sources().iter().flat_map(rule).collect(), exceptions);
}

#[test]
fn every_file_says_what_it_is() {
    held_for_sources(checks::opening, NONE);
}

#[test]
fn files_are_short() {
    held_for_sources(checks::file_length, NONE);
}

#[test]
fn functions_are_short() {
    held_for_sources(checks::function_length, NONE);
}

#[test]
fn nothing_is_left_over() {
    held_for_sources(checks::leftovers, NONE);
}

#[test]
fn no_test_is_ignored() {
    held_for_sources(checks::ignored_tests, NONE);
}

#[test]
fn unsafe_is_where_it_may_be() {
    held_for_sources(checks::unsafe_code, UNSAFE);
}

#[test]
fn cores_do_not_reach_out() {
    held_for_sources(checks::core_reaches_out, NONE);
}

#[test]
fn libraries_have_one_importer() {
    held_for_sources(checks::only_importers, NONE);
}

#[test]
fn dependencies_follow_the_table() {
    let files = files();
    let manifests: Vec<_> = files.iter().filter(|(path, _)| path.ends_with("/Cargo.toml")).collect();
    assert!(manifests.len() >= 8, "only {} manifests were found", manifests.len());
    held(manifests.iter().flat_map(|(path, text)| graph::dependencies(path, text)).collect(), NONE);
}

/// Each core repeats the rules for cores in a clippy.toml of its own, which is the only one that clippy then reads.
#[test]
fn every_core_has_its_clippy_rules() {
    let without = |core: &&&str| {
        let folder = root().join(core).join("..");
        let rules = fs::read_to_string(folder.join("clippy.toml")).unwrap_or_default();
        folder.join("Cargo.toml").exists() && !rules.contains("std::time::Instant")
    };
    let without: Vec<_> = checks::CORES.iter().filter(without).collect();
    assert!(without.is_empty(), "{without:?} have no clippy.toml that forbids clocks");
}

#[test]
fn banned_words_do_not_occur() {
    held(files().iter().flat_map(|(path, text)| words::banned_words(path, text)).collect(), NONE);
}

#[test]
fn metrics_end_in_their_unit_and_are_real() {
    let path = "gateway/METRICS.md";
    let files = files();
    let (_, list) = files.iter().find(|(found, _)| found == path).expect("the list of metrics exists");
    assert!(list.contains("pitot_"), "the list of metrics is empty");
    let boards = files.iter().filter(|(path, _)| {
        path.starts_with("deploy/") && [".json", ".yaml", ".yml"].iter().any(|end| path.ends_with(end))
    });
    let unknown = boards.flat_map(|(path, text)| words::unknown_metrics(path, text, list));
    held(words::metric_units(path, list).into_iter().chain(unknown).collect(), NONE);
}

#[test]
fn configuration_keys_are_documented() {
    let files = files();
    let defaults: Vec<_> = files
        .iter()
        .filter(|(path, _)| ["config/pitot.toml", "config/engine.toml"].contains(&path.as_str()))
        .collect();
    assert_eq!(defaults.len(), 2);
    held(defaults.iter().flat_map(|(path, text)| words::undocumented_keys(path, text)).collect(), NONE);
}

#[test]
fn exceptions_may_only_shrink() {
    let broken = |path: &str| Violation { path: path.to_owned(), line: 3, what: "bad".to_owned() };
    let violations = [broken("a/b.rs"), broken("c.rs")];
    let why = "a reason that is long enough";
    for (exceptions, expected) in [
        (vec![("a/", why), ("c.rs", why)], vec![]),
        (vec![("a/b.rs", why)], vec!["c.rs:3: bad"]),
        (
            vec![("a/", why), ("c.rs", why), ("d.rs", why)],
            vec!["d.rs: an exception that nothing needs any more"],
        ),
        (vec![("a/", why), ("c.rs", "")], vec!["c.rs: why?"]),
    ] {
        assert_eq!(complaints(&violations, &exceptions), expected);
    }
}
