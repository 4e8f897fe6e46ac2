//! `pitot config show`: every setting, its value and where it came from.
//!
//! Apart as every command is. Must not know: any key.

use std::process::ExitCode;

use pitot_config::{Sources, gateway};

use crate::arguments::Form;

/// Prints the settings.
pub fn run(sources: &Sources, form: Form) -> anyhow::Result<ExitCode> {
    let resolved = gateway::resolve(sources)?;
    match form {
        Form::Table => print!("{}", resolved.shown),
        Form::Json => println!("{:#}", resolved.shown.to_json()),
    }
    Ok(ExitCode::SUCCESS)
}
