//! Keys that stand in both default files and mean the same in both.
//!
//! Apart so that neither program can read them in its own way: one variable sets both. Must not know: either
//! program.

use crate::said::Said;

/// Least important line that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// The level's name in lower case, as tracing's filters spell it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

/// Form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Human,
    Json,
}

/// `[log]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    pub level: Level,
    pub format: LogFormat,
}

pub(crate) fn log(said: &mut Said) -> Log {
    let levels = [Level::Error, Level::Warn, Level::Info, Level::Debug, Level::Trace];
    Log {
        level: said.choice("log.level", &levels.map(|level| (level.name(), level))),
        format: said.choice("log.format", &[("human", LogFormat::Human), ("json", LogFormat::Json)]),
    }
}

/// The metrics keys that both programs have.
pub(crate) struct SharedMetrics {
    pub per_request: bool,
    pub log_stats: bool,
    pub force_include_usage: bool,
}

/// Reads them and refuses per-request metrics without the statistics that they are made of.
pub(crate) fn metrics(said: &mut Said) -> SharedMetrics {
    let metrics = SharedMetrics {
        per_request: said.switch("metrics.per_request"),
        log_stats: said.switch("metrics.log_stats"),
        force_include_usage: said.switch("metrics.force_include_usage"),
    };
    if metrics.per_request && !metrics.log_stats {
        said.contradict(
            "metrics.per_request",
            "metrics.log_stats",
            "per-request metrics are made of the statistics that are turned off here; \
             give up --enable-per-request-metrics or --disable-log-stats",
        );
    }
    metrics
}
