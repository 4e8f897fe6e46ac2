//! The journal: one line of JSON for each finished request, in files of bounded size and number.
//!
//! Apart because writing waits for a disk and therefore has a thread and a bounded queue of its own. A full queue
//! drops the record and says so; a disk that fails is reported once and again when it works. Must not know:
//! what a record means.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use pitot_config::gateway::Journal as Settings;

use crate::emit::Finished;

/// The file that is being written; older ones carry numbers, 1 being the youngest.
const CURRENT: &str = "requests.jsonl";
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The queue to the journal's thread.
#[derive(Debug)]
pub struct Journal {
    queue: SyncSender<Message>,
}

enum Message {
    Record(Arc<Finished>),
    Flush(SyncSender<()>),
}

impl Journal {
    /// Opens the journal. The error names the folder and what to do.
    pub fn open(settings: &Settings) -> Result<Self, String> {
        let mut writer = Writer::open(settings).map_err(|error| {
            format!(
                "cannot write the journal in {}: {error}; make the folder writable, choose another with \
                 journal.directory, or turn the journal off with journal.enabled = false",
                settings.directory.display()
            )
        })?;
        let (queue, messages) = sync_channel(settings.queue_max);
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer.serve(&messages))
            .map_err(|error| format!("cannot start the journal's thread: {error}"))?;
        Ok(Journal { queue })
    }

    /// Queues a record. False when the queue is full and the record is lost to the journal.
    pub fn offer(&self, record: Arc<Finished>) -> bool {
        match self.queue.try_send(Message::Record(record)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// Waits, boundedly, until everything queued before has been written.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.queue.send(Message::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

struct Writer {
    directory: PathBuf,
    file: BufWriter<File>,
    file_bytes: u64,
    file_bytes_max: u64,
    files_max: usize,
    failing: bool,
}

impl Writer {
    fn open(settings: &Settings) -> std::io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&settings.directory)?;
        let (file, file_bytes) = open_current(&settings.directory)?;
        Ok(Writer {
            directory: settings.directory.clone(),
            file,
            file_bytes,
            file_bytes_max: settings.file_bytes_max,
            files_max: settings.files_max,
            failing: false,
        })
    }

    fn serve(&mut self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            let mut next = Some(message);
            // Everything that waits is written before the file is flushed once.
            while let Some(message) = next {
                match message {
                    Message::Record(record) => self.note(|writer| writer.write(&record)),
                    Message::Flush(done) => {
                        self.note(|writer| writer.file.flush());
                        let _ = done.try_send(());
                    }
                }
                next = messages.try_recv().ok();
            }
            self.note(|writer| writer.file.flush());
        }
    }

    fn note(&mut self, action: impl FnOnce(&mut Self) -> std::io::Result<()>) {
        match action(self) {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("the journal can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                if !self.failing {
                    tracing::error!(%error, folder = %self.directory.display(), "the journal cannot be written");
                }
                self.failing = true;
            }
        }
    }

    fn write(&mut self, record: &Finished) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(record).map_err(std::io::Error::other)?;
        line.push(b'\n');
        let bytes = line.len() as u64;
        if self.file_bytes > 0 && self.file_bytes.saturating_add(bytes) > self.file_bytes_max {
            self.rotate()?;
        }
        self.file.write_all(&line)?;
        self.file_bytes = self.file_bytes.saturating_add(bytes);
        Ok(())
    }

    /// Moves `requests.jsonl` to `.1`, `.1` to `.2` and so on; the last one goes.
    fn rotate(&mut self) -> std::io::Result<()> {
        self.file.flush()?;
        let numbered = |number: usize| self.directory.join(format!("{CURRENT}.{number}"));
        let oldest = self.files_max.saturating_sub(1);
        for number in (1..oldest).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        let current = self.directory.join(CURRENT);
        if oldest == 0 {
            fs::remove_file(&current)?
        } else {
            fs::rename(&current, numbered(1))?
        }
        (self.file, self.file_bytes) = open_current(&self.directory)?;
        Ok(())
    }
}

fn open_current(directory: &Path) -> std::io::Result<(BufWriter<File>, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(directory.join(CURRENT))?;
    let bytes = file.metadata()?.len();
    Ok((BufWriter::new(file), bytes))
}
