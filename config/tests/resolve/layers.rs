//! Which layer wins, which names are refused, and how everything wrong is said.
//!
//! Apart from the values: here a key's type does not matter. Must not know: any key's range.

use std::fs;
use std::time::Duration;

use pitot_config::{Level, Sources, gateway};

use crate::{Says, check_engine, check_gateway, from_engine, from_gateway, surroundings};

/// For each set of layers that speak of one key, the last of default, file, variable, flag wins.
#[test]
fn later_layers_win() {
    let file = "[limits]\nconnect_timeout_ms = 11\n";
    let variables: &[(&str, &str)] = &[("PITOT_LIMITS__CONNECT_TIMEOUT_MS", "22")];
    let flags: &[&str] = &["limits.connect_timeout_ms=32", "limits.connect_timeout_ms=33"];
    for (with_file, with_variable, with_flag, expected) in [
        (false, false, false, 2000),
        (true, false, false, 11),
        (false, true, false, 22),
        (true, true, false, 22),
        (false, false, true, 33),
        (true, false, true, 33),
        (false, true, true, 33),
        (true, true, true, 33),
    ] {
        let says = Says {
            file: if with_file { file } else { "" },
            variables: if with_variable { variables } else { &[] },
            flags: if with_flag { flags } else { &[] },
        };
        let timeout = from_gateway(says).unwrap().limits.connect_timeout;
        assert_eq!(timeout, Duration::from_millis(expected), "{with_file} {with_variable} {with_flag}");
    }
}

/// Keys that a file does not speak of keep their defaults, also in a section that it does speak of.
#[test]
fn a_file_may_be_partial() {
    let settings =
        from_gateway(Says { file: "[limits]\ntotal_timeout_ms = \"none\"\n", ..Says::default() }).unwrap();
    assert_eq!(settings.limits.total_timeout, None);
    assert_eq!(settings.limits.idle_timeout, Some(Duration::from_secs(60)));
    assert_eq!(settings.requests.kept, 1000);
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    for (file, expected) in [
        (
            "[limits]\nrequest_body_byte = 1\n",
            "`limits.request_body_byte`; did you mean `limits.request_body_bytes`?",
        ),
        ("[limit]\nidle_timeout_ms = 1\n", "`limit.idle_timeout_ms`; did you mean `limits.idle_timeout_ms`?"),
        (
            "[listen]\nconnect_timeout_ms = 1\n",
            "`listen.connect_timeout_ms`; did you mean `limits.connect_timeout_ms`?",
        ),
        ("[metrics]\nper-request = true\n", "`metrics.per-request`; did you mean `metrics.per_request`?"),
        ("[scheduler]\nsequences_max = 1\n", "`scheduler.sequences_max`; it is a key of engine.toml"),
        ("kept = 3\n", "`kept`; did you mean `requests.kept`, inside its section?"),
        ("[zzz]\nqqqqqqq = 1\n", "`zzz.qqqqqqq`"),
        ("[zzz]\n", "`zzz`"),
    ] {
        let says = Says { file, ..Says::default() };
        check_gateway(says, &format!("configuration: file said.toml: unknown key {expected}"));
    }
    check_gateway(
        Says { variables: &[("PITOT_LIMITS__IDLE_TIMEOUT", "1")], ..Says::default() },
        "configuration: variable PITOT_LIMITS__IDLE_TIMEOUT: unknown key `limits.idle_timeout`; \
         did you mean `PITOT_LIMITS__IDLE_TIMEOUT_MS`?",
    );
    check_gateway(
        Says { variables: &[("PITOT_log__level", "debug")], ..Says::default() },
        "configuration: variable PITOT_log__level: unknown key `log.level`; did you mean `PITOT_LOG__LEVEL`?",
    );
    check_gateway(
        Says { flags: &["log.levle=debug"], ..Says::default() },
        "configuration: flag --set: unknown key `log.levle`; did you mean `log.level`?",
    );
    check_gateway(
        Says { flags: &["log.level"], ..Says::default() },
        "configuration: flag --set: expected section.key=value, found \"log.level\"",
    );
    check_engine(
        Says { file: "[memory]\nkv_cache_byte = 1\n", ..Says::default() },
        "configuration: file said.toml: unknown key `memory.kv_cache_byte`; did you mean `memory.kv_cache_bytes`?",
    );
}

/// Kubernetes sets these for a Service called pitot; and each program leaves the other's variables alone.
#[test]
fn foreign_variables_are_left_alone() {
    let kubernetes = [
        ("PITOT_PORT", "tcp://10.0.0.1:2242"),
        ("PITOT_SERVICE_HOST", "10.0.0.1"),
        ("PITOT_SERVICE_PORT_HTTP", "2242"),
        ("PITOT_PORT_2242_TCP_ADDR", "10.0.0.1"),
        ("PITOTS__X", "1"),
    ];
    let quiet = Says { variables: &kubernetes, ..Says::default() };
    assert_eq!(from_gateway(quiet).unwrap(), from_gateway(Says::default()).unwrap());
    assert_eq!(from_engine(quiet).unwrap(), from_engine(Says::default()).unwrap());

    let both =
        [("PITOT_COMPUTE__THREADS", "2"), ("PITOT_REQUESTS__KEPT", "5"), ("PITOT_LOG__LEVEL", "debug")];
    let both = Says { variables: &both, ..Says::default() };
    let (gateway, engine) = (from_gateway(both).unwrap(), from_engine(both).unwrap());
    assert_eq!(
        (gateway.requests.kept, gateway.listen.threads.get(), gateway.log.level),
        (5, 3, Level::Debug)
    );
    assert_eq!((engine.compute.threads.get(), engine.log.level), (2, Level::Debug));
}

#[test]
fn everything_wrong_is_said_at_once() {
    let says = Says {
        file: "[limits]\nidle_timeout_ms = 0\nidle = 1\n[journal]\nfiles_max = 0\n",
        variables: &[("PITOT_REQUESTS__KEPT", "0"), ("PITOT_REQUESTS__KEEP", "1")],
        flags: &["log.level=loud", "nonsense"],
    };
    let message = from_gateway(says).unwrap_err();
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], "configuration: 7 problems");
    for (line, (origin, key)) in lines[1..].iter().zip([
        ("file said.toml", "limits.idle"),
        ("variable PITOT_REQUESTS__KEEP", "requests.keep"),
        ("flag --set", "nonsense"),
        ("file said.toml", "limits.idle_timeout_ms"),
        ("variable PITOT_REQUESTS__KEPT", "requests.kept"),
        ("file said.toml", "journal.files_max"),
        ("flag --set", "log.level"),
    ]) {
        assert!(
            line.starts_with(&format!("  {origin}: ")) && line.contains(key),
            "{line:?} is not about {key}"
        );
    }
    assert_eq!(lines.len(), 8);
}

/// A wrong value under a right one of a later layer does no harm, a wrong name does.
#[test]
fn only_the_value_that_counts_is_judged() {
    let flags: &[&str] = &["requests.kept=7"];
    let says = Says { file: "[requests]\nkept = 0\n", flags, ..Says::default() };
    assert_eq!(from_gateway(says).unwrap().requests.kept, 7);
    assert!(from_gateway(Says { file: "[requests]\nkep = 0\n", flags, ..Says::default() }).is_err());
}

/// The pair is refused wherever its two halves were said, and allowed where a later layer takes one back.
#[test]
fn per_request_metrics_without_statistics_are_refused_on_every_path() {
    let file = ["[metrics]\nper_request = true\n", "[metrics]\nlog_stats = false\n"];
    let variable = [("PITOT_METRICS__PER_REQUEST", "true"), ("PITOT_METRICS__LOG_STATS", "false")];
    let flag = ["--enable-per-request-metrics", "--disable-log-stats"];
    let set = ["metrics.per_request=true", "metrics.log_stats=false"];
    let origins = [
        ["file said.toml", "file said.toml"],
        ["variable PITOT_METRICS__PER_REQUEST", "variable PITOT_METRICS__LOG_STATS"],
        ["flag --enable-per-request-metrics", "flag --disable-log-stats"],
        ["flag --set", "flag --set"],
    ];
    for left in 0..4 {
        for right in 0..4 {
            let paths = [left, right];
            let of = |layer: usize| (0..2).filter(move |half| paths[*half] == layer);
            let text: String = of(0).map(|half| file[half].replace("[metrics]\n", "")).collect();
            let text = if text.is_empty() { text } else { format!("[metrics]\n{text}") };
            let variables: Vec<(&str, &str)> = of(1).map(|half| variable[half]).collect();
            let flags: Vec<&str> = of(2).map(|half| flag[half]).chain(of(3).map(|half| set[half])).collect();
            let says = Says { file: &text, variables: &variables, flags: &flags };
            for message in [from_gateway(says).unwrap_err(), from_engine(says).unwrap_err()] {
                for part in [
                    &format!("`metrics.per_request` = {} ({})", quoted(left, "true"), origins[left][0]),
                    &format!("`metrics.log_stats` = {} ({})", quoted(right, "false"), origins[right][1]),
                    "--enable-per-request-metrics",
                    "--disable-log-stats",
                ] {
                    assert!(message.contains(part), "{part:?} is not in {message:?}");
                }
                assert_eq!(message.lines().count(), 1);
            }
        }
    }
    let taken_back = Says {
        file: "[metrics]\nper_request = true\nlog_stats = false\n",
        flags: &["metrics.per_request=false"],
        ..Says::default()
    };
    assert!(!from_engine(taken_back).unwrap().metrics.per_request);
    assert!(
        from_gateway(Says { flags: &["--enable-per-request-metrics"], ..Says::default() })
            .unwrap()
            .metrics
            .per_request
    );
    assert!(
        !from_gateway(Says { flags: &["--disable-log-stats"], ..Says::default() }).unwrap().metrics.log_stats
    );
}

/// Files are typed; variables and flags are text.
fn quoted(layer: usize, word: &str) -> String {
    if layer == 0 { word.to_owned() } else { format!("{word:?}") }
}

#[test]
fn files_are_searched_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let places = ["work", "config/pitot", "system"].map(|place| folder.path().join(place));
    let config_home = folder.path().join("config").display().to_string();
    let mut sources = Sources {
        environment: surroundings(&[("XDG_CONFIG_HOME", &config_home)]),
        file: None,
        flags: Vec::new(),
    };
    sources.environment.working_folder = places[0].clone();
    sources.environment.system_folder = places[2].clone();
    let kept = |sources: &Sources| gateway::resolve(sources).unwrap().settings.requests.kept;
    assert_eq!(kept(&sources), 1000);
    for (place, expected) in [(2, 32), (1, 31), (0, 30)] {
        fs::create_dir_all(&places[place]).unwrap();
        fs::write(places[place].join("pitot.toml"), format!("[requests]\nkept = {expected}\n")).unwrap();
        assert_eq!(kept(&sources), expected);
    }
    sources.file = Some(places[2].join("pitot.toml"));
    assert_eq!(kept(&sources), 32);
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str| {
        let file = Some(folder.path().join(name));
        let sources = Sources { environment: surroundings(&[]), file, flags: Vec::new() };
        gateway::resolve(&sources).unwrap_err().to_string()
    };
    assert!(refused("absent.toml").contains("absent.toml: could not be read: "));
    assert!(refused(".").contains("could not be read: "));
    fs::write(folder.path().join("latin.toml"), b"# \xe9").unwrap();
    assert!(refused("latin.toml").contains("could not be read: "));
    fs::write(folder.path().join("large.toml"), " ".repeat((1 << 20) + 1)).unwrap();
    assert!(refused("large.toml").contains("larger than 1048576 bytes"));
    fs::write(folder.path().join("broken.toml"), "[log]\nlevel = \n").unwrap();
    let broken = refused("broken.toml");
    assert!(broken.contains("broken.toml: is not TOML: ") && broken.contains("line 2"), "{broken}");
    fs::write(folder.path().join("twice.toml"), "[log]\n[log]\n").unwrap();
    assert!(refused("twice.toml").contains("is not TOML: "));
}

/// Names and texts that nobody means to write: each is refused, none is a panic, and none passes for a key.
#[test]
fn odd_input_is_refused() {
    for flag in [
        "",
        "=",
        "=1",
        ".=1",
        "listen=1",
        "listen.=1",
        ".address=1",
        "listen.address.x=1",
        "listen..address=1",
    ] {
        assert!(from_gateway(Says { flags: &[flag], ..Says::default() }).is_err(), "{flag:?}");
    }
    for name in
        ["PITOT___", "PITOT_LISTEN__", "PITOT___ADDRESS", "PITOT_A__B__C", "PITOT_É__Ü", "PITOT_LISTEN____X"]
    {
        assert!(from_gateway(Says { variables: &[(name, "1")], ..Says::default() }).is_err(), "{name:?}");
    }
    for file in [
        "\"\" = 1",
        "[\"\"]\n\"\" = 1",
        "[\"listen.address\"]\nx = 1",
        "[listen.address]\nx = 1",
        "listen = []",
        "[[listen]]\naddress = \"[::1]:1\"",
        "[listen]\naddress = 1979-05-27",
        "[requests]\nkept = nan",
        "[requests]\nkept = 9223372036854775807",
        "[requests]\nkept = 99999999999999999999",
        "[default.listen]\naddress = \"[::1]:1\"",
        "\u{0}",
    ] {
        assert!(from_gateway(Says { file, ..Says::default() }).is_err(), "{file:?}");
    }
    let nested = format!("[listen]\naddress = {}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert!(from_gateway(Says { file: &nested, ..Says::default() }).is_err());
}

#[test]
fn a_variable_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStringExt as _;

    let mut sources = Sources { environment: surroundings(&[]), file: None, flags: Vec::new() };
    let value = std::ffi::OsString::from_vec(vec![b'/', 0xff]);
    sources.environment.variables.insert("PITOT_JOURNAL__DIRECTORY".into(), value);
    assert_eq!(
        gateway::resolve(&sources).unwrap_err().to_string(),
        "configuration: variable PITOT_JOURNAL__DIRECTORY: the value of `journal.directory` is not UTF-8"
    );
}
