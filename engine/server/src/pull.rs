//! `pitot-engine pull`: brings a model into the user's cache, and finds one there. Apart because fetching models and serving them
//! share nothing but the folder. Must not know the engine.
//!
//! Everything is built in a folder beside the model's place, checked, synced, and renamed; a folder is a model only when its manifest
//! is there and the sizes agree. See `cache` for crashes and for two pulls at once.

mod architecture;
mod cache;
mod convert;
mod demo;
mod error;
mod folder;
mod gguf;
mod hash;
mod hub;
mod manifest;
mod metadata;
mod progress;
mod quantization;
mod source;
#[cfg(test)]
mod testing;
mod vocabulary;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use self::cache::{Name, Place, Stage, models_folder};
use self::error::PullError;
use self::manifest::{Found, Manifest, Origin, inspect};
use self::progress::Progress;
use self::source::{DEMO_NAME, Source, is_demo};

/// Brings a model into the user's cache and prints its folder.
#[derive(Debug, Clone, clap::Args)]
pub struct PullArguments {
    /// The model: nothing or `demo` for SmolLM2-135M-Instruct, a GGUF file, a Hugging Face folder, or organisation/model[@revision] on
    /// the Hugging Face hub
    source: Option<String>,
    /// The folder that holds the models, each in a folder of its own [default: pitot/models in the user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    directory: Option<PathBuf>,
    /// Pull even if the model is there, and replace whatever has its name
    #[arg(long)]
    force: bool,
    /// Read every file of a model that is there and compare it with what was pulled
    #[arg(long)]
    verify: bool,
    /// Copy the files of a local folder instead of linking to them
    #[arg(long)]
    copy: bool,
    /// Print nothing but the folder
    #[arg(long, short)]
    quiet: bool,
}

/// Pulls a model unless it is there. The last line on standard output is its folder; everything else goes to standard error.
///
/// # Errors
/// Says what was being done and, where there is one, the way out. Nothing that looks like a model is left behind.
pub fn run(arguments: PullArguments) -> anyhow::Result<PathBuf> {
    let progress = match arguments.quiet {
        true => Progress::Quiet,
        false => Progress::of_stderr(),
    };
    let source = Source::parse(arguments.source.as_deref())?;
    let models = match &arguments.directory {
        Some(directory) => {
            std::path::absolute(directory).with_context(|| format!("finding {}", directory.display()))?
        }
        None => models_folder()?,
    };
    let place = Place::lock(&models, &source.name()?, progress)?;
    let origin = origin(&source)?;
    if arguments.force || !is_present(&place.folder, &origin, &arguments, progress)? {
        build(&source, origin, &place, &arguments, progress)?;
        progress.note(&format!("pulled {}", place.folder.display()));
    } else {
        progress.note(&format!("already there: {}", place.folder.display()));
    }
    // For whoever called to read; one that does not read has the model all the same.
    let _ = writeln!(std::io::stdout(), "{}", place.folder.display());
    Ok(place.folder.clone())
}

fn origin(source: &Source) -> Result<Origin, PullError> {
    let converter = Some(convert::CONVERTER_VERSION);
    Ok(match source {
        Source::Demo => {
            Origin { source: format!("Python package {}", demo::PACKAGE), source_bytes: None, converter }
        }
        Source::Gguf(path) => Origin {
            source: format!("file {}", path.display()),
            source_bytes: Some(std::fs::metadata(path).map_err(PullError::io("reading", path))?.len()),
            converter,
        },
        Source::Folder(path) => {
            Origin { source: format!("folder {}", path.display()), source_bytes: None, converter: None }
        }
        Source::Hub { repository, revision } => Origin {
            source: format!("hub {} {revision}", repository.as_str()),
            source_bytes: None,
            converter: None,
        },
    })
}

/// Whether the model is there as asked for. What cannot be it but may be dear to somebody is an error, not overwritten.
fn is_present(
    folder: &Path,
    origin: &Origin,
    arguments: &PullArguments,
    progress: Progress,
) -> Result<bool, PullError> {
    let occupied = |present: String| PullError::Occupied { path: folder.to_owned(), present };
    match inspect(folder) {
        Found::Nothing => Ok(false),
        Found::Unmarked => Err(occupied("a folder that was not pulled".to_owned())),
        Found::Broken(reason) => {
            progress.note(&format!("the model there is incomplete: {reason}; pulling it again"));
            Ok(false)
        }
        Found::Complete(manifest) if manifest.origin != *origin => {
            let same_place = manifest.origin.source == origin.source;
            match same_place {
                // The file was replaced, or an older converter was at work.
                true => Ok(false),
                false => Err(occupied(format!("a model from: {}", manifest.origin.source))),
            }
        }
        Found::Complete(manifest) if arguments.verify => match manifest.verify(folder, progress) {
            Ok(()) => Ok(true),
            Err(error) => {
                progress.note(&format!("{error}; pulling it again"));
                Ok(false)
            }
        },
        Found::Complete(_) => Ok(true),
    }
}

fn build(
    source: &Source,
    origin: Origin,
    place: &Place,
    arguments: &PullArguments,
    progress: Progress,
) -> Result<(), PullError> {
    let stage: Stage = place.stage()?;
    match source {
        Source::Demo => {
            place.require_space(demo::SPACE_BYTES)?;
            demo::pull(&stage.model, &stage.work, progress)?;
        }
        Source::Gguf(path) => {
            progress.note(&format!("converting {}", path.display()));
            convert::convert(path, &stage.model, progress)?;
        }
        Source::Folder(path) if arguments.copy => folder::copy(path, &stage.model, progress)?,
        Source::Folder(path) => folder::link(path, &stage.model)?,
        Source::Hub { repository, revision } => hub::Hub::of_environment(repository.as_str(), revision)
            .pull(&stage.model, &place.download_folder(), progress)?,
    }
    Manifest::of_folder(&stage.model, origin, progress)?.write(&stage.model)?;
    stage.install()?;
    let downloads = place.download_folder();
    if downloads.exists() {
        std::fs::remove_dir_all(&downloads).map_err(PullError::io("removing", &downloads))?;
    }
    Ok(())
}

/// Why a model could not be found.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    #[error("no model {name:?}: neither a folder here nor pulled to {}: `pitot-engine pull {name}` brings it", .models.display())]
    Missing { name: String, models: PathBuf },
    #[error("the model in {} is incomplete ({reason}): `pitot-engine pull {name}` brings it again", .folder.display())]
    Incomplete { name: String, folder: PathBuf, reason: String },
    #[error("{} is no model folder: it has no config.json; `pitot-engine pull` brings a model", .folder.display())]
    NotAModel { folder: PathBuf },
    #[error("no model {name:?} here; `pitot-engine pull` brings one to the cache")]
    NoCache { name: String, source: PullError },
}

/// Finds a model folder: by its path, or by the name under which it was pulled; `demo` is the demo model.
///
/// # Errors
/// The message says what to run.
pub fn locate(name_or_path: &str) -> Result<PathBuf, LocateError> {
    match models_folder() {
        Ok(models) => locate_in(&models, name_or_path),
        // A path needs no cache.
        Err(source) => match Path::new(name_or_path).is_dir() {
            true => locate_path(name_or_path),
            false => Err(LocateError::NoCache { name: name_or_path.to_owned(), source }),
        },
    }
}

/// As [`locate`], among the models of this folder.
pub fn locate_in(models: &Path, name_or_path: &str) -> Result<PathBuf, LocateError> {
    let name = match is_demo(name_or_path) {
        true => DEMO_NAME,
        false if Path::new(name_or_path).is_dir() => return locate_path(name_or_path),
        false => name_or_path,
    };
    let missing = || LocateError::Missing { name: name.to_owned(), models: models.to_owned() };
    let folder = match Name::parse(name) {
        Ok(name) => models.join(name.as_str()),
        Err(_) => return Err(missing()),
    };
    let incomplete =
        |reason| LocateError::Incomplete { name: name.to_owned(), folder: folder.clone(), reason };
    match inspect(&folder) {
        Found::Complete(_) => Ok(folder),
        Found::Nothing => Err(missing()),
        Found::Unmarked => Err(incomplete(format!("it has no {}", manifest::FILE_NAME))),
        Found::Broken(reason) => Err(incomplete(reason)),
    }
}

/// A folder that a person names need not have been pulled; if it was, it must be whole.
fn locate_path(path: &str) -> Result<PathBuf, LocateError> {
    let folder = PathBuf::from(path);
    match inspect(&folder) {
        Found::Complete(_) => Ok(folder),
        Found::Unmarked if folder.join("config.json").is_file() => Ok(folder),
        Found::Unmarked | Found::Nothing => Err(LocateError::NotAModel { folder }),
        Found::Broken(reason) => Err(LocateError::Incomplete { name: path.to_owned(), folder, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pulls from `source` into `models`, quietly.
    fn pull(source: &Path, models: &Path) -> anyhow::Result<PathBuf> {
        run(arguments(source, models))
    }

    fn arguments(source: &Path, models: &Path) -> PullArguments {
        PullArguments {
            source: Some(source.display().to_string()),
            directory: Some(models.to_owned()),
            force: false,
            verify: false,
            copy: false,
            quiet: true,
        }
    }

    /// A folder with a small GGUF file, and an empty one for models.
    fn sources() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let (file, models) = (root.path().join("tiny.gguf"), root.path().join("models"));
        std::fs::write(&file, testing::tiny_llama()).unwrap();
        (root, file, models)
    }

    /// Which folder this is, whatever its name.
    fn inode(folder: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(folder).unwrap().ino()
    }

    #[test]
    fn a_file_is_pulled_once_and_found_by_its_name() {
        let (_root, file, models) = sources();
        let folder = pull(&file, &models).unwrap();
        assert_eq!(folder, models.join("tiny"));
        assert_eq!(locate_in(&models, "tiny").unwrap(), folder);
        let first = inode(&folder);
        pull(&file, &models).unwrap();
        assert_eq!(inode(&folder), first, "reused");
        let mut again = arguments(&file, &models);
        again.force = true;
        run(again).unwrap();
        assert_ne!(inode(&folder), first, "made anew");
    }

    #[test]
    fn a_model_that_lost_bytes_is_not_found_and_is_pulled_again() {
        let (_root, file, models) = sources();
        let folder = pull(&file, &models).unwrap();
        std::fs::write(folder.join("model.safetensors"), "short").unwrap();
        let error = locate_in(&models, "tiny").unwrap_err().to_string();
        assert!(error.contains("incomplete"), "{error}");
        assert!(error.contains("pitot-engine pull tiny"), "{error}");
        pull(&file, &models).unwrap();
        locate_in(&models, "tiny").unwrap();
    }

    #[test]
    fn a_changed_byte_is_healed_by_verifying() {
        let (_root, file, models) = sources();
        let folder = pull(&file, &models).unwrap();
        let path = folder.join("config.json");
        let whole = std::fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[0] = b'[';
        std::fs::write(&path, &changed).unwrap();
        pull(&file, &models).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), changed, "sizes alone do not show it");
        let mut verifying = arguments(&file, &models);
        verifying.verify = true;
        run(verifying).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn a_broken_file_leaves_no_model() {
        let (_root, file, models) = sources();
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        let error = pull(&file, &models).unwrap_err().to_string();
        assert!(error.contains("cut short"), "{error}");
        let left: Vec<_> =
            std::fs::read_dir(&models).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".tiny.lock"]);
        let error = locate_in(&models, "tiny").unwrap_err().to_string();
        assert!(error.contains("no model \"tiny\""), "{error}");
    }

    #[test]
    fn what_somebody_else_put_there_is_not_overwritten() {
        let (_root, file, models) = sources();
        std::fs::create_dir_all(models.join("tiny")).unwrap();
        std::fs::write(models.join("tiny/dear"), "x").unwrap();
        let error = pull(&file, &models).unwrap_err().to_string();
        assert!(error.contains("--force"), "{error}");
        assert!(models.join("tiny/dear").exists());
    }

    #[test]
    fn a_folder_is_linked_under_its_name() {
        let (root, file, models) = sources();
        let converted = pull(&file, &models).unwrap();
        let other = root.path().join("other");
        let folder = pull(&converted, &other).unwrap();
        assert_eq!(folder, other.join("tiny"));
        assert!(folder.join("model.safetensors").is_symlink());
        assert_eq!(locate_in(&other, "tiny").unwrap(), folder);
        // The same name from another source is somebody else's model.
        let error = pull(&file, &other).unwrap_err().to_string();
        assert!(error.contains("a model from: folder"), "{error}");
    }

    #[test]
    fn a_path_is_a_model_when_it_holds_one() {
        let (root, file, models) = sources();
        let folder = pull(&file, &models).unwrap();
        let path = folder.to_str().unwrap();
        assert_eq!(locate_in(root.path(), path).unwrap(), folder);
        let empty = root.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let error = locate_in(root.path(), empty.to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains("no config.json"), "{error}");
        std::fs::write(empty.join("config.json"), "{}").unwrap();
        locate_in(root.path(), empty.to_str().unwrap()).unwrap();
        for name in ["demo", "none", "../models/tiny", "a/b"] {
            let error = locate_in(root.path(), name).unwrap_err().to_string();
            assert!(error.contains("pitot-engine pull"), "{error}");
        }
    }
}
