//! `pitot-engine`: the inference engine, the fetching of models, and a look at the configuration.
//!
//! Apart from the library so that tests run the same engine in their own process. Must not know: how anything is
//! done.

use std::process::ExitCode;

use pitot_server::arguments::{self, Called};
use pitot_server::{config_show, pull, serve};

fn main() -> ExitCode {
    let called = match arguments::parse(std::env::args_os()) {
        Ok(called) => called,
        Err(error) => error.exit(),
    };
    let done = match called {
        Called::Serve(sources, end) => serve::run(&sources, end),
        Called::Pull(arguments) => pull::run(arguments).map(|_| ()),
        Called::ConfigShow(sources, form) => config_show::run(&sources, form),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pitot-engine: {error:#}");
            ExitCode::FAILURE
        }
    }
}
