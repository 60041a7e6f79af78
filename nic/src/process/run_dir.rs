//! The directory in which processes publish data for other processes.
//!
//! Each file belongs to a process, which holds a lock on it (`flock`) until the process ends in any way. A lock is more
//! reliable than a process ID: it works across containers that share the directory, and IDs are reused.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The age at which an unfinished file is removed: its process must have died.
const UNFINISHED: Duration = Duration::from_secs(60);

/// Descriptors of locks start here. A program that is a shell takes lower ones by number (`exec 3<file`) without asking
/// whether they are in use, and would so give up its lock.
const HIGH: RawFd = 512;

/// The prefix of the names of unfinished files.
const NEW: &str = ".new-";

/// The directory that `rnic run` and `rnic show` use by default: `rnic` in `$XDG_RUNTIME_DIR`, or `/tmp/rnic-UID`.
#[must_use]
pub fn default_run_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_dir()) {
        Some(dir) => Path::new(&dir).join("rnic"),
        None => PathBuf::from(format!("/tmp/rnic-{}", nix::unistd::geteuid())),
    }
}

/// Creates a directory that only this user can read, unless it exists.
pub(super) fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    // Another user could have created a directory of this name in /tmp, and would control its contents.
    if !is_ours(dir) {
        let text = format!("{} belongs to another user: set RNIC_RUN_DIR to another folder", dir.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Whether a directory belongs to this user.
pub(super) fn is_ours(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|meta| meta.uid() == nix::unistd::geteuid().as_raw())
}

/// A unique name: the process ID, for people, and a random number, because containers can have the same process IDs.
pub(super) fn unique(what: &str) -> String {
    format!("{}-{:08x}{what}", std::process::id(), rand::random::<u32>())
}

/// Creates a file and locks it. Under its final name it is never seen unlocked.
pub(super) fn make_locked(dir: &Path, name: &str) -> io::Result<File> {
    let new = dir.join(format!("{NEW}{name}"));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
    file.try_lock().map_err(io::Error::from)?;
    fs::rename(&new, dir.join(name))?;
    // The copy has the same lock. Where a program may not have so many files, the lock stays where it is.
    Ok(crate::os::copy_from(&file, HIGH).unwrap_or(file))
}

/// Whether the process that created a file has ended. Several processes may ask at the same time.
pub(super) fn has_ended(file: &File) -> bool {
    !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// The time at which a file was last changed.
pub(super) fn changed(path: &Path) -> SystemTime {
    fs::metadata(path).and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The finished files of a directory. Old unfinished files are removed.
pub(super) fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)?.flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(NEW) {
            found.push(path);
        } else if changed(&path).elapsed().is_ok_and(|age| age > UNFINISHED) {
            // Another process may have removed it already.
            let _ = fs::remove_file(&path);
        }
    }
    found.sort();
    Ok(found)
}

/// Tries to make sense of a file that may be being written at that moment.
pub(super) fn read_whole<T>(mut read: impl FnMut() -> Option<T>) -> Option<T> {
    /// The first tries follow each other at once; then the writer, which may wait for a CPU, gets some time.
    const TRIES: u32 = 8;
    (0..TRIES).find_map(|attempt| {
        if attempt > 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        read()
    })
}

/// The whole content of a file, from its beginning; `None` if it is longer than `most` bytes, or no text.
pub(super) fn read_all(file: &File, most: u64) -> Option<String> {
    // Not by the file's position, which others may share.
    let length = file.metadata().ok()?.len();
    if length > most {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    bytes.truncate(done);
    String::from_utf8(bytes).ok()
}

/// A text of another program, which may be another user's, for a terminal: without control characters, and not too long.
pub(super) fn printable(text: &str) -> String {
    /// Longer than what rnic publishes.
    const MOST: usize = 300;
    text.chars().take(MOST).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
