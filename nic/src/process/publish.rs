//! Counters of running programs, for other processes to read.
//!
//! A device lives in its program, and so do its counters. A program with `RNIC_RUN_DIR` writes them into a file there,
//! ten times a second while they change and once when the device closes, and `rnic show counters` reads them. The file
//! is text of a fixed length, overwritten by one `pwrite` each time: unlike a shared mapping it cannot kill a writer
//! whose file is cut short, needs no agreement on a layout between versions, and can be read with `cat`. Nothing is
//! written per packet, and nothing at all without the variable.
//!
//! The publisher holds a lock on its file for as long as it lives, so a program that was killed counts as ended even if
//! its process ID has been reused. Each file also names the network namespace of the device: the same address in two
//! namespaces belongs to two devices.

mod namespace;

pub use namespace::NetNamespace;

use super::run_dir::{changed, files, has_ended, make, make_locked, printable, read_all, read_whole, unique};
use crate::Counters;
use rnic_core::queue::locked;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;
use time::Duration;

/// How long the counters of a program are kept after it has ended.
const KEPT: Duration = Duration::from_secs(3600);

/// The most devices of ended programs whose counters are kept.
const KEPT_MOST: usize = 64;

/// The longest file that is read, in bytes. Ours have about 10,000.
const LONGEST: u64 = 1 << 18;

/// The first line of a file.
const MAGIC: &str = "rnic counters 2";

/// The counters of one device of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The device, as its program calls it.
    pub device: String,
    /// Its address, which is unique within its network namespace only.
    pub address: IpAddr,
    /// The network namespace in which the program opened it.
    pub namespace: NetNamespace,
    /// The process ID.
    pub pid: u32,
    /// The name of the program, as the kernel keeps it (`/proc/PID/comm`).
    pub comm: String,
    /// Whether the program still has the device open. If not, the counters are final.
    pub running: bool,
    /// When the counters last changed.
    pub updated: SystemTime,
    /// Names and values, in the order of [`Counters::iter`].
    pub counters: Vec<(String, u64)>,
}

/// The counters that programs have published in a run folder, in all network namespaces: the oldest first. The list is
/// empty if the folder does not exist, and files in another format are skipped.
///
/// Files of programs that ended more than an hour ago, and all but the latest 64 of ended programs, are removed first.
///
/// # Errors
/// The folder cannot be read.
pub fn published(run_dir: &Path) -> io::Result<Vec<Published>> {
    let folder = folder(run_dir);
    let files = match prune(&folder).and_then(|()| files(&folder)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut all: Vec<_> = files.iter().filter_map(|path| Published::read(path)).collect();
    all.sort_by_key(|one| (one.updated, one.pid));
    Ok(all)
}

/// The counters of a port, of the programs at its address, the oldest first: those that run share the port, as at the daemon,
/// and what they count is added. If none runs, those of the latest. `None` if there is no program.
pub(super) fn of_port<'a>(
    programs: impl DoubleEndedIterator<Item = &'a Published> + Clone,
) -> Option<Vec<(String, u64)>> {
    let latest = programs.clone().rfind(|one| one.running).or_else(|| programs.clone().next_back())?;
    // An address of another network namespace is that of another port.
    let shares =
        |one: &&Published| one.running && one.namespace == latest.namespace && !std::ptr::eq(*one, latest);
    let mut all = latest.counters.clone();
    for (name, value) in programs.filter(shares).flat_map(|other| &other.counters) {
        if let Some((_, total)) = all.iter_mut().find(|(of, _)| of == name) {
            *total = if name.ends_with("_max") { (*total).max(*value) } else { total.saturating_add(*value) };
        }
    }
    Some(all)
}

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("counters")
}

impl Published {
    fn read(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let running = !has_ended(&file);
        Some(Self { running, ..Self::read_from(&file)? })
    }

    /// Reads what the program of a file published there; `None` if it has published nothing yet. Whether it runs is not known.
    #[must_use]
    pub fn read_from(file: &File) -> Option<Self> {
        let text = read_whole(|| Self::parse(&Self::text_of(file, LONGEST)?))?;
        let updated = file.metadata().and_then(|meta| meta.modified());
        Some(Self { updated: updated.unwrap_or(SystemTime::UNIX_EPOCH), ..text })
    }

    /// The text that a program has published in a file, as it is at this moment; `None` if it is longer than `most` bytes, or no
    /// text.
    #[must_use]
    pub fn text_of(file: &File, most: u64) -> Option<String> {
        read_all(file, most)
    }

    /// Reads such a text; `None` if it is something else, or changed while it was read. Whether the program runs, and when it
    /// wrote the text, is not known.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != MAGIC {
            return None;
        }
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let sequence = field("sequence")?;
        let (device, address) = (printable(field("device")?), field("address")?.parse().ok()?);
        let namespace = field("namespace")?.parse().ok()?;
        let (pid, comm) = (field("pid")?.parse().ok()?, printable(field("comm")?));
        let mut counters = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(' ')?;
            if name == "end" {
                let whole = value == sequence;
                let updated = SystemTime::UNIX_EPOCH;
                return whole.then_some(Self {
                    device,
                    address,
                    namespace,
                    pid,
                    comm,
                    running: false,
                    updated,
                    counters,
                });
            }
            counters.push((printable(name), value.trim_start().parse().ok()?));
        }
        None
    }
}

/// The file of a device, in the process that has it.
pub(super) struct Publication {
    file: File,
    /// The lines that do not change.
    head: String,
    state: Mutex<State>,
}

struct State {
    /// The number of writes so far.
    sequence: u64,
    /// The counters as last written.
    last: String,
}

impl Publication {
    /// Creates the file of a device, and removes those of programs that ended long ago.
    pub(super) fn in_folder(run_dir: &Path, device: &str, address: IpAddr) -> io::Result<Self> {
        let folder = folder(run_dir);
        make(run_dir)?;
        make(&folder)?;
        prune(&folder)?;
        Ok(Self::new(make_locked(&folder, &unique(&format!("-{device}")))?, device, address))
    }

    /// Publishes in a file that somebody else has made.
    pub(super) fn new(file: File, device: &str, address: IpAddr) -> Self {
        let comm = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let pid = std::process::id();
        let (namespace, comm) = (NetNamespace::current(), comm.trim_end());
        let head =
            format!("device {device}\naddress {address}\nnamespace {namespace}\npid {pid}\ncomm {comm}\n");
        Self { file, head, state: Mutex::new(State { sequence: 0, last: String::new() }) }
    }

    /// The file, which a forked child must close.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Writes the counters, unless they have not changed. A write that fails is tried again at the next change: nothing
    /// depends on the file.
    pub(super) fn write(&self, counters: &Counters) {
        let mut state = locked(&self.state);
        let mut lines = String::with_capacity(state.last.len());
        for (name, value) in counters.iter() {
            // The largest value has 20 digits, so the length of the file never changes.
            let _ = writeln!(lines, "{name} {value:>20}");
        }
        if lines == state.last {
            return;
        }
        state.sequence += 1;
        let (sequence, head) = (state.sequence, &self.head);
        let text = format!("{MAGIC}\nsequence {sequence:>20}\n{head}{lines}end {sequence:>20}\n");
        if self.file.write_all_at(text.as_bytes(), 0).is_ok() {
            state.last = lines;
        }
    }
}

/// Removes the files of programs that ended more than [`KEPT`] ago, and all but the latest [`KEPT_MOST`] of ended ones.
fn prune(folder: &Path) -> io::Result<()> {
    let ended = |path: &PathBuf| File::open(path).is_ok_and(|file| has_ended(&file));
    let mut old: Vec<_> =
        files(folder)?.into_iter().filter(ended).map(|path| (changed(&path), path)).collect();
    old.sort_by(|a, b| b.cmp(a));
    for (at, (changed, path)) in old.iter().enumerate() {
        if at >= KEPT_MOST || changed.elapsed().is_ok_and(|age| age > KEPT) {
            // Another process may have removed it already.
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
