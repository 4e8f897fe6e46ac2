//! Where models live and how one gets there whole: a folder is built beside its place under a lock, synced, and renamed. Apart
//! because this is the only code that must be right about crashes and about two pulls at once. Must not know what a model is.
//!
//! For the model `name`, its folder also holds `.name.lock` (kept: removing a lock file lets two holders in), `.name.partial-PID`
//! (an unfinished pull; removed by the next holder of the lock) and `.name.download` (pieces that a source can resume from).

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, RenameFlags, flock};

use super::error::PullError;
use super::progress::Progress;

/// Longest name of a model, both parts together.
const NAME_BYTES_MAX: usize = 200;

/// The name of a model in the cache: one part or `organisation/model`, of letters, digits, `.`, `_` and `-`, no part beginning with a dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    pub fn parse(name: &str) -> Result<Name, PullError> {
        let refuse = |reason| Err(PullError::Name { name: name.to_owned(), reason });
        if name.len() > NAME_BYTES_MAX {
            return refuse("it is too long");
        }
        if name.split('/').count() > 2 {
            return refuse("it has more than two parts");
        }
        for part in name.split('/') {
            if part.is_empty() || part.starts_with('.') {
                return refuse("a part of it is empty or begins with a dot");
            }
            let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
            if !part.chars().all(plain) {
                return refuse("only letters, digits, '.', '_', '-' and one '/' are allowed");
            }
        }
        Ok(Name(name.to_owned()))
    }

    /// The nearest allowed name for a file or folder called `label`.
    pub fn of_label(label: &str) -> Result<Name, PullError> {
        let allowed: String = label
            .chars()
            .map(|letter| match letter {
                letter if letter.is_ascii_alphanumeric() || "._-".contains(letter) => letter,
                _ => '-',
            })
            .collect();
        Name::parse(allowed.trim_start_matches('.'))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The folder of all models of this user: `pitot/models` in XDG_CACHE_HOME, else in `~/Library/Caches` on macOS and `~/.cache` elsewhere.
pub fn models_folder() -> Result<PathBuf, PullError> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let below_home = match cfg!(target_os = "macos") {
        true => "Library/Caches",
        false => ".cache",
    };
    variable("XDG_CACHE_HOME")
        .or_else(|| Some(variable("HOME")?.join(below_home)))
        .map(|cache| cache.join("pitot").join("models"))
        .ok_or(PullError::NoCacheFolder)
}

/// The place of one model, locked against other pulls until it is dropped.
#[derive(Debug)]
pub struct Place {
    /// The model's own folder, which need not exist.
    pub folder: PathBuf,
    parent: PathBuf,
    leaf: String,
    /// The lock is held as long as this is open.
    _lock: File,
}

impl Place {
    /// Waits for other pulls of the same model, saying so, and removes what crashed ones left behind.
    pub fn lock(models: &Path, name: &Name, progress: Progress) -> Result<Place, PullError> {
        let folder = models.join(name.as_str());
        let leaf = name.as_str().rsplit('/').next().unwrap_or(name.as_str());
        let parent = match name.as_str().split_once('/') {
            Some((organisation, _)) => models.join(organisation),
            None => models.to_owned(),
        };
        std::fs::create_dir_all(&parent).map_err(PullError::io("creating", &parent))?;
        let path = parent.join(format!(".{leaf}.lock"));
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(PullError::io("opening", &path))?;
        let locked = |result: rustix::io::Result<()>| {
            result.map_err(|error| PullError::io("locking", &path)(error.into()))
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let name = name.as_str();
                progress.note(&format!("another pull of {name} is running: waiting for it"));
                locked(rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive)))?;
            }
            result => locked(result)?,
        }
        let place = Place { folder, leaf: leaf.to_owned(), parent, _lock: lock };
        place.remove_partials()?;
        Ok(place)
    }

    /// Only the holder of the lock builds, so whatever is half built now has no owner.
    fn remove_partials(&self) -> Result<(), PullError> {
        let prefix = format!(".{}.partial-", self.leaf);
        let entries = std::fs::read_dir(&self.parent).map_err(PullError::io("reading", &self.parent))?;
        for entry in entries {
            let entry = entry.map_err(PullError::io("reading", &self.parent))?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                let path = entry.path();
                std::fs::remove_dir_all(&path).map_err(PullError::io("removing", &path))?;
            }
        }
        Ok(())
    }

    /// Where a source keeps what it can resume from; not created here.
    pub fn download_folder(&self) -> PathBuf {
        self.parent.join(format!(".{}.download", self.leaf))
    }

    /// Begins a new folder beside the place.
    pub fn stage(&self) -> Result<Stage<'_>, PullError> {
        let root = self.parent.join(format!(".{}.partial-{}", self.leaf, std::process::id()));
        let stage = Stage { model: root.join("model"), work: root.join("work"), root, place: self };
        for path in [&stage.root, &stage.model, &stage.work] {
            std::fs::create_dir(path).map_err(PullError::io("creating", path))?;
        }
        Ok(stage)
    }

    /// Refuses early what would fail late.
    pub fn require_space(&self, needed_bytes: u64) -> Result<(), PullError> {
        let space = rustix::fs::statvfs(&self.parent)
            .map_err(|error| PullError::io("reading", &self.parent)(error.into()))?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        if free_bytes < needed_bytes {
            return Err(PullError::Space { path: self.parent.clone(), free_bytes, needed_bytes });
        }
        Ok(())
    }
}

/// An unfinished model; dropping it removes it.
#[derive(Debug)]
pub struct Stage<'a> {
    /// The folder that will become the model.
    pub model: PathBuf,
    /// A folder for whatever is needed on the way.
    pub work: PathBuf,
    root: PathBuf,
    place: &'a Place,
}

impl Stage<'_> {
    /// Syncs everything and puts the folder in its place in one step, replacing what was there.
    pub fn install(self) -> Result<(), PullError> {
        sync_folder(&self.model)?;
        let target = &self.place.folder;
        match rustix::fs::renameat_with(
            rustix::fs::CWD,
            &self.model,
            rustix::fs::CWD,
            target,
            RenameFlags::EXCHANGE,
        ) {
            // The old folder is now in the stage and goes with it.
            Ok(()) => {}
            Err(_) => self.replace()?,
        }
        sync(&self.place.parent)
    }

    /// Where two folders cannot be exchanged, or there is nothing to exchange with.
    fn replace(&self) -> Result<(), PullError> {
        let target = &self.place.folder;
        let aside = self.root.join("old");
        match std::fs::rename(target, &aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(PullError::io("moving aside", target)(error));
            }
            Err(_) | Ok(()) => {}
        }
        std::fs::rename(&self.model, target).map_err(PullError::io("renaming to", target))
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next pull.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn sync_folder(folder: &Path) -> Result<(), PullError> {
    for entry in std::fs::read_dir(folder).map_err(PullError::io("reading", folder))? {
        let path = entry.map_err(PullError::io("reading", folder))?.path();
        let kind = std::fs::symlink_metadata(&path).map_err(PullError::io("reading", &path))?;
        // A link's target is somebody else's and was on the disk before.
        if kind.is_file() {
            sync(&path)?;
        }
    }
    sync(folder)
}

fn sync(path: &Path) -> Result<(), PullError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(PullError::io("syncing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(models: &Path, name: &str) -> Place {
        Place::lock(models, &Name::parse(name).unwrap(), Progress::Quiet).unwrap()
    }

    /// Puts a model of one file in its place.
    fn install(place: &Place, text: &str) {
        let stage = place.stage().unwrap();
        std::fs::write(stage.model.join("file"), text).unwrap();
        stage.install().unwrap();
    }

    fn visible(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".lock"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn names_stay_inside_the_folder() {
        for good in ["a", "a/b", "Org-1/model_2.5"] {
            assert_eq!(Name::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "/", "a/", "/a", "..", "a/..", ".a", "a/b/c", "a b", "a\\b", "ä"] {
            assert!(Name::parse(bad).is_err(), "{bad}");
        }
        assert!(Name::parse(&"a".repeat(201)).is_err());
    }

    #[test]
    fn a_model_appears_whole_and_leaves_nothing_beside_it() {
        let models = tempfile::tempdir().unwrap();
        let place = lock(models.path(), "org/model");
        let stage = place.stage().unwrap();
        std::fs::write(stage.model.join("file"), "one").unwrap();
        assert!(!place.folder.exists(), "not before it is whole");
        stage.install().unwrap();
        assert_eq!(std::fs::read_to_string(place.folder.join("file")).unwrap(), "one");
        install(&place, "two");
        assert_eq!(std::fs::read_to_string(place.folder.join("file")).unwrap(), "two");
        assert_eq!(visible(&models.path().join("org")), ["model"]);
    }

    #[test]
    fn where_folders_cannot_be_exchanged_the_old_one_moves_aside() {
        let models = tempfile::tempdir().unwrap();
        let place = lock(models.path(), "model");
        install(&place, "one");
        let stage = place.stage().unwrap();
        std::fs::write(stage.model.join("file"), "two").unwrap();
        stage.replace().unwrap();
        drop(stage);
        assert_eq!(std::fs::read_to_string(place.folder.join("file")).unwrap(), "two");
        assert_eq!(visible(models.path()), ["model"]);
    }

    #[test]
    fn a_pull_that_fails_leaves_the_old_model() {
        let models = tempfile::tempdir().unwrap();
        let place = lock(models.path(), "model");
        install(&place, "one");
        drop(place.stage().unwrap());
        assert_eq!(visible(models.path()), ["model"]);
        assert_eq!(std::fs::read_to_string(place.folder.join("file")).unwrap(), "one");
    }

    #[test]
    fn what_a_crash_left_is_removed_by_the_next_holder() {
        let models = tempfile::tempdir().unwrap();
        for name in [".model.partial-1", ".model.partial-99999999", ".model2.partial-1"] {
            std::fs::create_dir_all(models.path().join(name).join("work")).unwrap();
        }
        let place = lock(models.path(), "model");
        assert_eq!(visible(models.path()), [".model2.partial-1"], "only its own");
        drop(place);
    }

    #[test]
    fn a_second_pull_waits_for_the_first() {
        let models = tempfile::tempdir().unwrap();
        let first = lock(models.path(), "model");
        let second = std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let place = lock(models.path(), "model");
                std::fs::read_to_string(place.folder.join("file"))
            });
            // However late the second comes, it must find what the first has put there.
            install(&first, "first");
            drop(first);
            second.join().unwrap()
        });
        assert_eq!(second.unwrap(), "first");
    }

    #[test]
    fn a_lock_is_held_against_others_until_it_is_dropped() {
        let models = tempfile::tempdir().unwrap();
        let place = lock(models.path(), "model");
        let other = File::open(models.path().join(".model.lock")).unwrap();
        let attempt = || flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(attempt(), Err(rustix::io::Errno::WOULDBLOCK));
        drop(place);
        attempt().unwrap();
    }

    #[test]
    fn more_space_than_there_is_is_refused_before_the_work() {
        let models = tempfile::tempdir().unwrap();
        let place = lock(models.path(), "model");
        place.require_space(1).unwrap();
        let error = place.require_space(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("no space for the model"), "{error}");
    }
}
