//! The manifest that makes a folder a pulled model: written last, so a folder without one, or with other sizes than it says, is no
//! model. Apart because the puller writes it and everybody who looks for a model reads it. Must not know how models are made.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::PullError;
use super::hash::sha256_of_file;
use super::progress::Progress;

/// The manifest's name in the model's folder.
pub const FILE_NAME: &str = "pitot-model.json";
/// Raised when a reader of the old form would misread the new one.
const FORMAT: u32 = 1;
/// Files in one model; the largest real ones have some two hundred shards.
const FILES_MAX: usize = 4096;
/// Bytes of a manifest with [`FILES_MAX`] files of long names.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;

/// What was pulled and what it must look like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    pub origin: Origin,
    /// Program and version that made the folder.
    created_by: String,
    pub files: Vec<FileEntry>,
}

/// Where a model came from; two pulls with equal origins would give the same folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// In words, for example "hub org/name main".
    pub source: String,
    /// Of the source itself, where it is one local file that may have been replaced since.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source_bytes: Option<u64>,
    /// Version of the converter, where there was a conversion.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub converter: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// A plain name in the model's folder.
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

/// What a look at a folder shows.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// No such folder.
    Nothing,
    /// A folder without a manifest.
    Unmarked,
    /// A folder with a manifest that it does not fulfil, in words.
    Broken(String),
    /// Manifest and sizes agree.
    Complete(Manifest),
}

impl Manifest {
    /// Hashes every file of a finished folder.
    pub fn of_folder(folder: &Path, origin: Origin, progress: Progress) -> Result<Manifest, PullError> {
        let mut files = Vec::new();
        for name in names(folder)? {
            let path = folder.join(&name);
            let bytes = std::fs::metadata(&path).map_err(PullError::io("reading", &path))?.len();
            files.push(FileEntry { name, bytes, sha256: String::new() });
        }
        if files.len() > FILES_MAX {
            return Err(PullError::Folder {
                path: folder.to_owned(),
                reason: format!("it has {} files, more than {FILES_MAX}", files.len()),
            });
        }
        let bar = progress.bar("hashing", files.iter().map(|file| file.bytes).sum());
        for file in &mut files {
            file.sha256 = sha256_of_file(&folder.join(&file.name), &bar)?;
        }
        Ok(Manifest {
            format: FORMAT,
            origin,
            created_by: format!("pitot-engine {}", env!("CARGO_PKG_VERSION")),
            files,
        })
    }

    pub fn write(&self, folder: &Path) -> Result<(), PullError> {
        let path = folder.join(FILE_NAME);
        let mut text =
            serde_json::to_string_pretty(self).expect("a struct of numbers and texts always serialises");
        text.push('\n');
        std::fs::write(&path, text).map_err(PullError::io("writing", &path))
    }

    /// Reads every file and compares: the slow check.
    ///
    /// # Errors
    /// The first file whose bytes are not those that were pulled.
    pub fn verify(&self, folder: &Path, progress: Progress) -> Result<(), PullError> {
        let bar = progress.bar("verifying", self.files.iter().map(|file| file.bytes).sum());
        for file in &self.files {
            let path = folder.join(&file.name);
            let found = sha256_of_file(&path, &bar)?;
            if found != file.sha256 {
                return Err(PullError::Mismatch {
                    what: path.display().to_string(),
                    found: format!("sha256 {found}"),
                    expected: format!("sha256 {}", file.sha256),
                });
            }
        }
        Ok(())
    }
}

/// The fast check: the manifest is there and every file has the size that it says.
pub fn inspect(folder: &Path) -> Found {
    if !folder.is_dir() {
        return Found::Nothing;
    }
    let path = folder.join(FILE_NAME);
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Found::Unmarked,
        Err(error) => return Found::Broken(format!("{FILE_NAME} cannot be read: {error}")),
        Ok(metadata) if metadata.len() > MANIFEST_BYTES_MAX => {
            return Found::Broken(format!("{FILE_NAME} has {} bytes", metadata.len()));
        }
        Ok(_) => {}
    }
    let manifest: Manifest = match std::fs::read(&path)
        .map_err(|error| error.to_string())
        .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()))
    {
        Ok(manifest) => manifest,
        Err(error) => return Found::Broken(format!("{FILE_NAME} cannot be read: {error}")),
    };
    match fulfilled(folder, &manifest) {
        Ok(()) => Found::Complete(manifest),
        Err(reason) => Found::Broken(reason),
    }
}

fn fulfilled(folder: &Path, manifest: &Manifest) -> Result<(), String> {
    if manifest.format != FORMAT {
        return Err(format!("its {FILE_NAME} has the format {}, not {FORMAT}", manifest.format));
    }
    if manifest.files.is_empty() || manifest.files.len() > FILES_MAX {
        return Err(format!("its {FILE_NAME} lists {} files", manifest.files.len()));
    }
    for file in &manifest.files {
        if !is_plain_name(&file.name) {
            return Err(format!("its {FILE_NAME} lists {:?}, which is no plain file name", file.name));
        }
        match std::fs::metadata(folder.join(&file.name)) {
            Err(error) => return Err(format!("{}: {error}", file.name)),
            Ok(metadata) if metadata.len() != file.bytes => {
                return Err(format!("{} has {} bytes instead of {}", file.name, metadata.len(), file.bytes));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Whether joining this to a folder stays in that folder.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

/// The names of the files in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>, PullError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(PullError::io("reading", folder))? {
        let entry = entry.map_err(PullError::io("reading", folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        names.push(name);
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin { source: "test".to_owned(), source_bytes: None, converter: Some(1) }
    }

    /// A folder with two files of 3 and 5 bytes and its manifest.
    fn model() -> (tempfile::TempDir, Manifest) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.json"), "abc").unwrap();
        std::fs::write(folder.path().join("b.bin"), "12345").unwrap();
        let manifest = Manifest::of_folder(folder.path(), origin(), Progress::Quiet).unwrap();
        manifest.write(folder.path()).unwrap();
        (folder, manifest)
    }

    #[test]
    fn a_whole_folder_is_complete_and_verifies() {
        let (folder, manifest) = model();
        // The sha256 of "abc" is the first example of FIPS 180-2.
        assert_eq!(
            manifest.files[0].sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(inspect(folder.path()), Found::Complete(manifest.clone()));
        manifest.verify(folder.path(), Progress::Quiet).unwrap();
    }

    #[track_caller]
    fn check_broken(change: impl FnOnce(&Path), expected: &str) {
        let (folder, _) = model();
        change(folder.path());
        match inspect(folder.path()) {
            Found::Broken(reason) => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_change_of_size_is_noticed_at_once() {
        check_broken(
            |folder| std::fs::write(folder.join("b.bin"), "1234").unwrap(),
            "b.bin has 4 bytes instead of 5",
        );
        check_broken(|folder| std::fs::remove_file(folder.join("a.json")).unwrap(), "a.json");
    }

    #[test]
    fn a_manifest_that_cannot_be_believed_is_not() {
        check_broken(
            |folder| std::fs::write(folder.join(FILE_NAME), "{\"format\":1").unwrap(),
            "cannot be read",
        );
        for (from, to, expected) in [
            ("\"format\": 1", "\"format\": 2", "format 2"),
            ("\"b.bin\"", "\"../b.bin\"", "no plain file name"),
        ] {
            let change = |folder: &Path| {
                let path = folder.join(FILE_NAME);
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(text.contains(from));
                std::fs::write(&path, text.replace(from, to)).unwrap();
            };
            check_broken(change, expected);
        }
    }

    #[test]
    fn a_change_of_bytes_alone_is_noticed_by_verifying() {
        let (folder, manifest) = model();
        std::fs::write(folder.path().join("b.bin"), "12346").unwrap();
        assert_eq!(inspect(folder.path()), Found::Complete(manifest.clone()));
        let error = manifest.verify(folder.path(), Progress::Quiet).unwrap_err();
        assert!(error.to_string().contains("b.bin has sha256"), "{error}");
    }

    #[test]
    fn a_folder_without_a_manifest_is_unmarked() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(inspect(folder.path()), Found::Unmarked);
        assert_eq!(inspect(&folder.path().join("none")), Found::Nothing);
    }
}
