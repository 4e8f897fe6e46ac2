//! `pitot`: the measuring gateway, and the commands that a person types.
//!
//! Apart from everything it calls: arguments, configuration and logging are settled here, once. Must not know:
//! how anything is done.

mod admin;
mod app;
mod arguments;
mod assemble;
mod clock;
mod commands;
mod decide;
mod emit;
mod engine_link;
mod error;
mod forward;
mod front;
mod keys;
mod ready;
mod request;
mod rewrite;
mod service;
mod shutdown;
mod sinks;
mod stamped;
mod supervise;
mod tracked;
mod upstream;

use std::process::ExitCode;

use arguments::Called;

fn main() -> ExitCode {
    let called = match arguments::parse(std::env::args_os()) {
        Ok(called) => called,
        Err(error) => error.exit(),
    };
    let done = match called {
        Called::Serve(sources) => commands::serve::run(&sources),
        Called::Up(sources, up) => commands::up::run(&sources, &up),
        Called::ConfigShow(sources, form) => commands::config_show::run(&sources, form),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pitot: {error:#}");
            ExitCode::FAILURE
        }
    }
}
