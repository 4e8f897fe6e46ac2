//! What each kind of value takes and what it comes to.
//!
//! Apart from the layers: here it does not matter which layer said a value. Must not know: how layers merge.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pitot_config::{Environment, Platform, engine, gateway};

use crate::{Says, check_engine, check_gateway, from_engine, from_gateway, surroundings};

#[test]
fn defaults_resolve() {
    let gateway = from_gateway(Says::default()).unwrap();
    assert_eq!(gateway.listen.address.to_string(), "127.0.0.1:2242");
    assert_eq!(gateway.listen.admin_address.to_string(), "127.0.0.1:2243");
    assert_eq!(gateway.listen.threads.get(), 3);
    assert_eq!(gateway.upstream.address.to_string(), "unix:/run/user/1000/pitot/engine.sock");
    assert_eq!(gateway.upstream.control_socket, Some("/run/user/1000/pitot/control.sock".into()));
    assert_eq!(gateway.limits.request_body_bytes, 32 * 1024 * 1024);
    assert_eq!(gateway.limits.response_buffer_bytes, 16 * 1024 * 1024);
    assert_eq!(gateway.journal.unwrap().directory, Path::new("/home/ada/.local/state/pitot/journal"));
    assert_eq!(gateway.engine.command, Path::new("pitot-engine"));
    assert!(!gateway.metrics.per_request && gateway.metrics.log_stats);

    let engine = from_engine(Says::default()).unwrap();
    assert_eq!(engine.listen.socket, Path::new("/run/user/1000/pitot/engine.sock"));
    assert_eq!(engine.control.socket, Path::new("/run/user/1000/pitot/control.sock"));
    assert_eq!(engine.model.source, engine::ModelSource::Name("SmolLM2-135M-Instruct".into()));
    assert_eq!(engine.model.directory, Path::new("/home/ada/.cache/pitot/models"));
    assert_eq!(engine.memory.kv_cache_bytes, 512 * 1024 * 1024);
    assert!(engine.model.served_model_name.is_empty() && engine.control.allowed_uids.is_empty());
}

#[test]
fn lists_have_one_form_in_files_and_one_in_text() {
    let expected = ["tiny".to_owned(), "mistralai/Mistral".to_owned()];
    let from_file = "[model]\nserved_model_name = [\"tiny\", \"mistralai/Mistral\"]\n";
    for says in [
        Says { file: from_file, ..Says::default() },
        Says {
            variables: &[("PITOT_MODEL__SERVED_MODEL_NAME", "tiny, mistralai/Mistral")],
            ..Says::default()
        },
        Says { flags: &["model.served_model_name=tiny,mistralai/Mistral"], ..Says::default() },
    ] {
        assert_eq!(from_engine(says).unwrap().model.served_model_name, expected);
    }
    let uids = Says { variables: &[("PITOT_CONTROL__ALLOWED_UIDS", "101,102")], ..Says::default() };
    assert_eq!(from_engine(uids).unwrap().control.allowed_uids, [101, 102]);
}

#[test]
fn wrong_values_say_what_is_taken_and_what_was_found() {
    for (file, expected) in [
        (
            "[limits]\nrequest_body_bytes = 1\n",
            "`limits.request_body_bytes` takes bytes, 1024 to 1073741824; found 1",
        ),
        (
            "[limits]\nrequest_body_bytes = -1\n",
            "`limits.request_body_bytes` takes bytes, 1024 to 1073741824; found -1",
        ),
        ("[requests]\nkept = 2.0\n", "`requests.kept` takes requests, 1 to 1000000; found 2.0"),
        ("[requests]\nkept = \"2\"\n", "`requests.kept` takes requests, 1 to 1000000; found \"2\""),
        ("[requests]\nkept = {a = 1}\n", "`requests.kept` takes requests, 1 to 1000000; found a table"),
        (
            "[limits]\ntotal_timeout_ms = 0\n",
            "`limits.total_timeout_ms` takes milliseconds, 1 to 86400000, or \"none\"; found 0",
        ),
        ("[metrics]\noutput = \"true\"\n", "`metrics.output` takes true or false; found \"true\""),
        (
            "[measure]\ncase2 = \"Strict\"\n",
            "`measure.case2` takes \"default\" or \"strict\"; found \"Strict\"",
        ),
        (
            "[measure]\nkey_aliases = [\"a=12\"]\n",
            "`measure.key_aliases` takes a list of alias=digest, each alias once, a digest being the SHA-256 of a key \
             in 64 hex digits; found [\"a=12\"]",
        ),
        ("[listen]\naddress = \"2242\"\n", "`listen.address` takes address:port; found \"2242\""),
        (
            "[measure]\nhttp_error_from = 402\n",
            "`measure.http_error_from` takes an HTTP status, 400 to 401; found 402",
        ),
        ("[journal]\ndirectory = \"\"\n", "`journal.directory` takes a path, or \"auto\"; found \"\""),
        ("limits = 3\n", "`limits` is a section of keys, found 3"),
    ] {
        let says = Says { file, ..Says::default() };
        check_gateway(says, &format!("configuration: file said.toml: {expected}"));
    }
    check_gateway(
        Says { variables: &[("PITOT_REQUESTS__KEPT", "many")], ..Says::default() },
        "configuration: variable PITOT_REQUESTS__KEPT: `requests.kept` takes requests, 1 to 1000000; found \"many\"",
    );
    check_engine(
        Says { flags: &["control.allowed_uids=1,-2"], ..Says::default() },
        "configuration: flag --set: `control.allowed_uids` takes a list of user ids, 0 to 4294967295; found \"1,-2\"",
    );
    let long = format!("[requests]\nkept = \"{}\"\n", "é".repeat(1000));
    let message = from_gateway(Says { file: &long, ..Says::default() }).unwrap_err();
    assert!(message.chars().count() < 300 && message.ends_with("..."), "{message}");
}

#[test]
fn other_contradictions_are_refused() {
    for (file, expected) in [
        ("[listen]\naddress = \"[::1]:1\"\nadmin_address = \"[::1]:1\"\n", "one address cannot serve both"),
        ("[engine]\nrestart_backoff_min_ms = 2\nrestart_backoff_max_ms = 1\n", "the shortest wait is longer"),
    ] {
        let message = from_gateway(Says { file, ..Says::default() }).unwrap_err();
        assert!(message.contains(expected), "{message}");
    }
    let same = "[listen]\nsocket = \"/a/s\"\n[control]\nsocket = \"/a/s\"\n";
    assert!(
        from_engine(Says { file: same, ..Says::default() })
            .unwrap_err()
            .contains("one socket cannot serve both")
    );
    let any = Says { flags: &["listen.address=[::1]:0", "listen.admin_address=[::1]:0"], ..Says::default() };
    assert!(from_gateway(any).is_ok());
}

#[test]
fn upstream_addresses() {
    use gateway::UpstreamAddress::{Http, Unix};
    let http = |host: &str, port| Some(Http { host: host.to_owned(), port });
    for (said, expected) in [
        ("unix:/tmp/a.sock", Some(Unix("/tmp/a.sock".into()))),
        ("unix:~/a.sock", Some(Unix("/home/ada/a.sock".into()))),
        ("http://127.0.0.1:8000", http("127.0.0.1", 8000)),
        ("http://vllm.local:8000/", http("vllm.local", 8000)),
        ("http://[::1]:8000", http("::1", 8000)),
        ("http://::1:8000", None),
        ("http://127.0.0.1", None),
        ("http://127.0.0.1:0", None),
        ("http://127.0.0.1:65536", None),
        ("http://127.0.0.1:8000/v1", None),
        ("https://127.0.0.1:8000", None),
        ("127.0.0.1:8000", None),
        ("unix:", None),
        ("", None),
    ] {
        let flag = format!("upstream.address={said}");
        let settings = from_gateway(Says { flags: &[&flag], ..Says::default() });
        assert_eq!(settings.ok().map(|settings| settings.upstream.address), expected, "{said}");
    }
    let long = format!("upstream.address=unix:/{}", "x".repeat(103));
    assert!(from_gateway(Says { flags: &[&long], ..Says::default() }).is_err());
    assert!(from_gateway(Says { flags: &[&long[..long.len() - 1]], ..Says::default() }).is_ok());
}

#[test]
fn the_control_socket_is_looked_for_beside_a_unix_upstream() {
    for (address, control, expected) in [
        ("unix:/a/b.sock", "auto", Some("/a/control.sock")),
        ("http://127.0.0.1:8000", "auto", None),
        ("http://127.0.0.1:8000", "~/c.sock", Some("/home/ada/c.sock")),
        ("unix:/a/b.sock", "none", None),
    ] {
        let flags = [format!("upstream.address={address}"), format!("upstream.control_socket={control}")];
        let settings = from_gateway(Says { flags: &[&flags[0], &flags[1]], ..Says::default() }).unwrap();
        assert_eq!(settings.upstream.control_socket, expected.map(PathBuf::from), "{address} {control}");
    }
}

#[test]
fn models_are_names_or_paths() {
    use engine::ModelSource::{Folder, Name};
    for (said, expected) in [
        ("smollm2", Some(Name("smollm2".into()))),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", Some(Name("HuggingFaceTB/SmolLM2-135M-Instruct".into()))),
        ("./models/a", Some(Folder("./models/a".into()))),
        ("/models/a", Some(Folder("/models/a".into()))),
        ("../a", Some(Folder("../a".into()))),
        ("~/a", Some(Folder("/home/ada/a".into()))),
        (".", Some(Folder(".".into()))),
        ("a/../../b", None),
        ("a/..", None),
        ("a/b/c", None),
        ("a b", None),
        ("", None),
    ] {
        assert_eq!(engine::ModelSource::parse(said, &surroundings(&[])), expected, "{said}");
    }
}

#[test]
fn folders_follow_the_platform_the_user_and_the_variables() {
    let base = || surroundings(&[]);
    let bare = || Environment { variables: BTreeMap::new(), ..surroundings(&[]) };
    let with = |name: &str, value: &str| surroundings(&[(name, value)]);
    for (environment, sockets, models, journal) in [
        (
            base(),
            "/run/user/1000/pitot",
            "/home/ada/.cache/pitot/models",
            "/home/ada/.local/state/pitot/journal",
        ),
        (bare(), "/tmp/pitot-1000", "/var/cache/pitot/models", "/var/lib/pitot/journal"),
        (
            Environment { user_id: 0, ..bare() },
            "/run/pitot",
            "/var/cache/pitot/models",
            "/var/lib/pitot/journal",
        ),
        (
            Environment { run_folder_writable: true, ..bare() },
            "/run/pitot",
            "/var/cache/pitot/models",
            "/var/lib/pitot/journal",
        ),
        (
            Environment { platform: Platform::Mac, user_id: 501, ..with("TMPDIR", "/var/folders/x/T") },
            "/run/user/1000/pitot",
            "/home/ada/Library/Caches/pitot/models",
            "/home/ada/Library/Application Support/pitot/journal",
        ),
        (
            Environment { platform: Platform::Mac, user_id: 0, ..bare() },
            "/tmp/pitot-0",
            "/var/cache/pitot/models",
            "/var/lib/pitot/journal",
        ),
        (
            with("XDG_CACHE_HOME", "/c"),
            "/run/user/1000/pitot",
            "/c/pitot/models",
            "/home/ada/.local/state/pitot/journal",
        ),
        (
            with("XDG_STATE_HOME", "relative"),
            "/run/user/1000/pitot",
            "/home/ada/.cache/pitot/models",
            "/home/ada/.local/state/pitot/journal",
        ),
    ] {
        assert_eq!(environment.socket_folder(), Path::new(sockets), "{environment:?}");
        assert_eq!(environment.models_folder(), Path::new(models), "{environment:?}");
        assert_eq!(environment.journal_folder(), Path::new(journal), "{environment:?}");
    }
}

/// An "auto" socket that no socket can be bound to is an error of configuration, not of the later bind.
#[test]
fn a_folder_too_long_for_sockets_is_refused() {
    let folder = format!("/{}", "x".repeat(100));
    let variables: &[(&str, &str)] = &[("XDG_RUNTIME_DIR", &folder)];
    let says = Says { variables, ..Says::default() };
    assert!(from_engine(says).unwrap_err().contains("`listen.socket` takes a path of at most 103 bytes"));
    assert!(
        from_gateway(says)
            .unwrap_err()
            .contains("`upstream.address` takes \"unix:\" and a path of at most 103 bytes")
    );
}
