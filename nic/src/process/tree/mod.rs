//! The files that programs find under `/sys/class/infiniband` and `/dev/infiniband`.
//!
//! Some programs look for a device in the file system as well as through verbs. The kernel has no files for rnic there, so a
//! process with a run directory gets a tree of its own in it, and a library that is loaded before the others (`rnic-shim`)
//! redirects the program's calls to it: [`ProcessConfig::map_path`] says where to. The tree is created when the first such
//! path is used, and removed with the process.
//!
//! Each process has its own tree, because devices belong to processes: two processes with the same configuration have the same
//! device name at different addresses. Its folders are made first, and a file is written when a program names it, or a folder
//! that it lies in. So files are exact, and those that nobody looks at cost nothing: on a disk each would take 0.2 ms, and
//! there are hundreds.

mod content;
mod folder;
mod view;

pub use folder::SysFolder;

use super::ProcessConfig;
use super::run_dir::{files, has_ended, make, make_locked, unique};
use crate::os::fork::hold_forks;
use content::Wanted;
use nix::unistd::{Whence, lseek};
use rnic_core::port::generation;
use rnic_core::queue::locked;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use view::View;

/// The extension of the name of a tree's lock.
const LOCK: &str = ".lock";

/// The tree of this process.
struct Tree {
    root: PathBuf,
    /// Its folders, below the root.
    folders: BTreeSet<PathBuf>,
    /// Tells other processes that this one is alive.
    _lock: File,
    generation: u32,
}

static TREE: Mutex<Option<Tree>> = Mutex::new(None);

thread_local! {
    /// Whether this thread holds the tree.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// The tree, held by this thread.
struct Held(MutexGuard<'static, Option<Tree>>);

impl Deref for Held {
    type Target = Option<Tree>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HOLDS.set(false);
    }
}

fn hold() -> Held {
    let tree = locked(&TREE);
    HOLDS.set(true);
    Held(tree)
}

impl ProcessConfig {
    /// The path to which to redirect a program that asks for `path`: into the tree of this process, for everything in
    /// `/sys/class/infiniband`, `/sys/class/infiniband_verbs`, `/sys/devices/virtual/rnic`, to which links in these lead,
    /// `/dev/infiniband` and the folder of the connection manager, whether it exists or not. Device nodes become `/dev/null`, a
    /// character device that everyone may open. `None` for all other paths, without a run directory, and if the tree cannot be
    /// created.
    ///
    /// The files are up to date: those that change are written before this returns.
    #[must_use]
    pub fn map_path(&self, path: &Path) -> Option<PathBuf> {
        let inside = inside(path)?;
        // A link with a slash behind it is the folder to which it leads.
        let ends_with_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let _whole = hold_forks();
        let mut tree = hold();
        if tree.as_ref().is_none_or(|tree| tree.generation != generation()) {
            let made = Tree::make(self).inspect_err(|error| {
                tracing::warn!(%error, "programs find no devices in /sys/class/infiniband");
            });
            // A forked child leaves the tree, and the lock, to its parent.
            std::mem::forget(tree.take());
            *tree = made.ok();
        }
        let tree = tree.as_ref()?;
        if inside.parent() == Some(Path::new("dev/infiniband")) {
            let node = tree.root.join(&inside);
            return Some(if node.symlink_metadata().is_ok() { PathBuf::from("/dev/null") } else { node });
        }
        tree.refresh(self, &inside);
        let path = tree.root.join(inside);
        Some(if ends_with_slash { path.join("") } else { path })
    }
}

impl ProcessConfig {
    /// Rewrites the file behind a descriptor if it is a file of this process's tree whose content changes, and returns
    /// whether it is. `at`: where it is about to be read; if `None`, where the descriptor is. Nothing is written in the
    /// middle of the file, so that a reader sees one consistent content.
    #[must_use]
    pub fn refresh(&self, file: BorrowedFd<'_>, at: Option<u64>) -> bool {
        let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return false };
        // What the holder of a tree reads itself may have got the descriptor of a counter that the program closed.
        if HOLDS.get() {
            return false;
        }
        let _whole = hold_forks();
        let tree = hold();
        let Some(tree) = tree.as_ref().filter(|tree| tree.generation == generation()) else { return false };
        let Ok(inside) = path.strip_prefix(&tree.root) else { return false };
        if !content::is_counter(&content::by_class(inside)) {
            return false;
        }
        // After reaching its end, a reader can read it again only after a seek.
        let at = at.or_else(|| lseek(file, 0, Whence::SeekCur).ok()?.try_into().ok());
        if at == Some(0) {
            tree.refresh(self, inside);
        }
        true
    }
}

/// The folders that are redirected. The last two of `sys` are where the kernel's connection manager shows the version of
/// its interface, under its newer and its older name.
const FOLDERS: [&str; 6] = [
    "sys/class/infiniband",
    "sys/class/infiniband_verbs",
    content::DEVICES,
    "sys/class/misc/rdma_cm",
    "sys/class/infiniband_ucma",
    "dev/infiniband",
];

/// The path below the root of a tree, if the path belongs to one.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut parts = path.components();
    if parts.next()? != Component::RootDir {
        return None;
    }
    let below: PathBuf = parts.filter(|part| *part != Component::CurDir).collect();
    FOLDERS.iter().any(|folder| below.starts_with(folder)).then_some(below)
}

impl Tree {
    fn make(process: &ProcessConfig) -> io::Result<Self> {
        let none = || io::Error::new(ErrorKind::NotFound, "there is no run folder: RNIC_RUN_DIR is not set");
        let run_dir = process.run_dir.as_ref().ok_or_else(none)?;
        let folder = run_dir.join("trees");
        make(run_dir)?;
        make(&folder)?;
        prune(&folder)?;
        let name = unique("");
        let lock = make_locked(&folder, &format!("{name}{LOCK}"))?;
        crate::os::fork::close_file_in_child(&lock);
        let mut tree =
            Self { root: folder.join(name), folders: BTreeSet::new(), _lock: lock, generation: generation() };
        for (file, text) in content::of_process(process) {
            tree.write(&file, &text)?;
        }
        for (number, device) in process.devices.iter().enumerate() {
            let view = View::new(device, process.gid_table);
            for home in content::homes(&device.name, number) {
                DirBuilder::new().recursive(true).mode(0o755).create(tree.root.join(home))?;
            }
            for (link, target) in content::links(&view, number) {
                let link = tree.root.join(link);
                make_parent(&link)?;
                symlink(target, link)?;
            }
            let files = content::files(&view, number, Wanted::All).map(|(file, _)| PathBuf::from(file));
            tree.folders.extend(
                files.flat_map(|file| file.ancestors().skip(1).map(Path::to_owned).collect::<Vec<_>>()),
            );
            for folder in &tree.folders {
                DirBuilder::new().recursive(true).mode(0o755).create(tree.root.join(folder))?;
            }
        }
        at_exit();
        Ok(tree)
    }

    /// Writes the files at `inside` or below it, as they are now. Where a path leads through a link, that may be any.
    fn refresh(&self, process: &ProcessConfig, inside: &Path) {
        let inside = &*content::by_class(inside);
        let is_known = |folder: &Path| self.folders.contains(folder);
        let is_plain = match is_known(inside) {
            // In this folder are all others of the device, by other paths.
            true => !inside.ends_with("device"),
            false => inside.parent().is_some_and(is_known) && !self.root.join(inside).is_dir(),
        };
        let wanted = if is_plain { Wanted::At(inside) } else { Wanted::All };
        for (number, device) in process.devices.iter().enumerate() {
            if !content::folders(&device.name, number).iter().any(|folder| wanted.any_in(folder)) {
                continue;
            }
            for (file, text) in content::files(&View::new(device, process.gid_table), number, wanted) {
                // A file that cannot be written keeps its content.
                let _ = self.write(&file, &text);
            }
        }
    }

    /// Writes a file if its content differs. Writes in place, because the file may be open.
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        write(&self.root.join(file), text)
    }

    fn remove(&self) {
        // Remove the directory first: a tree without a lock counts as abandoned, which is true by then.
        let _ = fs::remove_dir_all(&self.root);
        let _ = fs::remove_file(lock_of(&self.root));
    }
}

/// Writes a file, unless it has this content already. Writes in place, because the file may be open.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let before = fs::read(path).ok();
    if before.as_ref().is_some_and(|now| now == text.as_bytes()) {
        return Ok(());
    }
    make_parent(path)?;
    let writer = File::options().write(true).create(true).truncate(false).mode(0o644).open(path)?;
    writer.write_all_at(text.as_bytes(), 0)?;
    if before.is_some_and(|before| before.len() > text.len()) {
        writer.set_len(text.len() as u64)?;
    }
    Ok(())
}

fn make_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => DirBuilder::new().recursive(true).mode(0o755).create(parent),
        None => Ok(()),
    }
}

fn lock_of(root: &Path) -> PathBuf {
    let mut name = root.as_os_str().to_owned();
    name.push(LOCK);
    PathBuf::from(name)
}

/// Removes the trees of processes that ended without removing them.
fn prune(folder: &Path) -> io::Result<()> {
    for lock in files(folder)? {
        let Some(root) = lock.to_str().and_then(|path| path.strip_suffix(LOCK)) else { continue };
        if File::open(&lock).is_ok_and(|file| has_ended(&file)) {
            // Another process may have removed it already.
            let _ = fs::remove_dir_all(root);
            let _ = fs::remove_file(&lock);
        }
    }
    Ok(())
}

/// Has the tree removed when the program exits.
fn at_exit() {
    crate::driver::run_at_exit(|| {
        // The thread that holds the lock may never run again.
        if let Ok(tree) = TREE.try_lock()
            && let Some(tree) = &*tree
            && tree.generation == generation()
        {
            tree.remove();
        }
    });
}

#[cfg(test)]
mod tests;
