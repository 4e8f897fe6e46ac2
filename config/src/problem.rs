//! What can be wrong with a configuration, and where each value was said.
//!
//! Apart because every other file of the crate reports through it. Must not know: any key.

use std::fmt;
use std::path::PathBuf;

use figment::{Metadata, Source};
use thiserror::Error;

/// Where a value was said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The defaults compiled in.
    Default,
    File(PathBuf),
    /// Name of the environment variable.
    Variable(String),
    /// Name of the flag, with its dashes.
    Flag(String),
}

const VARIABLE: &str = "variable";
const FLAG: &str = "flag";

impl Origin {
    /// Writes the origin in figment's terms, so that figment carries it along with each value.
    pub(crate) fn to_metadata(&self) -> Metadata {
        match self {
            Origin::Default => Metadata::named("default"),
            Origin::File(path) => Metadata::from("file", path.as_path()),
            Origin::Variable(name) => Metadata::from(VARIABLE, name.as_str()),
            Origin::Flag(name) => Metadata::from(FLAG, name.as_str()),
        }
    }

    /// Reads back what [`Origin::to_metadata`] wrote.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Origin {
        match (&*metadata.name, &metadata.source) {
            (_, Some(Source::File(path))) => Origin::File(path.clone()),
            (VARIABLE, Some(Source::Custom(name))) => Origin::Variable(name.clone()),
            (FLAG, Some(Source::Custom(name))) => Origin::Flag(name.clone()),
            (_, _) => Origin::Default,
        }
    }

    /// The kind in one word: `default`, `file`, `variable` or `flag`.
    pub fn kind(&self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File(_) => "file",
            Origin::Variable(_) => VARIABLE,
            Origin::Flag(_) => FLAG,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Variable(name) => write!(f, "variable {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{origin}: {wrong}")]
pub struct Problem {
    pub origin: Origin,
    pub wrong: Wrong,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Wrong {
    /// No key of that name; `hint` begins with a separator or is empty.
    #[error("unknown key `{key}`{hint}")]
    UnknownKey { key: String, hint: String },
    #[error("`{key}` is a section of keys, found {found}")]
    NotASection { key: String, found: String },
    #[error("`{key}` takes {expected}; found {found}")]
    Value { key: String, expected: String, found: String },
    #[error("expected section.key=value, found {found:?}")]
    NotAssignment { found: String },
    #[error("the value of `{key}` is not UTF-8")]
    NotUtf8 { key: String },
    #[error("could not be read: {reason}")]
    Unreadable { reason: String },
    #[error("is not TOML: {reason}")]
    Syntax { reason: String },
    /// Two values that are right alone and wrong together.
    #[error("{0}")]
    Contradiction(String),
}

/// All that is wrong with a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [problem] => write!(f, "configuration: {problem}"),
            problems => {
                write!(f, "configuration: {} problems", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for Problems {}
