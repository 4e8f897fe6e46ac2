//! A file's bytes as memory, without reading it.
//!
//! Apart because it holds the only `unsafe` of the server. Must not know: what the bytes mean.

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use memmap2::Mmap;

/// A mapped file.
#[derive(Debug)]
pub struct Mapped(Mmap);

impl Mapped {
    /// Maps a file.
    ///
    /// # Errors
    /// When it cannot be opened or mapped; names the file.
    pub fn open(path: &Path) -> anyhow::Result<Mapped> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        // SAFETY: the bytes must not change while they are borrowed. Files of pulled models are replaced by renaming
        // and never written in place, and the map is private to the load, which copies or converts the weights and
        // drops it. Somebody who writes into a model's file during that second can spoil the weights (any bytes are
        // valid numbers) or, by shortening it, end this process with SIGBUS; nothing else is at stake.
        let map = unsafe { Mmap::map(&file) }.with_context(|| format!("mapping {}", path.display()))?;
        Ok(Mapped(map))
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
