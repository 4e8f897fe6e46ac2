//! `pitot-engine`: reads the command and runs it. Apart because a binary needs a place where arguments meet what they ask for.
//! Must not know how anything is done.

mod pull;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "pitot-engine", version, about = "Serves a language model on this machine")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Pull(pull::PullArguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Pull(arguments) => pull::run(arguments).map(|_| ()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In words, without a backtrace: what fails here is the world's doing, not a defect.
            eprintln!("pitot-engine: {error:#}");
            ExitCode::FAILURE
        }
    }
}
