//! Queue pairs of running programs, for other processes to read, like the counters of [`published`](super::published).
//!
//! The file of a device holds one JSON object, which is rewritten up to ten times a second when it changes.

use super::publish::PERIOD;
use super::run_dir::{changed, files, has_ended, is_ours, make, make_locked, unique};
use rnic_core::engine::QpSnapshot;
use rnic_core::queue::locked;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use time::{Duration, Instant};

/// The maximum number of queue pairs that a device publishes. A file with this number has about 300 KB.
pub(crate) const MOST: usize = 1024;

/// The longest file that is read, in bytes.
const LONGEST: u64 = 1 << 21;

/// How long the reasons of a program are kept after it has ended.
const KEPT: Duration = Duration::from_secs(60);

/// How often a file is read again if it was being written at that moment.
const TRIES: usize = 5;

/// The queue pairs of one device of one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedQueuePairs {
    /// The number of writes so far. A complete file has the same number at its beginning and its end.
    sequence: u64,
    /// The device, as its program calls it.
    pub device: String,
    /// Its address.
    pub address: IpAddr,
    /// The process ID.
    pub pid: u32,
    /// The name of the program.
    pub comm: String,
    /// The queue pairs.
    pub queue_pairs: Vec<QpSnapshot>,
    /// The number of further queue pairs, which are not listed.
    pub more: usize,
    end: u64,
}

/// The queue pairs that running programs have published in a run folder. Empty if the folder does not exist.
///
/// # Errors
/// The folder cannot be read.
pub fn published_queue_pairs(run_dir: &Path) -> io::Result<Vec<PublishedQueuePairs>> {
    let files = match files(&folder(run_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut all: Vec<_> = files.iter().filter_map(|path| PublishedQueuePairs::read(path)).collect();
    all.sort_by(|a, b| (a.pid, &a.device).cmp(&(b.pid, &b.device)));
    Ok(all)
}

/// The program that has `address`, and its queue pair `qpn` if it exists.
pub(crate) fn find_queue_pair(
    run_dir: &Path,
    address: IpAddr,
    qpn: u32,
) -> Option<(u32, String, Option<QpSnapshot>)> {
    let found = published_queue_pairs(run_dir).ok()?.into_iter().find(|one| one.address == address)?;
    let PublishedQueuePairs { pid, comm, queue_pairs, .. } = found;
    Some((pid, comm, queue_pairs.into_iter().find(|qp| qp.qpn == qpn)))
}

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("queue-pairs")
}

/// The whole content of one of our files; `None` if it is too long.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    let read = File::open(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    ((read as u64) < LONGEST).then_some(text)
}

/// Replaces the content of a file.
fn replace(file: &File, text: &str) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}

impl PublishedQueuePairs {
    fn read(path: &Path) -> Option<Self> {
        if has_ended(&File::open(path).ok()?) {
            // The queue pairs of a killed program are of no use.
            let _ = fs::remove_file(path);
            return None;
        }
        let whole = |_| serde_json::from_str(&read(path)?).ok().filter(|one: &Self| one.sequence == one.end);
        (0..TRIES).find_map(whole)
    }
}

/// The file of a device, in the process that has it.
pub(crate) struct QueuePairFile {
    file: File,
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    last: PublishedQueuePairs,
    due: Instant,
}

impl QueuePairFile {
    /// Creates the file of a device.
    pub(super) fn new(run_dir: &Path, device: &str, address: IpAddr) -> io::Result<Self> {
        let folder = folder(run_dir);
        make(run_dir)?;
        make(&folder)?;
        let name = unique(&format!("-{device}"));
        let file = make_locked(&folder, &name)?;
        let comm = fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned();
        let (device, pid) = (device.to_owned(), std::process::id());
        let last = PublishedQueuePairs {
            sequence: 0,
            device,
            address,
            pid,
            comm,
            queue_pairs: Vec::new(),
            more: 0,
            end: 0,
        };
        let state = Mutex::new(State { last, due: crate::clock::now() });
        Ok(Self { file, path: folder.join(name), state })
    }

    /// The file, which a forked child must close.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether it is time to write the queue pairs again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= locked(&self.state).due
    }

    /// Writes the queue pairs, unless they have not changed.
    pub(crate) fn write(&self, (queue_pairs, more): (Vec<QpSnapshot>, usize), now: Instant) {
        let mut state = locked(&self.state);
        state.due = now + PERIOD;
        let State { last, .. } = &mut *state;
        if last.sequence > 0 && (last.more, &last.queue_pairs) == (more, &queue_pairs) {
            return;
        }
        last.sequence += 1;
        (last.end, last.queue_pairs, last.more) = (last.sequence, queue_pairs, more);
        // Nothing depends on the file: if a write fails, the data is missing there.
        if let Ok(text) = serde_json::to_string(last) {
            let _ = replace(&self.file, &text);
        }
    }

    /// Removes the file, because the device is closed.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The file in which a process publishes why it refused requests.
pub(crate) struct ReasonFile {
    file: File,
    pid: u32,
}

fn reasons(run_dir: &Path) -> PathBuf {
    run_dir.join("refusals")
}

impl ReasonFile {
    pub(crate) fn new(run_dir: &Path) -> io::Result<Self> {
        let folder = reasons(run_dir);
        make(run_dir)?;
        make(&folder)?;
        let file = make_locked(&folder, &unique(""))?;
        crate::os::fork::close_file_in_child(&file);
        Ok(Self { file, pid: std::process::id() })
    }

    /// Whether this process created it, not its parent.
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    pub(crate) fn write(&self, text: &str) {
        let _ = replace(&self.file, text);
    }
}

/// The contents of such files, of processes that are running or ended recently.
pub(crate) fn reason_files(run_dir: &Path) -> Vec<String> {
    let text = |path: &PathBuf| {
        // A requester may look shortly after the responder has ended.
        let is_old = changed(path).elapsed().is_ok_and(|age| age > KEPT);
        if is_old && has_ended(&File::open(path).ok()?) {
            let _ = fs::remove_file(path);
            return None;
        }
        read(path)
    };
    let folder = reasons(run_dir);
    // A folder of another user contains no reasons from processes of this user.
    if !is_ours(&folder) {
        return Vec::new();
    }
    files(&folder).unwrap_or_default().iter().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(qpn: u32) -> QpSnapshot {
        QpSnapshot {
            qpn,
            qp_type: "RC".into(),
            state: "RTS".into(),
            peer: Some((IpAddr::from([127, 0, 0, 2]), 0x11)),
            next_psn: 5,
            unacked_psn: 4,
            expected_psn: 9,
            sends: 1,
            recvs: 2,
            retries_left: 7,
            rnr_retries_left: 6,
            last_failure: None,
        }
    }

    #[test]
    fn queue_pairs_are_read_as_they_were_published_as_long_as_the_program_has_them() {
        let folder = std::env::temp_dir().join(format!("rnic-queue-pairs-{}", std::process::id()));
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(published_queue_pairs(&folder).expect("no folder is no error"), []);
        let file = QueuePairFile::new(&folder, "rnic0", address).expect("a file");
        file.write((vec![snapshot(0x12), snapshot(0x13)], 3), crate::clock::now());
        let all = published_queue_pairs(&folder).expect("a folder");
        assert_eq!((all.len(), all[0].more, &*all[0].device), (1, 3, "rnic0"));
        assert_eq!(all[0].queue_pairs, [snapshot(0x12), snapshot(0x13)]);
        let (pid, _, found) = find_queue_pair(&folder, address, 0x13).expect("the program");
        assert_eq!((pid, found), (std::process::id(), Some(snapshot(0x13))));
        file.write((vec![snapshot(0x14)], 0), crate::clock::now());
        let all = published_queue_pairs(&folder).expect("a folder");
        assert_eq!(all[0].queue_pairs, [snapshot(0x14)], "a shorter file leaves nothing of the longer one");
        assert!(find_queue_pair(&folder, IpAddr::from([127, 0, 0, 9]), 0x14).is_none());
        drop(file);
        assert_eq!(published_queue_pairs(&folder).expect("a folder"), []);
        fs::remove_dir_all(folder).expect("a folder");
    }
}
