//! What a Hugging Face model folder must hold, and taking over a local one. Apart because a folder from the hub and a folder from a
//! disk are judged by the same rules. Must not know networks. It looks at headers and JSON only; whether the model is of a supported
//! architecture is for the engine to say.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::PullError;
use super::manifest::is_plain_name;
use super::progress::Progress;

/// Files that every model has.
const NEEDED: [&str; 2] = ["config.json", "tokenizer.json"];
/// Files that say more and may be missing.
const OPTIONAL: [&str; 6] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
];
pub const WEIGHTS: &str = "model.safetensors";
pub const WEIGHTS_INDEX: &str = "model.safetensors.index.json";
/// The safetensors library's own limit on a header.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// A vocabulary of 256 thousand pieces takes some 35 MB.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// Whether a model of this list of files should have this one, weights aside.
pub fn is_side_file(name: &str) -> bool {
    NEEDED.contains(&name) || OPTIONAL.contains(&name)
}

/// Reads the index of a model in several files and names those files.
pub fn shards(folder: &Path) -> Result<BTreeSet<String>, PullError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = parse_json(folder, WEIGHTS_INDEX)?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards.iter().find(|name| !is_plain_name(name)) {
        Some(name) => Err(incomplete(folder, format!("{WEIGHTS_INDEX} names the file {name:?}"))),
        None if shards.is_empty() => Err(incomplete(folder, format!("{WEIGHTS_INDEX} names no file"))),
        None => Ok(shards),
    }
}

/// Checks a folder and names the files that make up the model.
///
/// # Errors
/// A file missing, no JSON, or a safetensors file whose header and length do not agree, for example because it was cut short.
pub fn inventory(folder: &Path) -> Result<Vec<String>, PullError> {
    let mut names: Vec<String> = Vec::new();
    for name in NEEDED.into_iter().chain(OPTIONAL) {
        match folder.join(name).is_file() {
            true => names.push(name.to_owned()),
            false if NEEDED.contains(&name) => {
                return Err(incomplete(folder, format!("{name} is missing")));
            }
            false => {}
        }
    }
    for name in names.iter().filter(|name| name.ends_with(".json")) {
        parse_json::<serde::de::IgnoredAny>(folder, name)?;
    }
    let weights = if folder.join(WEIGHTS).is_file() {
        BTreeSet::from([WEIGHTS.to_owned()])
    } else if folder.join(WEIGHTS_INDEX).is_file() {
        names.push(WEIGHTS_INDEX.to_owned());
        shards(folder)?
    } else {
        let reason = format!("neither {WEIGHTS} nor {WEIGHTS_INDEX} is there");
        return Err(incomplete(folder, reason));
    };
    for name in weights {
        check_safetensors(folder, &name)?;
        names.push(name);
    }
    Ok(names)
}

/// Puts links to a checked folder's files into `target`.
pub fn link(source: &Path, target: &Path) -> Result<(), PullError> {
    for name in inventory(source)? {
        // Through links of the source itself, such as the hub's own cache has, to the files.
        let file = source.join(&name);
        let file = file.canonicalize().map_err(PullError::io("finding", &file))?;
        let link = target.join(&name);
        std::os::unix::fs::symlink(&file, &link).map_err(PullError::io("linking", &link))?;
    }
    Ok(())
}

/// Copies a checked folder's files into `target`.
pub fn copy(source: &Path, target: &Path, progress: Progress) -> Result<(), PullError> {
    let names = inventory(source)?;
    let size = |name: &String| std::fs::metadata(source.join(name)).map_or(0, |metadata| metadata.len());
    let bar = progress.bar("copying", names.iter().map(size).sum());
    for name in &names {
        let copy = target.join(name);
        let count = std::fs::copy(source.join(name), &copy).map_err(PullError::io("copying to", &copy))?;
        bar.advance(count);
    }
    inventory(target).map(|_| ())
}

fn incomplete(folder: &Path, reason: String) -> PullError {
    PullError::Folder { path: folder.to_owned(), reason }
}

fn parse_json<T: serde::de::DeserializeOwned>(folder: &Path, name: &str) -> Result<T, PullError> {
    let path = folder.join(name);
    let mut bytes = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(PullError::io("reading", &path))?;
    if bytes.len() as u64 > JSON_BYTES_MAX {
        return Err(incomplete(folder, format!("{name} is larger than {JSON_BYTES_MAX} bytes")));
    }
    serde_json::from_slice(&bytes).map_err(|error| incomplete(folder, format!("{name}: {error}")))
}

/// Checks that a safetensors file's header parses and that the file ends where its last tensor does.
fn check_safetensors(folder: &Path, name: &str) -> Result<(), PullError> {
    let path = folder.join(name);
    let reading = || PullError::io("reading", &path);
    let mut file = File::open(&path).map_err(reading())?;
    let file_bytes = file.metadata().map_err(reading())?.len();
    let cut = |reason: String| incomplete(folder, format!("{name} {reason}"));
    if file_bytes < 8 {
        return Err(cut(format!("has only {file_bytes} bytes")));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(reading())?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > HEADER_BYTES_MAX.min(file_bytes - 8) {
        return Err(cut(format!("cannot hold its header of {header_bytes} bytes")));
    }
    // Bounded just above.
    let mut header = vec![0; header_bytes as usize];
    file.read_exact(&mut header).map_err(reading())?;
    let metadata: safetensors::tensor::Metadata =
        serde_json::from_slice(&header).map_err(|error| cut(format!("has a bad header: {error}")))?;
    let expected = (metadata.data_len() as u64).saturating_add(8 + header_bytes);
    if expected != file_bytes {
        return Err(cut(format!("has {file_bytes} bytes and its header says {expected}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A safetensors file of one tensor of 4 bytes.
    fn weights() -> Vec<u8> {
        let header = br#"{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2, 3, 4]].concat()
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
        std::fs::write(folder.path().join(WEIGHTS), weights()).unwrap();
        folder
    }

    #[track_caller]
    fn check_incomplete(change: impl FnOnce(&Path), expected: &str) {
        let folder = folder();
        inventory(folder.path()).unwrap();
        change(folder.path());
        let error = inventory(folder.path()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_folder_that_lacks_something_is_refused() {
        for (name, expected) in [
            ("config.json", "config.json is missing"),
            ("tokenizer.json", "tokenizer.json is missing"),
            (WEIGHTS, "neither model.safetensors nor"),
        ] {
            check_incomplete(|folder| std::fs::remove_file(folder.join(name)).unwrap(), expected);
        }
    }

    #[test]
    fn a_file_that_is_broken_is_refused() {
        let whole = weights();
        let mut long = whole.clone();
        long.push(0);
        let mut wild = whole.clone();
        wild[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        for (name, bytes, expected) in [
            ("config.json", &b"{"[..], "config.json: EOF"),
            ("chat_template.json", b"x", "chat_template.json: expected"),
            (WEIGHTS, &whole[..whole.len() - 1], "its header says"),
            (WEIGHTS, &whole[..20], "cannot hold its header"),
            (WEIGHTS, &whole[..7], "only 7 bytes"),
            (WEIGHTS, &long, "its header says"),
            (WEIGHTS, &wild, "cannot hold its header"),
            (WEIGHTS, b"\x02\0\0\0\0\0\0\0[]", "bad header"),
        ] {
            check_incomplete(|folder| std::fs::write(folder.join(name), bytes).unwrap(), expected);
        }
    }

    #[test]
    fn every_shard_must_be_there() {
        let change = |folder: &Path| {
            std::fs::rename(folder.join(WEIGHTS), folder.join("1.safetensors")).unwrap();
            let index = r#"{"weight_map":{"v":"1.safetensors","w":"2.safetensors"}}"#;
            std::fs::write(folder.join(WEIGHTS_INDEX), index).unwrap();
        };
        check_incomplete(change, "2.safetensors");
    }

    #[test]
    fn links_lead_to_the_files_and_copies_are_files() {
        let source = folder();
        let target = tempfile::tempdir().unwrap();
        let (links, copies) = (target.path().join("links"), target.path().join("copies"));
        std::fs::create_dir(&links).unwrap();
        std::fs::create_dir(&copies).unwrap();
        link(source.path(), &links).unwrap();
        copy(source.path(), &copies, Progress::Quiet).unwrap();
        assert!(links.join(WEIGHTS).is_symlink());
        assert!(!copies.join(WEIGHTS).is_symlink());
        for folder in [links, copies] {
            assert_eq!(inventory(&folder).unwrap().len(), 3);
        }
    }
}
