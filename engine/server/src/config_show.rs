//! `pitot-engine config show`: every setting, its value and where it came from.
//!
//! Apart as every command is. Must not know: any key.

use pitot_config::{Sources, engine};

use crate::arguments::Form;

/// Prints the settings.
///
/// # Errors
/// Everything that is wrong with the configuration.
pub fn run(sources: &Sources, form: Form) -> anyhow::Result<()> {
    let resolved = engine::resolve(sources)?;
    match form {
        Form::Table => print!("{}", resolved.shown),
        Form::Json => println!("{:#}", resolved.shown.to_json()),
    }
    Ok(())
}
