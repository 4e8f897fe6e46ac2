//! The command line of `pitot`.
//!
//! Apart so that `--help` can be read as one text, and so that clap is known here only: flags that stand for a
//! configuration key come from the table that both programs share. Must not know: what the commands do.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, error::ErrorKind};
use pitot_config::{Flag, FlagKey, Form, GATEWAY_FLAGS, SET_FLAG, Sources, Takes};

/// What was asked for.
#[derive(Debug)]
pub enum Called {
    Serve(Sources),
    Up(Sources, Up),
    ConfigShow(Sources, Form),
}

/// Arguments of `up` that are not the gateway's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Up {
    /// Ask this, show the answer and its measurement, and stop.
    pub once: Option<String>,
    /// Handed to the engine.
    pub model: Option<String>,
    pub served_model_names: Vec<String>,
    /// `section.key=value` for the engine's configuration, as its own `--set` takes it.
    pub engine_set: Vec<String>,
}

const ABOUT: &str =
    "A measuring sidecar for LLM inference: a drop-in OpenAI endpoint that times every request";
const LONG_ABOUT: &str = "\
A measuring sidecar for LLM inference: a drop-in OpenAI endpoint that times every request.

Point an application's base_url at http://127.0.0.1:2242/v1. Each request is passed to the inference engine
behind and measured on its way: first token, reasoning, content and whole response, token counts and speeds,
and how it ended.

  pitot up                      start engine and gateway together, supervised
  pitot up --once \"question\"    ask one question, show the answer and its measurement
  pitot serve                   the gateway alone, in front of a server that runs already
  pitot config show             every setting, its value and where it came from

Numbers: http://127.0.0.1:2243/metrics (Prometheus), /rates, /requests/{id}.";
const SERVE_ABOUT: &str = "Run the gateway in front of an engine that runs already";
const UP_ABOUT: &str = "Run engine and gateway together; an engine that dies is started again";
const AFTER_HELP: &str = "\
Settings come from the compiled defaults, then a file (--config, else ./pitot.toml, else
$XDG_CONFIG_HOME/pitot/pitot.toml, else /etc/pitot/pitot.toml), then variables PITOT_SECTION__KEY, then flags.
Any key can be set with --set section.key=value; `pitot config show` lists them all.";

/// Reads the command line.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Called, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    match matches.subcommand() {
        Some(("serve", serve)) => Ok(Called::Serve(sources(serve))),
        Some(("up", up)) => Ok(Called::Up(sources(up), up_arguments(up))),
        Some(("config", config)) => match config.subcommand() {
            Some(("show", show)) => {
                let form = if show.get_flag("json") { Form::Json } else { Form::Table };
                Ok(Called::ConfigShow(sources(show), form))
            }
            _ => Err(command().error(ErrorKind::MissingSubcommand, "say `pitot config show`")),
        },
        _ => Err(command().error(ErrorKind::MissingSubcommand, "say what to do; see `pitot --help`")),
    }
}

fn command() -> Command {
    let up = configured(Command::new("up").about(UP_ABOUT))
        .arg(
            Arg::new("once")
                .long("once")
                .value_name("QUESTION")
                .help("Ask this, stream the answer, show the measured request, stop"),
        )
        .arg(
            Arg::new("model")
                .long("model")
                .value_name("MODEL")
                .help("Model for the engine: a name or a folder"),
        )
        .arg(
            Arg::new("served-model-name")
                .long("served-model-name")
                .value_name("NAME")
                .num_args(1..)
                .action(ArgAction::Append)
                .help("Names by which requests may call the model"),
        )
        .arg(
            Arg::new("engine-set")
                .long("engine-set")
                .value_name("SECTION.KEY=VALUE")
                .action(ArgAction::Append)
                .help("Set a key of the engine's configuration (`pitot-engine config show` lists them)"),
        );
    let show = configured(
        Command::new("show").about("Print every setting, its value and where it came from"),
    )
    .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON instead of a table"));
    Command::new("pitot")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(configured(Command::new("serve").about(SERVE_ABOUT)))
        .subcommand(up)
        .subcommand(Command::new("config").about("Look at the configuration").subcommand(show))
}

/// Adds the flags that stand for configuration keys.
fn configured(command: Command) -> Command {
    let command = command
        .after_help(AFTER_HELP)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Configuration file, in place of the usual ones"),
        )
        .arg(
            Arg::new("set")
                .long("set")
                .value_name("SECTION.KEY=VALUE")
                .action(ArgAction::Append)
                .help("Set any configuration key"),
        );
    GATEWAY_FLAGS.iter().fold(command, |command, flag| command.arg(argument(flag)))
}

fn argument(flag: &'static FlagKey) -> Arg {
    let name = flag.flag.trim_start_matches('-');
    let argument = Arg::new(name).long(name).help(format!("{} ({})", flag.about, flag.key));
    match flag.takes {
        Takes::Nothing { .. } => argument.action(ArgAction::SetTrue),
        Takes::Value => argument.value_name("VALUE"),
        Takes::List => argument.value_name("VALUE").num_args(1..).action(ArgAction::Append),
    }
}

fn sources(matches: &ArgMatches) -> Sources {
    let mut flags: Vec<Flag> = Vec::new();
    for flag in GATEWAY_FLAGS {
        let name = flag.flag.trim_start_matches('-');
        let given = matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
        if !given {
            continue;
        }
        flags.push(match flag.takes {
            Takes::Nothing { .. } => flag.said(&[]),
            Takes::Value | Takes::List => flag.said(&texts(matches, name)),
        });
    }
    flags.extend(texts(matches, SET_FLAG.trim_start_matches('-')).iter().map(|argument| Flag::set(argument)));
    Sources::of_process(matches.get_one::<PathBuf>("config").cloned(), flags)
}

fn texts(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.get_many::<String>(name).map(|values| values.cloned().collect()).unwrap_or_default()
}

fn up_arguments(matches: &ArgMatches) -> Up {
    Up {
        once: matches.get_one::<String>("once").cloned(),
        model: matches.get_one::<String>("model").cloned(),
        served_model_names: texts(matches, "served-model-name"),
        engine_set: texts(matches, "engine-set"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn flags_reach_their_keys() {
        let called = parse(
            [
                "pitot",
                "serve",
                "--disable-log-stats",
                "--set",
                "limits.idle_timeout_ms=5",
                "--listen",
                "127.0.0.1:0",
            ]
            .map(OsString::from),
        );
        let Ok(Called::Serve(sources)) = called else { panic!("{called:?}") };
        let said: Vec<(&str, Option<&str>)> =
            sources.flags.iter().map(|flag| (flag.key.as_str(), flag.value.as_deref())).collect();
        assert!(said.contains(&("metrics.log_stats", Some("false"))), "{said:?}");
        assert!(said.contains(&("limits.idle_timeout_ms", Some("5"))), "{said:?}");
        assert!(said.contains(&("listen.address", Some("127.0.0.1:0"))), "{said:?}");
    }
}
