//! Configuration of both binaries: documented defaults, a file, the environment and flags, resolved into types
//! that cannot be wrong.
//!
//! Apart so that the two binaries read configuration in one way, and so that no core ever does: a core takes
//! small options from its shell. Must not know: how a setting is used, and clap (a binary hands in its flags as
//! [`Flag`]s).
//!
//! The layers, later over earlier: the defaults compiled in (`pitot.toml`, `engine.toml`), one file, variables
//! `PITOT_SECTION__KEY`, flags. Unknown keys are refused in every layer; values are judged once, after the
//! layers lie over each other. All problems are reported together, each with where it was said.
//!
//! ```no_run
//! let sources = pitot_config::Sources::of_process(None, vec![pitot_config::Flag::set("log.level=debug")]);
//! let resolved = pitot_config::gateway::resolve(&sources)?;
//! println!("listening on {}", resolved.settings.listen.address);
//! print!("{}", resolved.shown);
//! # Ok::<(), pitot_config::Problems>(())
//! ```

pub mod engine;
mod environment;
mod flags;
pub mod gateway;
mod layers;
mod problem;
mod said;
mod shared;
mod show;

pub use environment::{Environment, Platform};
pub use flags::{ENGINE_FLAGS, Flag, FlagKey, GATEWAY_FLAGS, SET_FLAG, Takes};
pub use layers::Sources;
pub use problem::{Origin, Problem, Problems, Wrong};
pub use shared::{Level, Log, LogFormat};
pub use show::{Form, Row, Shown};

/// Settings together with where each of them came from.
#[derive(Debug, Clone)]
pub struct Resolved<S> {
    pub settings: S,
    /// Every key in the order of the default file, for `config show`.
    pub shown: Shown,
}
