//! Each key sets its own field: every key said with a value of its own, against the whole settings written out.
//!
//! Apart because it is long and plain. Must not know: layers, ranges, messages.

use std::time::Duration;

use pitot_config::{Level, Log, LogFormat, engine, gateway};

use crate::{Says, from_engine, from_gateway};

const MS: fn(u64) -> Duration = Duration::from_millis;

const GATEWAY: &str = r#"
listen = { address = "127.0.0.1:1", admin_address = "127.0.0.1:2", threads = 4 }
upstream = { name = "a", address = "http://b:5", control_socket = "/c", usage = "never", idle_connection_ms = 6 }
metrics = { per_request = true, output = true, client = true, force_include_usage = true, models_max = 15 }
requests = { kept = 17 }
journal = { directory = "/d", file_bytes_max = 65537, files_max = 18, queue_max = 19 }
log = { level = "warn", format = "json" }
[limits]
request_body_bytes = 1027
response_buffer_bytes = 1028
read_ahead_bytes = 1029
connect_timeout_ms = 9
first_token_timeout_ms = 10
idle_timeout_ms = 11
total_timeout_ms = 12
requests_in_flight_max = 13
drain_timeout_ms = 14
[measure]
http_error_from = 400
case2 = "strict"
inline_think = true
observe_deadline_ms = 16
server_timing = false
stream_upstream = true
key_aliases = ["team-a=00ff0000000000000000000000000000000000000000000000000000000000A1"]
[engine]
command = "/e"
config = "/f"
restart_backoff_min_ms = 20
restart_backoff_max_ms = 21
ready_timeout_ms = 22
"#;

#[test]
fn of_the_gateway() {
    let expected = gateway::Settings {
        listen: gateway::Listen {
            address: ([127, 0, 0, 1], 1).into(),
            admin_address: ([127, 0, 0, 1], 2).into(),
            threads: 4.try_into().unwrap(),
        },
        upstream: gateway::Upstream {
            name: "a".into(),
            address: gateway::UpstreamAddress::Http { host: "b".into(), port: 5 },
            control_socket: Some("/c".into()),
            usage: gateway::UsageSupport::Never,
            idle_connection: MS(6),
        },
        limits: gateway::Limits {
            request_body_bytes: 1027,
            response_buffer_bytes: 1028,
            read_ahead_bytes: 1029,
            connect_timeout: MS(9),
            first_token_timeout: Some(MS(10)),
            idle_timeout: Some(MS(11)),
            total_timeout: Some(MS(12)),
            requests_in_flight_max: 13,
            drain_timeout: MS(14),
        },
        metrics: gateway::Metrics {
            per_request: true,
            output: true,
            client: true,
            log_stats: true,
            force_include_usage: true,
            models_max: 15,
        },
        measure: gateway::Measure {
            http_error_from: 400,
            case2: gateway::Case2::Strict,
            inline_think: true,
            observe_deadline: Some(MS(16)),
            server_timing: false,
            stream_upstream: true,
            key_aliases: vec![gateway::KeyAlias {
                alias: "team-a".into(),
                key_sha256: {
                    let mut digest = [0; 32];
                    (digest[1], digest[31]) = (0xff, 0xa1);
                    digest
                },
            }],
        },
        requests: gateway::Requests { kept: 17 },
        journal: Some(gateway::Journal {
            directory: "/d".into(),
            file_bytes_max: 65_537,
            files_max: 18,
            queue_max: 19,
        }),
        log: Log { level: Level::Warn, format: LogFormat::Json },
        engine: gateway::Engine {
            command: "/e".into(),
            config: Some("/f".into()),
            restart_backoff_min: MS(20),
            restart_backoff_max: MS(21),
            ready_timeout: MS(22),
        },
    };
    assert_eq!(from_gateway(Says { file: GATEWAY, ..Says::default() }).unwrap(), expected);
}

#[test]
fn of_the_engine() {
    let file = r#"
        model = { path = "/a", directory = "/b", served_model_name = ["c"] }
        listen = { socket = "/d", tcp_address = "127.0.0.1:1", request_body_bytes = 1026 }
        control = { socket = "/e", allowed_uids = [3] }
        memory = { kv_cache_bytes = 1048580, block_tokens = 5, prefix_cache = false }
        scheduler = { batch_tokens_max = 6, sequences_max = 7, waiting_max = 8 }
        compute = { threads = 9 }
        metrics = { per_request = true, force_include_usage = true, vllm_names = false, aphrodite_names = false }
        shutdown = { drain_timeout_ms = 10 }
        log = { level = "trace", format = "json" }
    "#;
    let expected = engine::Settings {
        model: engine::Model {
            source: engine::ModelSource::Folder("/a".into()),
            directory: "/b".into(),
            served_model_name: vec!["c".into()],
        },
        listen: engine::Listen {
            socket: "/d".into(),
            tcp_address: Some(([127, 0, 0, 1], 1).into()),
            request_body_bytes: 1026,
        },
        control: engine::Control { socket: "/e".into(), allowed_uids: vec![3] },
        memory: engine::Memory { kv_cache_bytes: 1_048_580, block_tokens: 5, prefix_cache: false },
        scheduler: engine::Scheduler { batch_tokens_max: 6, sequences_max: 7, waiting_max: 8 },
        compute: engine::Compute { threads: 9.try_into().unwrap() },
        metrics: engine::Metrics {
            per_request: true,
            log_stats: true,
            force_include_usage: true,
            vllm_names: false,
            aphrodite_names: false,
        },
        shutdown: engine::Shutdown { drain_timeout: MS(10) },
        log: Log { level: Level::Trace, format: LogFormat::Json },
    };
    assert_eq!(from_engine(Says { file, ..Says::default() }).unwrap(), expected);
}

#[test]
fn a_journal_that_is_off_is_absent() {
    assert_eq!(
        from_gateway(Says { flags: &["journal.enabled=false"], ..Says::default() }).unwrap().journal,
        None
    );
}

/// `pitot up` takes the engine that lies beside it, and only one that is there.
#[test]
fn the_engine_is_looked_for_beside_the_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let mut sources =
        pitot_config::Sources { environment: crate::surroundings(&[]), file: None, flags: Vec::new() };
    sources.environment.executable = Some(folder.path().join("pitot"));
    let command = |sources| gateway::resolve(sources).unwrap().settings.engine.command;
    assert_eq!(command(&sources), std::path::Path::new("pitot-engine"));
    std::fs::write(folder.path().join("pitot-engine"), "").unwrap();
    assert_eq!(command(&sources), folder.path().join("pitot-engine"));
}
