//! The configuration as a person meets it: on the command line.

use crate::pitot::run;

#[track_caller]
fn check_refused(program: &str, arguments: &[&str], variables: &[(&str, &str)], words: &[&str]) {
    let output = run(program, arguments, variables);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{program} {arguments:?} was taken: {said}");
    for word in words {
        assert!(said.contains(word), "{program} {arguments:?}: {word:?} is missing in: {said}");
    }
}

#[test]
fn the_contradictory_pair_is_refused_on_every_path() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("both.toml");
    std::fs::write(&file, "[metrics]\nper_request = true\nlog_stats = false\n").unwrap();
    let file = file.to_str().unwrap();
    let words = ["--enable-per-request-metrics", "--disable-log-stats"];
    for (program, command) in [("pitot", "serve"), ("pitot", "up"), ("pitot-engine", "serve")] {
        let flags = [command, "--enable-per-request-metrics", "--disable-log-stats"];
        check_refused(program, &flags, &[], &words);
        check_refused(program, &[command, "--config", file], &[], &words);
        let variables = [("PITOT_METRICS__PER_REQUEST", "true"), ("PITOT_METRICS__LOG_STATS", "false")];
        check_refused(program, &[command], &variables, &words);
        check_refused(program, &[command, "--disable-log-stats"], &variables[..1], &words);
    }
}

#[test]
fn unknown_keys_get_the_nearest_right_one_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pitot.toml");
    std::fs::write(&file, "[limits]\nidle_timeout = 3\n[listen]\nthreads = \"many\"\n").unwrap();
    let arguments = ["serve", "--config", file.to_str().unwrap(), "--set", "journal.enable=false"];
    check_refused(
        "pitot",
        &arguments,
        &[],
        &["idle_timeout_ms", "listen.threads", "journal.enabled", "pitot.toml"],
    );
}

#[test]
fn where_each_value_came_from_is_shown() {
    let output = run(
        "pitot",
        &["config", "show", "--listen", "127.0.0.1:4000"],
        &[("PITOT_LIMITS__DRAIN_TIMEOUT_MS", "1234")],
    );
    let shown = String::from_utf8(output.stdout).unwrap();
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("listen.address").contains("127.0.0.1:4000") && line("listen.address").contains("--listen"));
    let drain = line("limits.drain_timeout_ms");
    assert!(drain.contains("1234") && drain.contains("PITOT_LIMITS__DRAIN_TIMEOUT_MS"), "{drain}");
    assert!(line("journal.files_max").contains("default"), "{shown}");
}

#[test]
fn the_script_lists_every_flag_that_it_passes_on() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let script = |arguments: &[&str]| {
        std::process::Command::new(root.join("deploy/up")).args(arguments).output().unwrap()
    };
    let flags = |text: &[u8]| -> std::collections::BTreeSet<String> {
        let text = String::from_utf8_lossy(text).into_owned();
        let words =
            text.lines().filter_map(|line| line.trim_start().trim_start_matches("-h, ").split(' ').next());
        words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
    };
    let known = flags(&run("pitot", &["up", "--help"], &[]).stdout);
    assert!(known.contains("--once"), "{known:?}");
    let mut listed = flags(&script(&["--help"]).stdout);
    // These two stand in the examples above the list.
    listed.extend(["--once".to_owned(), "--model".to_owned()]);
    assert_eq!(listed, known);
    let slip = script(&["--once", "question", "--servd-model-name", "x"]);
    assert!(!slip.status.success());
    assert!(String::from_utf8_lossy(&slip.stderr).contains("there is no --servd-model-name"));
}
