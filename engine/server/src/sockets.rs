//! Unix sockets as files: the folder, the mode, one that was left behind, and the removal at the end.
//!
//! Apart because the control channel and HTTP need the same care. Must not know: what is spoken on a socket.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Who may connect, by the file's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// 0600.
    Owner,
    /// 0660.
    Group,
}

/// Removes the socket's file when dropped, unless another process has put its own there meanwhile.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // A file that cannot be removed is found to be stale by the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens on a socket. A missing folder is made for this user alone; a socket that nobody answers is replaced.
///
/// # Errors
/// When somebody answers there already, something else lies there, or the folder belongs to another user.
pub fn bind(path: &Path, access: Access) -> anyhow::Result<(UnixListener, SocketFile)> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_folder(folder).with_context(|| format!("making the folder of the socket {}", path.display()))?;
    }
    remove_stale(path)?;
    let mode = match access {
        Access::Owner => 0o600,
        Access::Group => 0o660,
    };
    listen(path, mode).with_context(|| format!("listening on {}", path.display()))
}

/// Sets the mode between bind and listen: until then connections are refused, so that nobody whom the mode keeps
/// out gets in before it is set. std does bind and listen in one.
fn listen(path: &Path, mode: u32) -> std::io::Result<(UnixListener, SocketFile)> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((UnixListener::from(socket), file))
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let owner = std::fs::metadata(folder)?.uid();
    let own = rustix::process::geteuid().as_raw();
    if owner != own && owner != 0 {
        bail!("{} belongs to user {owner}, who could replace what lies there", folder.display());
    }
    Ok(())
}

fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("looking at {}", path.display())),
    };
    if !metadata.file_type().is_socket() {
        bail!("{} exists and is no socket", path.display());
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("somebody answers on {} already; is an engine running?", path.display()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)
            .with_context(|| format!("removing {}, which was left behind", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("finding out who answers on {}", path.display())),
    }
}

/// Device, inode, and the time of making in seconds and nanoseconds, since an inode may be used again.
type Identity = (u64, u64, i64, i64);

fn identity(path: &Path) -> std::io::Result<Identity> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_private_and_goes_away() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("new/e.sock");
        let (_listener, file) = bind(&path, Access::Owner).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_socket_that_nobody_answers_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("e.sock");
        let (listener, first) = bind(&path, Access::Owner).unwrap();
        assert!(bind(&path, Access::Owner).unwrap_err().to_string().contains("already"));
        drop(listener);
        let (_again, _replaced) = bind(&path, Access::Owner).unwrap();
        let other = root.path().join("other.sock");
        let (_second, _file) = bind(&other, Access::Group).unwrap();
        std::fs::rename(&other, &path).unwrap();
        drop(first);
        assert!(path.exists(), "the first owner does not remove what is the second's");
        let plain = root.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        assert!(bind(&plain, Access::Owner).is_err());
        assert!(plain.exists());
    }
}
