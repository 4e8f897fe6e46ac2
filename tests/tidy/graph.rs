//! Who may depend on whom, read from each crate's manifest.
//!
//! Apart because it is the one rule over manifests: a crate exists where a dependency must be forbidden, and this
//! table forbids it. Must not know: source code.

use crate::checks::Violation;

/// One crate: its folder, which of our crates it may use, and which libraries it must never use.
struct Row {
    folder: &'static str,
    ours: &'static [&'static str],
    never: &'static [&'static str],
}

/// Libraries that reach the world; no core has them.
const WORLD: &[&str] = &[
    "async-trait",
    "axum",
    "chrono",
    "clap",
    "figment",
    "futures",
    "futures-util",
    "hf-hub",
    "http",
    "hyper",
    "libc",
    "log",
    "mio",
    "opentelemetry",
    "pingora",
    "prometheus",
    "reqwest",
    "rustix",
    "rustls",
    "time",
    "tokio",
    "tracing",
    "tracing-subscriber",
    "ureq",
];

/// A crate that does not exist yet has its row already; a crate without a row fails.
const TABLE: &[Row] = &[
    Row { folder: "gateway/measure", ours: &[], never: WORLD },
    Row { folder: "gateway/quality", ours: &[], never: WORLD },
    Row { folder: "gateway/proxy", ours: &["measure", "quality", "control", "config"], never: &[] },
    Row { folder: "engine/control", ours: &[], never: WORLD },
    Row { folder: "engine/kernels", ours: &[], never: WORLD },
    Row { folder: "engine/runtime", ours: &["kernels"], never: WORLD },
    Row { folder: "engine/server", ours: &["runtime", "control", "config"], never: &["pingora"] },
    Row { folder: "config", ours: &[], never: &["axum", "clap", "pingora", "tokio", "tracing"] },
    Row {
        folder: "tests",
        ours: &["measure", "quality", "proxy", "control", "kernels", "runtime", "server", "config"],
        never: &[],
    },
];

/// What a manifest breaks of the table: kinds of dependency (normal, for tests, for builds) make no difference.
pub fn dependencies(path: &str, manifest: &str) -> Vec<Violation> {
    let wrong = |what: String| Violation { path: path.to_owned(), line: 1, what };
    let folder = path.trim_end_matches("/Cargo.toml");
    let Some(row) = TABLE.iter().find(|row| row.folder == folder) else {
        return vec![wrong("a crate without a row in the table of who may depend on whom".to_owned())];
    };
    let manifest: toml::Table = match manifest.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![wrong(error.to_string())],
    };
    let name = format!("pitot-{}", folder.rsplit('/').next().unwrap_or_default());
    let package = manifest.get("package").and_then(|package| package.get("name")?.as_str());
    let misnamed = (package != Some(&name)).then(|| wrong(format!("the package is not called {name}")));
    let forbidden =
        named(&manifest).into_iter().filter_map(|dependency| match dependency.strip_prefix("pitot-") {
            Some(own) if !row.ours.contains(&own) => {
                Some(wrong(format!("{folder} may not use {dependency}")))
            }
            None if row.never.contains(&dependency.as_str()) => {
                Some(wrong(format!("{folder} must never use {dependency}")))
            }
            Some(_) | None => None,
        });
    misnamed.into_iter().chain(forbidden).collect()
}

/// Packages in every table of dependencies, also those for one target, by their own names.
fn named(manifest: &toml::Table) -> Vec<String> {
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables =
        std::iter::once(manifest).chain(targets.into_iter().flatten().filter_map(|(_, of)| of.as_table()));
    let dependencies = tables.flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()));
    let package = |(name, said): (&String, &toml::Value)| {
        said.get("package").and_then(toml::Value::as_str).unwrap_or(name).to_owned()
    };
    dependencies.flatten().map(package).collect()
}

#[test]
fn the_table_can_be_broken() {
    for (path, manifest, expected) in [
        ("engine/runtime", "[dependencies]\npitot-kernels.workspace = true\nhalf = \"2\"", None),
        (
            "engine/runtime",
            "[dependencies]\npitot-control.workspace = true",
            Some("may not use pitot-control"),
        ),
        (
            "gateway/measure",
            "[dev-dependencies]\npitot-config.workspace = true",
            Some("may not use pitot-config"),
        ),
        ("gateway/measure", "[dependencies]\ntokio.workspace = true", Some("must never use tokio")),
        ("gateway/measure", "[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"", Some("must never use libc")),
        (
            "gateway/measure",
            "[dependencies]\nx = { package = \"log\", version = \"1\" }",
            Some("must never use log"),
        ),
        (
            "gateway/proxy",
            "[dependencies]\npitot-runtime.workspace = true",
            Some("may not use pitot-runtime"),
        ),
        ("engine/server", "[dependencies]\npitot-tests.workspace = true", Some("may not use pitot-tests")),
    ] {
        let name = path.rsplit('/').next().unwrap_or_default();
        let manifest = format!("[package]\nname = \"pitot-{name}\"\n{manifest}");
        let found = dependencies(&format!("{path}/Cargo.toml"), &manifest);
        let whats: Vec<&str> = found.iter().map(|found| found.what.trim_start_matches(path).trim()).collect();
        assert_eq!(whats, Vec::from_iter(expected), "{manifest}");
    }
    assert_eq!(dependencies("gateway/other/Cargo.toml", "").len(), 1);
    assert_eq!(dependencies("config/Cargo.toml", "[package]\nname = \"config\"").len(), 1);
}
