//! `pitot config show`: every setting, its value and where it came from.
//!
//! Apart as every command is. Must not know: any key.

use std::process::ExitCode;

use pitot_config::{Form, Sources, gateway};

/// Prints the settings.
pub fn run(sources: &Sources, form: Form) -> anyhow::Result<ExitCode> {
    gateway::resolve(sources)?.shown.print(form)?;
    Ok(ExitCode::SUCCESS)
}
