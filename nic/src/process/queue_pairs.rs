//! Queue pairs of running programs, for other processes to read, like the counters of [`published`](super::published).
//!
//! The file of a device holds one JSON object, which is rewritten up to ten times a second when it changes.

use super::run_dir::{
    changed, files, has_ended, is_ours, make, make_locked, printable, read_all, read_whole, unique,
};
use rnic_core::engine::QpSnapshot;
use rnic_core::queue::locked;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use time::Duration;

/// The maximum number of queue pairs that a device publishes. A file with this number has about 300 KB.
pub(crate) const MOST: usize = 1024;

/// The longest file that is read, in bytes.
const LONGEST: u64 = 1 << 21;

/// How long the reasons of a program are kept after it has ended.
const KEPT: Duration = Duration::from_secs(60);

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

/// The program that has queue pair `qpn` at `address`, or else one that has the address.
pub(crate) fn find_queue_pair(
    run_dir: &Path,
    address: IpAddr,
    qpn: u32,
) -> Option<(u32, String, Option<QpSnapshot>)> {
    let of_qp = |one: PublishedQueuePairs| {
        let PublishedQueuePairs { pid, comm, queue_pairs, .. } = one;
        (pid, comm, queue_pairs.into_iter().find(|qp| qp.qpn == qpn))
    };
    // Several programs may share the address.
    let all = published_queue_pairs(run_dir).ok()?.into_iter().filter(|one| one.address == address);
    let (has, lacks): (Vec<_>, Vec<_>) = all.map(of_qp).partition(|(_, _, qp)| qp.is_some());
    has.into_iter().chain(lacks).next()
}

fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("queue-pairs")
}

/// Replaces the content of a file, by one write: a file that was cut afterwards would have something else at its end meanwhile.
/// A shorter text is followed by spaces.
fn replace(file: &File, text: &str) -> io::Result<()> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().max(length), b' ');
    file.write_all_at(&bytes, 0)
}

impl PublishedQueuePairs {
    fn read(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        if has_ended(&file) {
            // The queue pairs of a killed program are of no use.
            let _ = fs::remove_file(path);
            return None;
        }
        Self::read_from(&file)
    }

    /// Reads what the program of a file published there; `None` if it has published nothing yet.
    #[must_use]
    pub fn read_from(file: &File) -> Option<Self> {
        let whole =
            |text: String| serde_json::from_str(&text).ok().filter(|one: &Self| one.sequence == one.end);
        read_whole(|| whole(read_all(file, LONGEST)?)).map(Self::printable)
    }

    fn printable(mut self) -> Self {
        (self.device, self.comm) = (printable(&self.device), printable(&self.comm));
        self.queue_pairs.truncate(MOST);
        for qp in &mut self.queue_pairs {
            let texts = [&mut qp.qp_type, &mut qp.state];
            texts.into_iter().for_each(|text| *text = printable(text).into());
            qp.last_failure = qp.last_failure.as_deref().map(printable);
        }
        self
    }
}

/// The file of a device, in the process that has it.
pub(super) struct QueuePairFile {
    file: File,
    /// Where it is, if the device has made it.
    path: Option<PathBuf>,
    last: Mutex<PublishedQueuePairs>,
}

impl QueuePairFile {
    /// Creates the file of a device.
    pub(super) fn in_folder(run_dir: &Path, device: &str, address: IpAddr) -> io::Result<Self> {
        let folder = folder(run_dir);
        make(run_dir)?;
        make(&folder)?;
        let name = unique(&format!("-{device}"));
        let file = make_locked(&folder, &name)?;
        Ok(Self { path: Some(folder.join(name)), ..Self::new(file, device, address) })
    }

    /// Publishes in a file that somebody else has made.
    pub(super) fn new(file: File, device: &str, address: IpAddr) -> Self {
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
        Self { file, path: None, last: Mutex::new(last) }
    }

    /// The file, which a forked child must close.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Writes the queue pairs, unless they have not changed.
    pub(super) fn write(&self, (queue_pairs, more): &(Vec<QpSnapshot>, usize)) {
        let mut last = locked(&self.last);
        if last.sequence > 0 && (&last.more, &last.queue_pairs) == (more, queue_pairs) {
            return;
        }
        last.sequence += 1;
        (last.end, last.more) = (last.sequence, *more);
        last.queue_pairs.clone_from(queue_pairs);
        // Nothing depends on the file: if a write fails, the data is missing there.
        if let Ok(text) = serde_json::to_string(&*last) {
            let _ = replace(&self.file, &text);
        }
    }

    /// Removes the file, because the device is closed.
    pub(super) fn remove(&self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
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
        read_all(&File::open(path).ok()?, LONGEST)
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
        let file = QueuePairFile::in_folder(&folder, "rnic0", address).expect("a file");
        file.write(&(vec![snapshot(0x12), snapshot(0x13)], 3));
        let all = published_queue_pairs(&folder).expect("a folder");
        assert_eq!((all.len(), all[0].more, &*all[0].device), (1, 3, "rnic0"));
        assert_eq!(all[0].queue_pairs, [snapshot(0x12), snapshot(0x13)]);
        let (pid, _, found) = find_queue_pair(&folder, address, 0x13).expect("the program");
        assert_eq!((pid, found), (std::process::id(), Some(snapshot(0x13))));
        file.write(&(vec![snapshot(0x14)], 0));
        let all = published_queue_pairs(&folder).expect("a folder");
        assert_eq!(all[0].queue_pairs, [snapshot(0x14)], "a shorter file leaves nothing of the longer one");
        assert!(find_queue_pair(&folder, IpAddr::from([127, 0, 0, 9]), 0x14).is_none());
        // Another program at the same address.
        let other = QueuePairFile::in_folder(&folder, "rnic0", address).expect("a file");
        other.write(&(vec![snapshot(0x15)], 0));
        for qpn in [0x14, 0x15] {
            let (.., found) = find_queue_pair(&folder, address, qpn).expect("a program");
            assert_eq!(found, Some(snapshot(qpn)));
        }
        drop(other);
        drop(file);
        assert_eq!(published_queue_pairs(&folder).expect("a folder"), []);
        fs::remove_dir_all(folder).expect("a folder");
    }
}
