//! The command line of `pitot-engine`.
//!
//! Apart so that `--help` can be read as one text. Flags that stand for a configuration key come from the table
//! that both programs share. Must not know: what the commands do.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, error::ErrorKind};
use pitot_config::{ENGINE_FLAGS, Flag, FlagKey, Form, SET_FLAG, Sources, Takes};

use crate::pull::PullArguments;

/// What was asked for.
#[derive(Debug)]
pub enum Called {
    Serve(Sources, StandardInput),
    Pull(PullArguments),
    ConfigShow(Sources, Form),
}

/// What the end of the standard input means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandardInput {
    Ignored,
    /// Its end stops the engine: a supervisor that dies takes the engine with it.
    StopsAtEnd,
}

const ABOUT: &str = "An LLM inference engine with an OpenAI endpoint that stamps every request";
const AFTER_HELP: &str = "\
Settings come from the compiled defaults, then a file (--config, else ./engine.toml, else
$XDG_CONFIG_HOME/pitot/engine.toml, else /etc/pitot/engine.toml), then variables PITOT_SECTION__KEY, then flags.
Any key can be set with --set section.key=value; `pitot-engine config show` lists them all.";

/// Reads the command line.
///
/// # Errors
/// When it is wrong or asks for help; the error knows how to print itself.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Called, clap::Error> {
    let matches = command().try_get_matches_from(arguments)?;
    match matches.subcommand() {
        Some(("serve", serve)) => {
            let end = match serve.get_flag("stop-with-stdin") {
                true => StandardInput::StopsAtEnd,
                false => StandardInput::Ignored,
            };
            Ok(Called::Serve(sources(serve), end))
        }
        Some(("pull", pull)) => PullArguments::from_arg_matches(pull).map(Called::Pull),
        Some(("config", config)) => match config.subcommand() {
            Some(("show", show)) => {
                let form = if show.get_flag("json") { Form::Json } else { Form::Table };
                Ok(Called::ConfigShow(sources(show), form))
            }
            _ => Err(command().error(ErrorKind::MissingSubcommand, "say `pitot-engine config show`")),
        },
        _ => Err(command().error(ErrorKind::MissingSubcommand, "say what to do; see `pitot-engine --help`")),
    }
}

fn command() -> Command {
    let serve = configured(Command::new("serve").about("Serve a model")).arg(
        Arg::new("stop-with-stdin")
            .long("stop-with-stdin")
            .action(ArgAction::SetTrue)
            .help("Finish what runs and end when the standard input reaches its end"),
    );
    let pull = PullArguments::augment_args(Command::new("pull").about("Bring a model into the user's cache"));
    let show = configured(
        Command::new("show").about("Print every setting, its value and where it came from"),
    )
    .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON instead of a table"));
    Command::new("pitot-engine")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve)
        .subcommand(pull)
        .subcommand(
            Command::new("config")
                .about("Look at the configuration")
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(show),
        )
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
    ENGINE_FLAGS.iter().fold(command, |command, flag| command.arg(argument(flag)))
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
    for flag in ENGINE_FLAGS {
        let name = flag.flag.trim_start_matches('-');
        if matches.value_source(name) != Some(clap::parser::ValueSource::CommandLine) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn flags_reach_their_keys() {
        let line = "pitot-engine serve --stop-with-stdin --listen 127.0.0.1:0 --served-model-name a b --set log.level=debug";
        let called = parse(line.split(' ').map(OsString::from));
        let Ok(Called::Serve(sources, StandardInput::StopsAtEnd)) = called else { panic!("{called:?}") };
        let said: Vec<(&str, Option<&str>)> =
            sources.flags.iter().map(|flag| (flag.key.as_str(), flag.value.as_deref())).collect();
        let expected = [
            ("model.served_model_name", Some("a,b")),
            ("listen.tcp_address", Some("127.0.0.1:0")),
            ("log.level", Some("debug")),
        ];
        assert_eq!(said, expected);
    }
}
