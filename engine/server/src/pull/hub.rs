//! Models from the Hugging Face hub. Apart because it is the only importer of hf-hub, and so of TLS. Must not know where models live.
//!
//! All files are taken at one commit, so that a repository that changes meanwhile cannot be mixed. The pieces stay in a download
//! folder until the model is complete, so that a pull after a broken one resumes. What arrives is compared with the sizes and the
//! sha256 that the hub announces. The address comes from hf-hub, HF_ENDPOINT overrides it; the token from HF_TOKEN or the file that
//! `hf auth login` writes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Repo, RepoType};
use serde::Deserialize;

use super::error::PullError;
use super::folder::{WEIGHTS, WEIGHTS_INDEX, inventory, is_side_file, shards};
use super::hash::sha256_of_file;
use super::manifest::is_plain_name;
use super::progress::Progress;

/// How often one file is tried, each time from where it stopped.
const TRIES: u32 = 4;
/// How long the first contact may take.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(30);

/// A repository of the hub at a revision, and how to reach it.
pub struct Hub {
    builder: ApiBuilder,
    endpoint: String,
    repository: String,
    revision: String,
    /// Waited after the n-th failed try of a file: n times this.
    pause: Duration,
}

/// What the hub says of a repository; only what is needed here.
#[derive(Debug, Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Clone, Deserialize)]
struct Sibling {
    #[serde(rename = "rfilename")]
    name: String,
    size: Option<u64>,
    lfs: Option<LargeFile>,
}

#[derive(Debug, Clone, Deserialize)]
struct LargeFile {
    sha256: Option<String>,
}

impl Hub {
    /// With the endpoint and the token of this environment.
    pub fn of_environment(repository: &str, revision: &str) -> Hub {
        let mut builder = ApiBuilder::from_env();
        if let Ok(token) = std::env::var("HF_TOKEN") {
            builder = builder.with_token(Some(token).filter(|token| !token.is_empty()));
        }
        Hub {
            builder,
            endpoint: std::env::var("HF_ENDPOINT").unwrap_or_else(|_| "its own address".to_owned()),
            repository: repository.to_owned(),
            revision: revision.to_owned(),
            pause: Duration::from_secs(1),
        }
    }

    /// Downloads what a model needs into `downloads` and, once all is there and right, moves it to `folder`.
    pub fn pull(self, folder: &Path, downloads: &Path, progress: Progress) -> Result<(), PullError> {
        let Hub { builder, endpoint, repository, revision, pause } = self;
        let api = builder
            .with_cache_dir(downloads.to_owned())
            .with_retries(0)
            .build()
            .map_err(|error| of_hub(&repository, error.to_string()))?;
        progress.note(&format!("asking the hub for {repository} at {revision}"));
        let listing = listing(&api, &endpoint, &repository, revision)?;
        let at_commit = Repo::with_revision(repository.clone(), RepoType::Model, listing.sha.clone());
        let mut fetch = Fetch {
            files: listing.siblings.iter().map(|sibling| (sibling.name.clone(), sibling.clone())).collect(),
            repo: api.repo(at_commit.clone()),
            cached: hf_hub::Cache::new(downloads.to_owned()).repo(at_commit),
            repository,
            downloads,
            pause,
            progress,
            done: BTreeMap::new(),
        };
        fetch.model()?;
        for (name, path) in &fetch.done {
            // The path is a link into the cache; the file behind it moves.
            let file = path.canonicalize().map_err(PullError::io("finding", path))?;
            let target = folder.join(name);
            std::fs::rename(&file, &target).map_err(PullError::io("moving to", &target))?;
        }
        inventory(folder).map(|_| ())
    }
}

fn of_hub(repository: &str, reason: String) -> PullError {
    PullError::Hub { repository: repository.to_owned(), reason }
}

/// The commit of a revision and its files.
fn listing(api: &Api, endpoint: &str, repository: &str, revision: String) -> Result<Listing, PullError> {
    let repo = Repo::with_revision(repository.to_owned(), RepoType::Model, revision);
    let answer = api
        .repo(repo)
        .info_request()
        .query("blobs", "true")
        .config()
        .timeout_global(Some(CONTACT_TIMEOUT))
        .build()
        .call();
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(ureq::Error::StatusCode(status)) => {
            return Err(PullError::HubRefused {
                repository: repository.to_owned(),
                status,
                reason: refusal(status),
            });
        }
        Err(error) => {
            return Err(PullError::HubUnreachable {
                endpoint: endpoint.to_owned(),
                repository: repository.to_owned(),
                reason: error.to_string(),
            });
        }
    };
    let listing: Listing = answer
        .body_mut()
        .read_json()
        .map_err(|error| of_hub(repository, format!("its list of files: {error}")))?;
    // The commit becomes part of paths and addresses.
    match listing.sha.chars().all(|letter| letter.is_ascii_hexdigit()) && !listing.sha.is_empty() {
        true => Ok(listing),
        false => Err(of_hub(repository, format!("{:?} is no commit", listing.sha))),
    }
}

fn refusal(status: u16) -> &'static str {
    match status {
        401 | 403 => "it does not exist, or needs a token with access to it: set HF_TOKEN",
        404 => "no such repository or revision",
        429 => "too many requests: wait a little",
        _ => "it answers with an error",
    }
}

/// The files of one pull.
struct Fetch<'a> {
    files: BTreeMap<String, Sibling>,
    repo: ApiRepo,
    cached: hf_hub::CacheRepo,
    repository: String,
    downloads: &'a Path,
    pause: Duration,
    progress: Progress,
    /// Name and where it lies.
    done: BTreeMap<String, PathBuf>,
}

impl Fetch<'_> {
    /// Small files first: what makes a model unusable shows before gigabytes are fetched.
    fn model(&mut self) -> Result<(), PullError> {
        let names: Vec<String> = self.files.keys().cloned().collect();
        for name in names.iter().filter(|name| is_side_file(name)) {
            self.file(name)?;
        }
        if self.files.contains_key(WEIGHTS) {
            return self.file(WEIGHTS);
        }
        if !self.files.contains_key(WEIGHTS_INDEX) {
            let reason = "it has no weights in the safetensors format".to_owned();
            return Err(of_hub(&self.repository, reason));
        }
        self.file(WEIGHTS_INDEX)?;
        let index = &self.done[WEIGHTS_INDEX];
        let folder = index.parent().unwrap_or(self.downloads);
        for name in shards(folder)? {
            self.file(&name)?;
        }
        Ok(())
    }

    /// Fetches one file unless it is here already, trying again from where a transfer broke.
    fn file(&mut self, name: &str) -> Result<(), PullError> {
        let Some(sibling) = self.files.get(name).filter(|_| is_plain_name(name)).cloned() else {
            return Err(of_hub(&self.repository, format!("it does not have {name}")));
        };
        let mut failure = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                self.progress.note(&format!("{name}: {failure}: trying again"));
                std::thread::sleep(self.pause * attempt);
            }
            let path = match self.cached.get(name) {
                Some(path) => Ok(path),
                None => {
                    let bar = self.progress.bar(name, sibling.size.unwrap_or(0));
                    self.repo.download_with_progress(name, &bar)
                }
            };
            match path {
                Ok(path) => match self.difference(&path, &sibling)? {
                    None => {
                        self.done.insert(name.to_owned(), path);
                        return Ok(());
                    }
                    Some(difference) => {
                        failure = difference;
                        discard(&path)?;
                    }
                },
                Err(error) => {
                    if self.must_begin_anew(&error) {
                        self.discard_parts()?;
                    }
                    failure = error.to_string();
                }
            }
        }
        Err(of_hub(
            &self.repository,
            format!(
                "{name} could not be fetched: {failure}; what has arrived is kept, run this again to go on"
            ),
        ))
    }

    /// How what arrived differs from what was announced.
    fn difference(&self, path: &Path, sibling: &Sibling) -> Result<Option<String>, PullError> {
        let bytes = std::fs::metadata(path).map_err(PullError::io("reading", path))?.len();
        if let Some(size) = sibling.size.filter(|size| *size != bytes) {
            return Ok(Some(format!("{bytes} bytes arrived instead of {size}")));
        }
        let announced = sibling.lfs.as_ref().and_then(|lfs| lfs.sha256.as_deref());
        let Some(announced) = announced else {
            return Ok(None);
        };
        let bar = self.progress.bar("hashing", bytes);
        let found = sha256_of_file(path, &bar)?;
        Ok((found != announced).then(|| format!("it has the sha256 {found} instead of {announced}")))
    }

    /// Whether resuming cannot succeed: the part is as long as the file (range not satisfiable) or longer.
    fn must_begin_anew(&self, error: &ApiError) -> bool {
        match error {
            ApiError::InvalidResume => true,
            ApiError::RequestError(error) => matches!(**error, ureq::Error::StatusCode(416)),
            ApiError::MissingHeader(_)
            | ApiError::InvalidHeader(_)
            | ApiError::ParseIntError(_)
            | ApiError::IoError(_)
            | ApiError::TooManyRetries(_)
            | ApiError::LockAcquisition(_) => false,
        }
    }

    /// Removes unfinished pieces, which hf-hub keeps beside the finished ones under the ending `part`.
    fn discard_parts(&self) -> Result<(), PullError> {
        let blobs = self.downloads.join(format!("models--{}/blobs", self.repository.replace('/', "--")));
        for entry in std::fs::read_dir(&blobs).map_err(PullError::io("reading", &blobs))? {
            let path = entry.map_err(PullError::io("reading", &blobs))?.path();
            if path.extension().is_some_and(|extension| extension == "part") {
                discard(&path)?;
            }
        }
        Ok(())
    }
}

/// Removes a file, and the link that leads to it.
fn discard(path: &Path) -> Result<(), PullError> {
    let file = path.canonicalize().map_err(PullError::io("finding", path))?;
    std::fs::remove_file(&file).map_err(PullError::io("removing", &file))?;
    if file != path && path.is_symlink() {
        std::fs::remove_file(path).map_err(PullError::io("removing", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
