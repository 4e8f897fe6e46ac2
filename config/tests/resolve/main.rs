//! Both configurations through the crate's only door: what a test says, layer by layer, and what comes of it.
//!
//! Apart from the crate's files because each rule here crosses several of them. Must not know: figment.

#![allow(clippy::unwrap_used, reason = "in a test a failed unwrap is a failed test")]

mod fields;
mod layers;
mod shown;
mod values;

use std::fs;
use std::num::NonZeroUsize;

use pitot_config::{
    ENGINE_FLAGS, Environment, Flag, FlagKey, GATEWAY_FLAGS, Platform, Sources, engine, gateway,
};

/// A user 1000 at /home/ada without any configuration, on a machine with three processors.
fn surroundings(variables: &[(&str, &str)]) -> Environment {
    let home = [("HOME", "/home/ada"), ("XDG_RUNTIME_DIR", "/run/user/1000")];
    Environment {
        variables: home.iter().chain(variables).map(|(name, value)| ((*name).into(), value.into())).collect(),
        working_folder: "/nowhere".into(),
        system_folder: "/nowhere".into(),
        platform: Platform::Xdg,
        user_id: 1000,
        run_folder_writable: false,
        executable: None,
        processors: NonZeroUsize::new(3).unwrap(),
    }
}

/// What a case says, layer by layer.
#[derive(Default, Clone, Copy)]
struct Says<'a> {
    file: &'a str,
    variables: &'a [(&'a str, &'a str)],
    /// Arguments of `--set`, or one of the flags that stand for a key by itself.
    flags: &'a [&'a str],
}

/// Builds the sources and resolves by `resolve`; the file is called `said.toml`, without its folder in messages.
fn resolved<T>(
    says: Says,
    known: &[FlagKey],
    resolve: impl Fn(&Sources) -> Result<T, String>,
) -> Result<T, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("said.toml");
    fs::write(&path, says.file).unwrap();
    let flag = |said: &&str| match known.iter().find(|known| known.flag == *said) {
        Some(known) => known.said(&[]),
        None => Flag::set(said),
    };
    let sources = Sources {
        environment: surroundings(says.variables),
        file: (!says.file.is_empty()).then_some(path),
        flags: says.flags.iter().map(flag).collect(),
    };
    resolve(&sources).map_err(|text| text.replace(&format!("{}/", folder.path().display()), ""))
}

fn from_gateway(says: Says) -> Result<gateway::Settings, String> {
    resolved(says, GATEWAY_FLAGS, |sources| {
        gateway::resolve(sources).map(|resolved| resolved.settings).map_err(|problems| problems.to_string())
    })
}

fn from_engine(says: Says) -> Result<engine::Settings, String> {
    resolved(says, ENGINE_FLAGS, |sources| {
        engine::resolve(sources).map(|resolved| resolved.settings).map_err(|problems| problems.to_string())
    })
}

#[track_caller]
fn check_gateway(says: Says, expected: &str) {
    assert_eq!(from_gateway(says).unwrap_err(), expected);
}

#[track_caller]
fn check_engine(says: Says, expected: &str) {
    assert_eq!(from_engine(says).unwrap_err(), expected);
}
