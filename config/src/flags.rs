//! Flags of the command line and the keys they stand for.
//!
//! Apart from clap: the binaries build their arguments from these tables and hand back what was given, so that
//! both accept the same flags in the same meaning. Must not know: a key's type or range.

use crate::problem::{Origin, Wrong};

/// The flag that sets any key: `--set section.key=value`.
pub const SET_FLAG: &str = "--set";

/// What a flag is followed by on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Nothing: to give the flag sets the key to this.
    Nothing { means: &'static str },
    /// One value.
    Value,
    /// Any number of values, and the flag may be repeated.
    List,
}

/// One flag that stands for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlagKey {
    /// Long name with its dashes.
    pub flag: &'static str,
    /// `section.key`.
    pub key: &'static str,
    pub takes: Takes,
    /// The sentence for `--help`.
    pub about: &'static str,
}

const PER_REQUEST: FlagKey = FlagKey {
    flag: "--enable-per-request-metrics",
    key: "metrics.per_request",
    takes: Takes::Nothing { means: "true" },
    about: "Add the metrics object to each reply",
};
const LOG_STATS: FlagKey = FlagKey {
    flag: "--disable-log-stats",
    key: "metrics.log_stats",
    takes: Takes::Nothing { means: "false" },
    about: "Keep no statistics over requests (gateway), log none (engine)",
};
const FORCE_USAGE: FlagKey = FlagKey {
    flag: "--enable-force-include-usage",
    key: "metrics.force_include_usage",
    takes: Takes::Nothing { means: "true" },
    about: "Send the usage chunk at the end of each stream unasked",
};

/// Flags of `pitot` that stand for a key.
pub const GATEWAY_FLAGS: &[FlagKey] = &[
    value("--listen", "listen.address", "Address for applications"),
    value("--admin-listen", "listen.admin_address", "Address for metrics and probes"),
    value("--upstream", "upstream.address", "Where requests go: unix:/path or http://host:port"),
    value(
        "--upstream-usage",
        "upstream.usage",
        "How the upstream reports usage: auto, stream_options, always, never",
    ),
    PER_REQUEST,
    LOG_STATS,
    FORCE_USAGE,
    value("--log-level", "log.level", "Least important line that is written"),
    value("--log-format", "log.format", "human or json"),
];

/// Flags of `pitot-engine` that stand for a key.
pub const ENGINE_FLAGS: &[FlagKey] = &[
    value("--model", "model.path", "Model to serve: a name, or a path to a folder"),
    FlagKey {
        flag: "--served-model-name",
        key: "model.served_model_name",
        takes: Takes::List,
        about: "Names by which requests may call the model",
    },
    value("--listen", "listen.tcp_address", "Address to answer on besides the socket"),
    value("--socket", "listen.socket", "Unix socket to answer on"),
    value("--control-socket", "control.socket", "Unix socket for the gateway's control channel"),
    value("--threads", "compute.threads", "Threads that compute"),
    PER_REQUEST,
    LOG_STATS,
    FORCE_USAGE,
    value("--log-level", "log.level", "Least important line that is written"),
    value("--log-format", "log.format", "human or json"),
];

const fn value(flag: &'static str, key: &'static str, about: &'static str) -> FlagKey {
    FlagKey { flag, key, takes: Takes::Value, about }
}

/// Something said on the command line about one key. Later ones win over earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// Name of the flag with its dashes, for messages.
    pub name: String,
    /// `section.key`.
    pub key: String,
    /// None when `--set` came without an equals sign, which is reported with the other problems.
    pub value: Option<String>,
}

impl Flag {
    /// Reads the argument of `--set`, `section.key=value`.
    pub fn set(argument: &str) -> Flag {
        let (key, value) = match argument.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.to_owned())),
            None => (argument, None),
        };
        Flag { name: SET_FLAG.to_owned(), key: key.to_owned(), value }
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin::Flag(self.name.clone())
    }

    pub(crate) fn assignment(&self) -> Result<(&str, &str), Wrong> {
        match &self.value {
            Some(value) => Ok((&self.key, value)),
            None => Err(Wrong::NotAssignment { found: self.key.clone() }),
        }
    }
}

impl FlagKey {
    /// Says the key by this flag. `values` are those that followed it; none for [`Takes::Nothing`].
    ///
    /// A list arrives as one text with commas, since that is how lists are written outside files.
    pub fn said(&self, values: &[String]) -> Flag {
        let value = match self.takes {
            Takes::Nothing { means } => means.to_owned(),
            Takes::Value => values.last().cloned().unwrap_or_default(),
            Takes::List => values.join(","),
        };
        Flag { name: self.flag.to_owned(), key: self.key.to_owned(), value: Some(value) }
    }
}
