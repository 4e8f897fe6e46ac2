//! `pitot-engine`: reads the command and runs it. Apart because a binary needs a place where arguments meet what they ask for.
//! Must not know how anything is done.

mod pull;

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

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Pull(arguments) => pull::run(arguments).map(|_| ()),
    }
}
