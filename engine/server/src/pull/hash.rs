//! sha256 of files, with a bar. Apart because the demo model, the manifest and the hub all need it. Must not know what it hashes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::error::PullError;
use super::progress::Bar;

/// A finished digest in lower-case hexadecimal digits.
pub fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The sha256 of a file's bytes.
pub fn sha256_of_file(path: &Path, bar: &Bar) -> Result<String, PullError> {
    let mut file = File::open(path).map_err(PullError::io("opening", path))?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut piece).map_err(PullError::io("reading", path))?;
        if count == 0 {
            return Ok(hex(hash));
        }
        hash.update(&piece[..count]);
        bar.advance(count as u64);
    }
}
