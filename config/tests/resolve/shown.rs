//! What is shown to people: `config show`, the documented default files, the flags.
//!
//! Apart because these compare the crate with its own documentation. Must not know: how values resolve.

use std::collections::BTreeMap;
use std::fs;

use pitot_config::{ENGINE_FLAGS, GATEWAY_FLAGS, Sources, Takes, engine, gateway};

use crate::surroundings;

#[test]
fn show_says_where_each_value_came_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pitot.toml");
    fs::write(&path, "[log]\nlevel = \"debug\"\n[requests]\nkept = 5\n").unwrap();
    let flags = vec![
        GATEWAY_FLAGS.iter().find(|flag| flag.key == "listen.address").unwrap().said(&["[::1]:1".into()]),
    ];
    let environment = surroundings(&[("PITOT_LISTEN__THREADS", "auto")]);
    let shown = gateway::resolve(&Sources { environment, file: Some(path.clone()), flags }).unwrap().shown;

    let file = format!("file {}", path.display());
    let table = shown.to_string();
    for (key, value, from) in [
        ("listen.address", "\"[::1]:1\"", "flag --listen"),
        ("listen.threads", "3 (\"auto\")", "variable PITOT_LISTEN__THREADS"),
        ("upstream.control_socket", "/run/user/1000/pitot/control.sock (\"auto\")", "default"),
        ("log.level", "\"debug\"", &file),
        ("requests.kept", "5", &file),
        ("limits.connect_timeout_ms", "2000", "default"),
    ] {
        let line = table.lines().find(|line| line.starts_with(&format!("{key} "))).unwrap();
        let parts: Vec<&str> = line.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect();
        assert_eq!(parts, [key, value, from]);
    }

    let json = shown.to_json();
    let row = |key: &str| json.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap().clone();
    assert_eq!(
        row("requests.kept").to_string(),
        format!(
            r#"{{"key":"requests.kept","value":5,"resolved":null,"from":{{"kind":"file","name":"{}"}}}}"#,
            path.display()
        )
    );
    assert_eq!(row("listen.threads")["resolved"], "3");
    assert_eq!(row("log.format")["from"]["kind"], "default");
}

/// The comment above a key, and the key, in the order of the file.
fn documented(defaults: &str) -> Vec<(String, String)> {
    let (mut section, mut comment, mut keys) = (String::new(), String::new(), Vec::new());
    for line in defaults.lines() {
        if let Some(text) = line.strip_prefix('#') {
            comment = format!("{comment} {}", text.trim());
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((key, _)) = line.split_once(" = ") {
            keys.push((format!("{section}.{key}"), comment.trim().to_owned()));
        }
        if !line.starts_with('#') {
            comment.clear();
        }
    }
    keys
}

/// Each key that is read stands in the file, in this order, and the other way round; above it a sentence, and
/// in words the very type, unit and range that the reader holds it to.
#[test]
fn every_key_is_documented() {
    let sources = Sources { environment: surroundings(&[]), file: None, flags: Vec::new() };
    let gateway = gateway::resolve(&sources).unwrap().shown;
    let engine = engine::resolve(&sources).unwrap().shown;
    for (defaults, shown) in [(gateway::DEFAULTS, &gateway), (engine::DEFAULTS, &engine)] {
        let documented = documented(defaults);
        let in_file: Vec<&String> = documented.iter().map(|(key, _)| key).collect();
        let read: Vec<&String> = shown.0.iter().map(|row| &row.key).collect();
        assert_eq!(in_file, read);
        for ((key, comment), row) in documented.iter().zip(&shown.0) {
            let (sentence, takes) =
                comment.split_once(" Takes: ").unwrap_or_else(|| panic!("{key} takes what?"));
            assert_eq!(takes, row.takes, "{key}");
            assert!(sentence.len() > 20 && sentence.ends_with('.'), "{key} has no sentence: {sentence:?}");
        }
    }
}

#[test]
fn keys_in_both_files_mean_the_same() {
    let theirs: BTreeMap<String, String> = documented(engine::DEFAULTS).into_iter().collect();
    let shared: Vec<(String, String)> =
        documented(gateway::DEFAULTS).into_iter().filter(|(key, _)| theirs.contains_key(key)).collect();
    assert_eq!(shared.len(), 5);
    for (key, comment) in shared {
        assert_eq!(comment, theirs[&key], "{key}");
    }
}

#[test]
fn each_flag_stands_for_a_key_that_exists() {
    for (flags, defaults) in [(GATEWAY_FLAGS, gateway::DEFAULTS), (ENGINE_FLAGS, engine::DEFAULTS)] {
        let keys: Vec<String> = documented(defaults).into_iter().map(|(key, _)| key).collect();
        for flag in flags {
            assert!(keys.iter().any(|key| key == flag.key), "{} stands for no key", flag.flag);
            assert!(flag.flag.starts_with("--") && !flag.about.is_empty());
        }
        for compatible in
            ["--enable-per-request-metrics", "--disable-log-stats", "--enable-force-include-usage"]
        {
            let flag = flags.iter().find(|flag| flag.flag == compatible).unwrap();
            assert!(matches!(flag.takes, Takes::Nothing { .. }));
        }
    }
    let names = ENGINE_FLAGS.iter().find(|flag| flag.takes == Takes::List).unwrap();
    let flags = vec![names.said(&["a".into(), "b".into()])];
    let sources = Sources { environment: surroundings(&[]), file: None, flags };
    assert_eq!(engine::resolve(&sources).unwrap().settings.model.served_model_name, ["a", "b"]);
}
