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
mod progress;
mod quantization;
mod source;
#[cfg(test)]
mod testing;
mod vocabulary;

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
        Some(directory) => std::path::absolute(directory)
            .with_context(|| format!("finding {}", directory.display()))?,
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
    println!("{}", place.folder.display());
    Ok(place.folder.clone())
}

fn origin(source: &Source) -> Result<Origin, PullError> {
    let converter = Some(convert::CONVERTER_VERSION);
    Ok(match source {
        Source::Demo => Origin {
            source: format!("Python package {}", demo::PACKAGE),
            source_bytes: None,
            converter,
        },
        Source::Gguf(path) => Origin {
            source: format!("file {}", path.display()),
            source_bytes: Some(
                std::fs::metadata(path)
                    .map_err(PullError::io("reading", path))?
                    .len(),
            ),
            converter,
        },
        Source::Folder(path) => Origin {
            source: format!("folder {}", path.display()),
            source_bytes: None,
            converter: None,
        },
        Source::Hub {
            repository,
            revision,
        } => Origin {
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
    let occupied = |present: String| PullError::Occupied {
        path: folder.to_owned(),
        present,
    };
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
        Found::Complete(manifest) if arguments.verify => {
            match manifest.verify(folder, progress) {
                Ok(()) => Ok(true),
                Err(error) => {
                    progress.note(&format!("{error}; pulling it again"));
                    Ok(false)
                }
            }
        }
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
        Source::Hub {
            repository,
            revision,
        } => hub::Hub::of_environment(repository.as_str(), revision).pull(
            &stage.model,
            &place.download_folder(),
            progress,
        )?,
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
    Incomplete {
        name: String,
        folder: PathBuf,
        reason: String,
    },
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
            false => Err(LocateError::NoCache {
                name: name_or_path.to_owned(),
                source,
            }),
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
    let missing = || LocateError::Missing {
        name: name.to_owned(),
        models: models.to_owned(),
    };
    let folder = match Name::parse(name) {
        Ok(name) => models.join(name.as_str()),
        Err(_) => return Err(missing()),
    };
    let incomplete = |reason| LocateError::Incomplete {
        name: name.to_owned(),
        folder: folder.clone(),
        reason,
    };
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
        Found::Broken(reason) => Err(LocateError::Incomplete {
            name: path.to_owned(),
            folder,
            reason,
        }),
    }
}
