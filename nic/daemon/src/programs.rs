//! The programs at an address, for people: who they are, and what they publish.
//!
//! Each program writes its counters and queue pairs into two files of memory that are made here. Only descriptors for reading
//! are kept and given out, so that nobody changes what another publishes. What they hold is what the program says of itself.

use nix::sys::memfd::{MFdFlags, memfd_create};
use rnic::Counters;
use rnic::daemon::protocol::{Program, REPORT_FILES};
use rnic::process::Published;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

/// How many programs that have ended are remembered, the latest.
const MOST_ENDED: usize = 64;

/// The names of the files, in the order of [`Reply::Program`](rnic::daemon::protocol::Reply::Program).
const NAMES: [&str; REPORT_FILES] = ["rnic counters", "rnic queue pairs"];

/// The most bytes of counters that are remembered of one. Ours are about 10,000.
const MOST_COUNTERS: u64 = 1 << 16;

/// The longest name of a program that is shown.
const MOST_NAME: usize = 64;

/// The digits of a container's ID that are shown, as its tools do.
const CONTAINER_DIGITS: usize = 12;

/// Files of memory that cannot be written through.
pub(crate) type Readable = [File; REPORT_FILES];

/// Makes the files of a program: for it to write, and for others to read.
pub(crate) fn make_report() -> io::Result<([OwnedFd; REPORT_FILES], Readable)> {
    let [counters, queue_pairs] = NAMES.map(|name| memfd_create(name, MFdFlags::MFD_CLOEXEC));
    let written = [counters?, queue_pairs?];
    // A new description of the same memory, which cannot be written through.
    let [counters, queue_pairs] =
        written.each_ref().map(|file| File::open(format!("/proc/self/fd/{}", file.as_raw_fd())));
    Ok((written, [counters?, queue_pairs?]))
}

/// Who a program is, as far as the kernel says it; `said`: its name, if the kernel does not.
pub(crate) fn describe(address: IpAddr, slot: u8, (pid, uid): (i32, u32), said: &str) -> Program {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let name = read("comm").map_or_else(|| said.to_owned(), |comm| comm.trim_end().to_owned());
    let name = name.chars().take(MOST_NAME).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let container = read("cgroup").as_deref().and_then(container_of);
    Program { address, slot, pid: u32::try_from(pid).unwrap_or(0), uid, name, container, running: true }
}

/// The container that a control group belongs to: engines name the group by the container's ID, of 64 hexadecimal digits.
fn container_of(cgroup: &str) -> Option<String> {
    const DIGITS: usize = 64;
    let mut words = cgroup.split(|c: char| !c.is_ascii_hexdigit());
    let id = words.rfind(|word| word.len() == DIGITS)?;
    Some(id[..CONTAINER_DIGITS].to_owned())
}

/// A program, and its files.
#[derive(Debug)]
struct Entry {
    number: u64,
    program: Program,
    files: Readable,
    /// The counters when they were last read.
    last: Sums,
}

impl Entry {
    /// Reads the counters, and returns their text. Those that are unknown to this version do not count: a program may publish
    /// anything. If it is writing just now, or writes nonsense, the last ones stand: the daemon waits for nobody.
    fn look(&mut self) -> Option<String> {
        let text = Published::text_of(&self.files[0], MOST_COUNTERS)?;
        if let Some(published) = Published::parse(&text) {
            let known: BTreeMap<&str, u64> =
                published.counters.iter().map(|(name, value)| (&**name, *value)).collect();
            let of = |(name, _)| Some((name, *known.get(name)?));
            self.last = Counters::describe().filter_map(of).collect();
        }
        Some(text)
    }
}

/// A program that has ended: descriptors are too precious for it.
#[derive(Debug)]
struct Ended {
    number: u64,
    program: Program,
    /// What its counters file held at last.
    counters: String,
}

impl Ended {
    /// Files as if it still ran.
    fn files(&self) -> io::Result<Readable> {
        let (written, readable) = make_report()?;
        let [counters, _] = written.map(File::from);
        counters.write_all_at(self.counters.as_bytes(), 0)?;
        Ok(readable)
    }
}

/// Adds counters to sums. Of peaks there is no sum, only the highest.
pub(crate) fn add(sums: &mut Sums, counters: &Sums) {
    for (name, value) in counters {
        let sum = sums.entry(name).or_default();
        *sum = if is_peak(name) { (*sum).max(*value) } else { sum.wrapping_add(*value) };
    }
}

/// Whether a counter of rnic is the largest value of something.
pub(crate) fn is_peak(name: &str) -> bool {
    name.ends_with("_max")
}

/// Counters by name.
pub(crate) type Sums = BTreeMap<&'static str, u64>;

/// The programs at an address.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    running: BTreeMap<u8, Entry>,
    ended: VecDeque<Ended>,
    /// The sums of the counters of all that have ended.
    sums: Sums,
    /// How many there have been.
    count: u64,
}

impl Programs {
    /// A program has a slot.
    pub(crate) fn begin(&mut self, program: Program, files: Readable) {
        let slot = program.slot;
        self.count += 1;
        let entry = Entry { number: self.count, program, files, last: BTreeMap::new() };
        let before = self.running.insert(slot, entry);
        before.into_iter().for_each(|entry| self.remember(entry));
    }

    /// It has it no more.
    pub(crate) fn end(&mut self, slot: u8) {
        self.running.remove(&slot).into_iter().for_each(|entry| self.remember(entry));
    }

    fn remember(&mut self, mut entry: Entry) {
        let counters = entry.look().unwrap_or_default();
        add(&mut self.sums, &entry.last);
        let Entry { number, program, .. } = entry;
        if self.ended.len() == MOST_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(Ended { number, program: Program { running: false, ..program }, counters });
    }

    /// The programs that `sees` lets be seen, those that ended first: numbers to [open](Self::open) them by.
    pub(crate) fn list(&self, sees: impl Fn(u32) -> bool) -> Vec<u64> {
        let ended = self.ended.iter().map(|ended| (ended.number, ended.program.uid));
        let running = self.running.values().map(|entry| (entry.number, entry.program.uid));
        ended.chain(running).filter(|(_, uid)| sees(*uid)).map(|(number, _)| number).collect()
    }

    /// A program, with files to read; `None` if it is not remembered any more.
    pub(crate) fn open(&self, number: u64) -> Option<io::Result<(Program, Vec<OwnedFd>)>> {
        let ended = self.ended.iter().find(|ended| ended.number == number);
        let ended = ended.map(|ended| (&ended.program, ended.files()));
        let (program, files) = ended.or_else(|| {
            let Entry { program, files: [counters, queue_pairs], .. } =
                self.running.values().find(|entry| entry.number == number)?;
            let both = || Ok([counters.try_clone()?, queue_pairs.try_clone()?]);
            Some((program, both()))
        })?;
        Some(files.map(|files| (program.clone(), files.map(OwnedFd::from).into())))
    }

    /// The number of programs that have slots.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// The sums of the counters of all programs, those that have ended too.
    pub(crate) fn totals(&mut self) -> Sums {
        let mut totals = self.sums.clone();
        for entry in self.running.values_mut() {
            let _ = entry.look();
            add(&mut totals, &entry.last);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// A program at slot `slot` that has published one counter.
    fn publish(programs: &mut Programs, slot: u8, uid: u32, packets: u64) -> File {
        let (written, read) = make_report().expect("files");
        let program = describe([127, 0, 0, 1].into(), slot, (std::process::id().cast_signed(), uid), "said");
        programs.begin(program, read);
        let [counters, _] = written;
        let mut file = File::from(counters);
        write(&mut file, packets);
        file
    }

    fn write(file: &mut File, packets: u64) {
        let text = format!(
            "rnic counters 2\nsequence 1\ndevice rnic0\naddress 127.0.0.1\nnamespace 4.1\npid 9\ncomm x\n\
             tx_packets {packets:>20}\nnonsense 7\nend 1\n"
        );
        file.write_all_at(text.as_bytes(), 0).expect("memory");
    }

    #[test]
    fn counters_of_programs_that_have_ended_stay_in_the_sums() {
        let mut programs = Programs::default();
        let mut first = publish(&mut programs, 1, 0, 5);
        let _second = publish(&mut programs, 2, 0, 7);
        assert_eq!(programs.totals().get("tx_packets"), Some(&12));
        assert_eq!(programs.totals().get("nonsense"), None, "names that a program invents are not counted");
        write(&mut first, 6);
        programs.end(1);
        assert_eq!((programs.totals().get("tx_packets"), programs.running()), (Some(&13), 1));
        let _third = publish(&mut programs, 1, 0, 1);
        assert_eq!(programs.totals().get("tx_packets"), Some(&14));
        // A program that writes nonsense keeps what it had.
        programs.end(2);
        first.write_all(b"rnic").expect("memory");
        assert_eq!(programs.totals().get("tx_packets"), Some(&14));
    }

    #[test]
    fn a_user_sees_what_it_may_see_and_cannot_write_it() {
        let mut programs = Programs::default();
        let _files = [publish(&mut programs, 1, 7, 1), publish(&mut programs, 2, 8, 2)];
        let seen = programs.list(|uid| uid == 8);
        let [number] = seen[..] else { panic!("one program: {seen:?}") };
        let (program, files) = programs.open(number).expect("a program").expect("descriptors");
        assert!(programs.open(77).is_none());
        assert_eq!((program.slot, program.uid, program.running, files.len()), (2, 8, true, 2));
        let file = File::from(files[0].try_clone().expect("a descriptor"));
        let published = Published::read_from(&file).expect("counters");
        assert_eq!(published.counters[0], ("tx_packets".to_owned(), 2));
        let mut file = file;
        assert!(file.write_all(b"x").is_err() && file.set_len(0).is_err());
    }

    #[test]
    fn of_peaks_there_is_no_sum() {
        let peak = Sums::from([("link_rx_queue_max", 5), ("tx_packets", 5)]);
        let mut sums = Sums::from([("link_rx_queue_max", 9), ("tx_packets", 9)]);
        add(&mut sums, &peak);
        assert_eq!(sums, Sums::from([("link_rx_queue_max", 9), ("tx_packets", 14)]));
    }

    #[test]
    fn only_the_latest_that_ended_are_remembered() {
        let mut programs = Programs::default();
        for n in 0..=MOST_ENDED as u64 {
            publish(&mut programs, 1, 0, n);
        }
        programs.end(1);
        let open = |number| programs.open(number).expect("a program").expect("descriptors");
        let all: Vec<_> = programs.list(|_| true).into_iter().map(open).collect();
        assert_eq!((all.len(), all.iter().any(|(program, _)| program.running)), (MOST_ENDED, false));
        let last =
            Published::read_from(&File::from(all[MOST_ENDED - 1].1[0].try_clone().expect("a descriptor")));
        assert_eq!(last.expect("counters").counters[0].1, MOST_ENDED as u64);
        // One that fills its file is not remembered with what it holds.
        let file = publish(&mut programs, 1, 0, 1);
        file.set_len(1 << 40).expect("memory");
        programs.end(1);
        assert_eq!(programs.ended.back().map(|ended| ended.counters.len()), Some(0));
        assert_eq!(
            programs.totals().get("tx_packets"),
            Some(&(MOST_ENDED as u64 * (MOST_ENDED as u64 + 1) / 2))
        );
    }

    #[test]
    fn containers_are_known_by_their_control_groups() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("0::/system.slice/docker-{id}.scope"),
            format!("0::/kubepods.slice/kubepods-pod12_3.slice/cri-containerd-{id}.scope\n"),
            format!("12:cpu:/docker/{id}\n0::/docker/{id}"),
        ] {
            assert_eq!(container_of(&path).as_deref(), Some("0123456789ab"), "{path}");
        }
        assert_eq!(container_of("0::/user.slice/user-1000.slice/session-3.scope"), None);
    }
}
