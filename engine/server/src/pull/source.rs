//! What a person may ask to pull. Apart because the words are parsed once, here, and everything after works with the kind. Must not
//! know how any kind is fetched.

use std::path::{Path, PathBuf};

use super::cache::Name;
use super::error::PullError;

/// The words that mean the demo model, in any case.
const DEMO_WORDS: [&str; 2] = ["demo", "smollm2-135m-instruct"];
/// The name of the demo model in the cache.
pub const DEMO_NAME: &str = "SmolLM2-135M-Instruct";

/// Where a model is to come from.
#[derive(Debug, PartialEq)]
pub enum Source {
    Demo,
    /// A local GGUF file, by its absolute path.
    Gguf(PathBuf),
    /// A local Hugging Face folder, by its absolute path.
    Folder(PathBuf),
    /// A repository of the Hugging Face hub.
    Hub {
        repository: Name,
        revision: String,
    },
}

/// Whether this word means the demo model.
pub fn is_demo(word: &str) -> bool {
    DEMO_WORDS.iter().any(|demo| demo.eq_ignore_ascii_case(word))
}

impl Source {
    /// Nothing said is the demo model; what exists here is local; `organisation/model` with an optional `@revision` is on the hub.
    pub fn parse(said: Option<&str>) -> Result<Source, PullError> {
        let said = match said {
            None => return Ok(Source::Demo),
            Some(said) if is_demo(said) => return Ok(Source::Demo),
            Some(said) => said,
        };
        let path = Path::new(said);
        match std::fs::metadata(path) {
            Ok(metadata) => {
                let path = path.canonicalize().map_err(PullError::io("finding", path))?;
                return Ok(match metadata.is_dir() {
                    true => Source::Folder(path),
                    false => Source::Gguf(path),
                });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(PullError::io("reading", path)(error)),
        }
        let unknown = || PullError::Source { source_text: said.to_owned() };
        if said.starts_with(['.', '/', '~']) || said.to_ascii_lowercase().ends_with(".gguf") {
            return Err(unknown());
        }
        let (repository, revision) = said.split_once('@').unwrap_or((said, "main"));
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-/".contains(letter);
        if !repository.contains('/') || revision.is_empty() || !revision.chars().all(plain) {
            return Err(unknown());
        }
        Ok(Source::Hub { repository: Name::parse(repository)?, revision: revision.to_owned() })
    }

    /// What the model will be called.
    pub fn name(&self) -> Result<Name, PullError> {
        match self {
            Source::Demo => Name::parse(DEMO_NAME),
            Source::Gguf(path) => Name::of_label(&label(path.file_stem())),
            Source::Folder(path) => Name::of_label(&label(path.file_name())),
            Source::Hub { repository, .. } => Ok(repository.clone()),
        }
    }
}

fn label(name: Option<&std::ffi::OsStr>) -> String {
    name.unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repository: &str, revision: &str) -> Source {
        Source::Hub { repository: Name::parse(repository).unwrap(), revision: revision.to_owned() }
    }

    #[test]
    fn words_find_their_source() {
        for (said, expected) in [
            (None, Source::Demo),
            (Some("demo"), Source::Demo),
            (Some("SmolLM2-135M-Instruct"), Source::Demo),
            (Some("some/model"), hub("some/model", "main")),
            (Some("some/model@v1.0"), hub("some/model", "v1.0")),
        ] {
            assert_eq!(Source::parse(said).unwrap(), expected);
        }
    }

    #[test]
    fn words_that_mean_nothing_are_refused() {
        for said in [
            "./none",
            "/none/such",
            "~/none",
            "none.gguf",
            "a/none.gguf",
            "none",
            "a/b/c",
            "a/b@",
            "a/b@x y",
            "a/../b",
            ".a/b",
        ] {
            assert!(Source::parse(Some(said)).is_err(), "{said}");
        }
    }

    #[test]
    fn what_exists_here_is_local_and_named_after_itself() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tiny model.Q8_0.gguf");
        std::fs::write(&file, "").unwrap();
        let gguf = Source::parse(file.to_str()).unwrap();
        assert_eq!(gguf, Source::Gguf(file.canonicalize().unwrap()));
        assert_eq!(gguf.name().unwrap().as_str(), "tiny-model.Q8_0");
        let local = Source::parse(folder.path().to_str()).unwrap();
        assert_eq!(local, Source::Folder(folder.path().canonicalize().unwrap()));
    }
}
