//! The process's surroundings as a value: variables, user, platform, and the folders that follow from them.
//!
//! Apart so that everything else in the crate is a function of its arguments and a test needs no environment of
//! its own. Only [`Environment::of_process`] looks at the process. Must not know: any key.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Folder for sockets of a system's service.
const RUN_FOLDER: &str = "/run/pitot";
const SYSTEM_FOLDER: &str = "/etc/pitot";

/// Conventions for folders; anything that is not a Mac follows the XDG base directory specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    Xdg,
    Mac,
}

/// Everything outside the configuration itself on which a resolved setting depends.
#[derive(Debug, Clone)]
pub struct Environment {
    pub variables: BTreeMap<String, OsString>,
    /// Folder in which `./pitot.toml` is looked for.
    pub working_folder: PathBuf,
    /// Folder of the machine's configuration, `/etc/pitot`.
    pub system_folder: PathBuf,
    pub platform: Platform,
    /// Effective user id; 0 is root.
    pub user_id: u32,
    /// Whether `/run/pitot` exists and this user may write there.
    pub run_folder_writable: bool,
    /// The running program, beside which `pitot up` looks for the engine.
    pub executable: Option<PathBuf>,
    /// Processors, the meaning of `threads = "auto"`.
    pub processors: NonZeroUsize,
}

impl Environment {
    /// Reads the surroundings of this process, once, at its start.
    pub fn of_process() -> Self {
        let writable = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        Environment {
            variables: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
                .collect(),
            working_folder: PathBuf::from("."),
            system_folder: PathBuf::from(SYSTEM_FOLDER),
            platform: if cfg!(target_os = "macos") { Platform::Mac } else { Platform::Xdg },
            user_id: rustix::process::geteuid().as_raw(),
            run_folder_writable: rustix::fs::access(RUN_FOLDER, writable).is_ok(),
            executable: std::env::current_exe().ok(),
            processors: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }

    /// Folder of the user's configuration, `$XDG_CONFIG_HOME/pitot` or `~/.config/pitot` (on a Mac too).
    pub fn config_folder(&self) -> Option<PathBuf> {
        self.absolute("XDG_CONFIG_HOME")
            .or_else(|| Some(self.home()?.join(".config")))
            .map(|folder| folder.join("pitot"))
    }

    /// Folder for sockets.
    ///
    /// `$XDG_RUNTIME_DIR/pitot`; else `/run/pitot` for root or where it can be written; else `pitot-<user id>` in
    /// `$TMPDIR` or `/tmp`. The last lies where others write too: whoever makes it has to use mode 0700 and to
    /// refuse one that belongs to somebody else.
    pub fn socket_folder(&self) -> PathBuf {
        if let Some(folder) = self.absolute("XDG_RUNTIME_DIR") {
            return folder.join("pitot");
        }
        if self.platform == Platform::Xdg && (self.user_id == 0 || self.run_folder_writable) {
            return PathBuf::from(RUN_FOLDER);
        }
        let temporary = self.absolute("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp"));
        temporary.join(format!("pitot-{}", self.user_id))
    }

    /// Folder in which models lie: `pitot/models` in the user's cache folder, else `/var/cache/pitot/models`.
    pub fn models_folder(&self) -> PathBuf {
        self.user_folder("XDG_CACHE_HOME", ".cache", "Library/Caches")
            .unwrap_or_else(|| PathBuf::from("/var/cache"))
            .join("pitot/models")
    }

    /// Folder of the journal: `pitot/journal` in the user's state folder, else `/var/lib/pitot/journal`.
    pub fn journal_folder(&self) -> PathBuf {
        self.user_folder("XDG_STATE_HOME", ".local/state", "Library/Application Support")
            .unwrap_or_else(|| PathBuf::from("/var/lib"))
            .join("pitot/journal")
    }

    /// Writes out a leading `~/`. None for an empty path, or for `~` without a home folder.
    pub(crate) fn expand(&self, path: &str) -> Option<PathBuf> {
        match path.strip_prefix('~') {
            None => (!path.is_empty()).then(|| PathBuf::from(path)),
            Some("") => self.home(),
            Some(rest) => Some(self.home()?.join(rest.strip_prefix('/')?)),
        }
    }

    fn user_folder(&self, variable: &str, xdg: &str, mac: &str) -> Option<PathBuf> {
        let below_home = match self.platform {
            Platform::Xdg => xdg,
            Platform::Mac => mac,
        };
        self.absolute(variable).or_else(|| Some(self.home()?.join(below_home)))
    }

    fn home(&self) -> Option<PathBuf> {
        self.absolute("HOME")
    }

    /// A folder named by a variable. The XDG specification has relative ones ignored.
    fn absolute(&self, variable: &str) -> Option<PathBuf> {
        let path = Path::new(self.variables.get(variable)?);
        path.is_absolute().then(|| path.to_path_buf())
    }
}
