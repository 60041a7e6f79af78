//! Counters of running programs, for others to read.
//!
//! A device lives in its program, and so do its counters. A program with `RNIC_RUN_DIR` writes them into a file there,
//! ten times a second where they change and once at its end, and `rnic show counters` reads them. The file is text of
//! a fixed length, overwritten by one `pwrite` each time: unlike a shared mapping it cannot kill a writer whose file is
//! cut short, needs no agreement on a layout between versions, and can be read with `cat`. Nothing is written for each
//! packet, and without the variable nothing at all.

use super::run_dir::{changed, files, has_ended, make, make_locked, unique};
use crate::device::Counters;
use crate::queue::locked;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// How often counters are written. People read them, and ten times a second is as fast as they can follow.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// How long the counters of a program that has ended are kept.
const KEPT: Duration = Duration::from_secs(3600);

/// Of how many devices of programs that have ended counters are kept.
const KEPT_MOST: usize = 64;

/// The longest file that is read: ours have 10 KB.
const LONGEST: u64 = 1 << 18;

/// The first line of a file.
const MAGIC: &str = "rnic counters 1";

/// How often a file is read again that was being written.
const TRIES: usize = 5;

/// The counters of a device of some program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The device, as its program calls it.
    pub device: String,
    /// Its address.
    pub address: IpAddr,
    /// The process.
    pub pid: u32,
    /// The name of its program.
    pub comm: String,
    /// Whether it still runs. If not, the counters are the last ones.
    pub running: bool,
    /// When the counters last changed.
    pub updated: SystemTime,
    /// Names and values, in the order of [`Counters::iter`].
    pub counters: Vec<(String, u64)>,
}

/// The counters that programs have published in a run folder: the oldest first. There are none if the folder does not
/// exist, and files that are not ours are passed over.
///
/// # Errors
/// The folder cannot be read.
pub fn published(run_dir: &Path) -> io::Result<Vec<Published>> {
    let files = match files(&folder(run_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut all: Vec<_> = files.iter().filter_map(|path| Published::read(path)).collect();
    all.sort_by_key(|one| (one.updated, one.pid));
    Ok(all)
}

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("counters")
}

impl Published {
    fn read(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        let running = !has_ended(&file);
        let text = (0..TRIES).find_map(|_| {
            let mut text = String::new();
            let mut reader = File::open(path).ok()?.take(LONGEST);
            reader.read_to_string(&mut text).ok()?;
            Self::parse(&text)
        })?;
        Some(Self { running, updated: changed(path), ..text })
    }

    /// Reads what [`Publication::write`] wrote; `None` if it is something else, or was written to meanwhile.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != MAGIC {
            return None;
        }
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let sequence = field("sequence")?;
        let (device, address) = (field("device")?.to_owned(), field("address")?.parse().ok()?);
        let (pid, comm) = (field("pid")?.parse().ok()?, field("comm")?.to_owned());
        let mut counters = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(' ')?;
            if name == "end" {
                let whole = value == sequence;
                let updated = SystemTime::UNIX_EPOCH;
                return whole.then_some(Self {
                    device,
                    address,
                    pid,
                    comm,
                    running: false,
                    updated,
                    counters,
                });
            }
            counters.push((name.to_owned(), value.trim_start().parse().ok()?));
        }
        None
    }
}

/// The file of a device, in the process that has it.
pub(crate) struct Publication {
    file: File,
    /// What does not change.
    head: String,
    state: Mutex<State>,
}

struct State {
    /// How often it was written.
    sequence: u64,
    /// The counters as they were written last.
    last: String,
    due: Instant,
}

impl Publication {
    /// Makes the file of a device, and removes those of programs that have long ended.
    pub(super) fn new(run_dir: &Path, device: &str, address: IpAddr) -> io::Result<Self> {
        let folder = folder(run_dir);
        make(run_dir)?;
        make(&folder)?;
        prune(&folder)?;
        let file = make_locked(&folder, &unique(&format!("-{device}")))?;
        let comm = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let pid = std::process::id();
        let head = format!("device {device}\naddress {address}\npid {pid}\ncomm {}\n", comm.trim_end());
        let state = State { sequence: 0, last: String::new(), due: Instant::now() };
        Ok(Self { file, head, state: Mutex::new(state) })
    }

    /// The file, which a forked child has to close.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether the counters should be written again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= locked(&self.state).due
    }

    /// When that will be.
    pub(crate) fn due(&self) -> Instant {
        locked(&self.state).due
    }

    /// Writes the counters, unless they are what was written last. What cannot be written is missing in the file, and
    /// nothing else happens: nobody waits for it.
    pub(crate) fn write(&self, counters: &Counters, now: Instant) {
        let mut state = locked(&self.state);
        state.due = now + PERIOD;
        let mut lines = String::with_capacity(state.last.len());
        for (name, value) in counters.iter() {
            // 20 digits are the largest value: the length of the file does not change.
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

/// Removes the files of programs that ended long ago, and of all but the last of them.
fn prune(folder: &Path) -> io::Result<()> {
    let ended = |path: &PathBuf| File::open(path).is_ok_and(|file| has_ended(&file));
    let mut old: Vec<_> =
        files(folder)?.into_iter().filter(ended).map(|path| (changed(&path), path)).collect();
    old.sort_by(|a, b| b.cmp(a));
    for (at, (changed, path)) in old.iter().enumerate() {
        if at >= KEPT_MOST || changed.elapsed().is_ok_and(|age| age > KEPT) {
            // Another process may be pruning as well.
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
