//! `pitot-engine config show`: every setting, its value and where it came from.
//!
//! Apart as every command is. Must not know: any key.

use pitot_config::{Form, Sources, engine};

/// Prints the settings.
///
/// # Errors
/// Everything that is wrong with the configuration.
pub fn run(sources: &Sources, form: Form) -> anyhow::Result<()> {
    engine::resolve(sources)?.shown.print(form)?;
    Ok(())
}
