//! The folder in which processes leave what others may look at.
//!
//! Whatever stands there belongs to a process, which holds a lock on a file (`flock`) until it ends, however it ends.
//! That tells more than a process ID would: it holds across containers that share the folder, and IDs are used again.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long a file that is being made may stay so: its process has died meanwhile.
const UNFINISHED: Duration = Duration::from_secs(60);

/// The beginning of the names of files that are being made.
const NEW: &str = ".new-";

/// The folder that `rnic run` takes unless told otherwise, and `rnic show` looks into: `rnic` in `$XDG_RUNTIME_DIR`, or
/// `/tmp/rnic-UID`.
#[must_use]
pub fn default_run_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_dir()) {
        Some(dir) => Path::new(&dir).join("rnic"),
        None => PathBuf::from(format!("/tmp/rnic-{}", nix::unistd::geteuid())),
    }
}

/// Makes a folder for this user alone, unless it exists.
pub(super) fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    // Anybody can make a folder in /tmp before us, and would then decide what stands in it.
    if !is_ours(dir) {
        let text = format!("{} belongs to another user: set RNIC_RUN_DIR to another folder", dir.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Whether a folder belongs to this user.
pub(super) fn is_ours(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|meta| meta.uid() == nix::unistd::geteuid().as_raw())
}

/// A name that nobody else has: the process ID for people, and a number that no other container has drawn.
pub(super) fn unique(what: &str) -> String {
    format!("{}-{:08x}{what}", std::process::id(), rand::random::<u32>())
}

/// Makes a file that this process holds the lock of. Under its name it is never seen without.
pub(super) fn make_locked(dir: &Path, name: &str) -> io::Result<File> {
    let new = dir.join(format!("{NEW}{name}"));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
    file.try_lock().map_err(io::Error::from)?;
    fs::rename(&new, dir.join(name))?;
    Ok(file)
}

/// Whether the process that made a file has ended. Looking disturbs nobody else who looks.
pub(super) fn has_ended(file: &File) -> bool {
    !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// When a file was last changed.
pub(super) fn changed(path: &Path) -> SystemTime {
    fs::metadata(path).and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The finished files of a folder; those that were never finished are removed.
pub(super) fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)?.flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(NEW) {
            found.push(path);
        } else if changed(&path).elapsed().is_ok_and(|age| age > UNFINISHED) {
            // Somebody else may have been faster.
            let _ = fs::remove_file(&path);
        }
    }
    found.sort();
    Ok(found)
}
