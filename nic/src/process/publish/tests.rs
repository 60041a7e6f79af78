use super::*;
use crate::{RcEnd, WcStatus};

/// A directory of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnic-publish-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn value(of: &Published, name: &str) -> u64 {
    of.counters.iter().find(|(counter, _)| counter == name).expect(name).1
}

fn device(run_dir: &Path, address: &str) -> crate::Device {
    let settings = crate::process::Settings {
        run_dir: Some(run_dir.to_owned()),
        addresses: vec![address.parse().expect("an address")],
        ..Default::default()
    };
    settings.process().expect("in order").devices.remove(0).open().expect("a device")
}

#[test]
fn what_a_device_counts_is_read_by_others_while_it_runs_and_afterwards() {
    let folder = Folder::new("life");
    assert_eq!(published(&folder.0).expect("no folder yet"), []);
    let (a, b) = (device(&folder.0, "127.83.2.1"), device(&folder.0, "127.83.2.2"));
    let first = published(&folder.0).expect("a folder");
    assert_eq!(first.len(), 2, "published as soon as they are open: {first:?}");
    assert!(first.iter().all(|one| one.running && value(one, "sent_pkts") == 0));
    let (left, right) = RcEnd::pair(&a, &b).expect("a pair");
    let source = left.register(&[7; 20_000]).expect("memory");
    let target = right.register_remote(20_000).expect("memory");
    left.qp.write(1, source.all(), target.remote(0)).expect("posted");
    assert_eq!(left.wait().expect("a completion").status, WcStatus::Success);
    let of = |address: &str| -> Published {
        let all = published(&folder.0).expect("a folder");
        all.into_iter().find(|one| one.address.to_string() == address).expect("published")
    };
    // The background thread of each writes within a tenth of a second; a slow host may need longer.
    let ready = || value(&of("127.83.2.1"), "sent_pkts") >= 5 && value(&of("127.83.2.2"), "rcvd_pkts") >= 5;
    let until = crate::clock::now() + Duration::from_secs(60);
    while !ready() {
        assert!(crate::clock::now() < until, "never published: {:?}", of("127.83.2.1"));
        std::thread::sleep(Duration::from_millis(10));
    }
    drop((left, right, source, target, a, b));
    let last = of("127.83.2.1");
    assert!(!last.running && last.pid == std::process::id() && last.device == "rnic0", "{last:?}");
    assert!(value(&last, "sent_pkts") >= 5 && value(&last, "sent_bytes") >= 20_000, "{last:?}");
}

#[test]
fn files_of_programs_that_ended_are_kept_for_a_while_only() {
    let folder = Folder::new("prune");
    let counters = Counters::default();
    let address = IpAddr::from([127, 0, 0, 1]);
    for _ in 0..KEPT_MOST + 5 {
        let one = Publication::in_folder(&folder.0, "rnic0", address).expect("a file");
        one.write(&counters);
    }
    let running = Publication::in_folder(&folder.0, "rnic0", address).expect("a file");
    running.write(&counters);
    let all = published(&folder.0).expect("a folder");
    assert_eq!(all.iter().filter(|one| !one.running).count(), KEPT_MOST);
    assert_eq!(all.iter().filter(|one| one.running).count(), 1);
    // As if an hour had passed.
    let long_ago = SystemTime::now() - KEPT - Duration::from_secs(10);
    for path in files(&super::folder(&folder.0)).expect("a folder") {
        File::options().append(true).open(&path).and_then(|f| f.set_modified(long_ago)).expect("a file");
    }
    let all = published(&folder.0).expect("a folder");
    assert_eq!(all.len(), 1, "a look removes them, and however old, the file of a running program stays");
    assert_eq!(files(&super::folder(&folder.0)).expect("a folder").len(), 1);
}

#[test]
fn a_program_whose_process_id_was_reused_counts_as_ended() {
    let folder = Folder::new("reused");
    let address = IpAddr::from([127, 0, 0, 1]);
    let one = Publication::in_folder(&folder.0, "rnic0", address).expect("a file");
    one.write(&Counters::default());
    let [only] = &*published(&folder.0).expect("a folder") else { panic!("one device") };
    assert!(only.running);
    // The process ID in the file is that of this process, which is still running.
    drop(one);
    let [only] = &*published(&folder.0).expect("a folder") else { panic!("one device") };
    assert!(only.pid == std::process::id() && !only.running, "{only:?}");
}

#[test]
fn devices_with_one_address_in_two_network_namespaces_are_told_apart() {
    let folder = Folder::new("namespaces");
    let address = IpAddr::from([127, 0, 0, 1]);
    let publish = || {
        let one = Publication::in_folder(&folder.0, "rnic0", address).expect("a file");
        one.write(&Counters::default());
        one
    };
    let here = publish();
    let there = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            Some((publish(), NetNamespace::current()))
        });
        other.join().expect("no panic")
    });
    let Some((there, other)) = there else {
        eprintln!("SKIPPED: needs root for a network namespace");
        return;
    };
    let own = NetNamespace::current();
    assert_ne!(own, other);
    assert!(own.inode > 0 && own.inode != other.inode, "{own:?} {other:?}");
    let mut found: Vec<_> =
        published(&folder.0).expect("a folder").into_iter().map(|one| one.namespace).collect();
    found.sort_by_key(|namespace| *namespace != own);
    assert_eq!(found, [own, other]);
    drop((here, there));
}

#[test]
fn only_whole_files_of_ours_are_read() {
    let head = "device rnic0\naddress ::1\nnamespace 40.3\npid 7\ncomm a b\n";
    let text = format!("{MAGIC}\nsequence  3\n{head}sent_pkts   12\nnew 1\nend  3\n");
    let read = Published::parse(&text).expect("in order");
    assert_eq!(
        (read.pid, &*read.comm, read.address),
        (7, "a b", IpAddr::from(std::net::Ipv6Addr::LOCALHOST))
    );
    assert_eq!(read.namespace, NetNamespace { inode: 40, cookie: 3 });
    assert_eq!(read.counters, [("sent_pkts".to_owned(), 12), ("new".to_owned(), 1)]);
    assert_eq!(Published::parse(&text.replace("end  3", "end  4")), None, "written to meanwhile");
    for cut in 0..text.len() - 1 {
        assert_eq!(Published::parse(&text[..cut]), None, "{cut}");
    }
    for (from, to) in
        [("12", "x"), ("::1", "host"), ("pid 7", "pid -7"), ("counters 2", "counters 9"), ("40.3", "x")]
    {
        assert_eq!(Published::parse(&text.replace(from, to)), None, "{to}");
    }
}

#[test]
fn counters_that_have_not_changed_are_not_written_again() {
    let folder = Folder::new("same");
    let one = Publication::in_folder(&folder.0, "rnic0", IpAddr::from([127, 0, 0, 1])).expect("a file");
    let mut counters = Counters::default();
    for (sent, sequence) in [(0, 1), (0, 1), (5, 2), (5, 2), (u64::MAX, 3)] {
        counters.qp.sent_pkts = sent;
        one.write(&counters);
        assert_eq!(locked(&one.state).sequence, sequence);
        let read = published(&folder.0).expect("a folder");
        assert_eq!(value(&read[0], "sent_pkts"), sent, "the file never gets shorter, nor longer");
    }
}

#[test]
fn a_hostile_file_neither_fills_memory_nor_reaches_the_terminal() {
    let folder = Folder::new("hostile");
    fs::create_dir_all(&folder.0).expect("a folder");
    let path = folder.0.join("file");
    let text = |comm: &str| {
        format!("{MAGIC}\nsequence 1\ndevice d\naddress ::1\nnamespace 4.3\npid 7\ncomm {comm}\nend 1\n")
    };
    fs::write(&path, text("\u{1b}[2Jx")).expect("a file");
    let file = File::open(&path).expect("a file");
    assert_eq!(Published::read_from(&file).expect("counters").comm, "\u{fffd}[2Jx");
    fs::write(&path, text(&"x".repeat(5000))).expect("a file");
    assert!(Published::read_from(&file).expect("counters").comm.len() < 1000);
    // A file with a hole in it takes no space, whatever its length.
    File::options().write(true).open(&path).and_then(|file| file.set_len(1 << 40)).expect("a file");
    assert_eq!(Published::read_from(&file), None);
    fs::write(&path, b"\xff\xfe").expect("a file");
    assert_eq!(Published::read_from(&file), None);
}

/// Programs that share an address of the daemon share its port.
#[test]
fn the_counters_of_a_port_are_the_sums_of_those_who_run_at_it() {
    let one = |pid, running, inode, values: [u64; 3]| Published {
        device: "rnic0".to_owned(),
        address: IpAddr::from([127, 83, 2, 9]),
        namespace: NetNamespace { inode, cookie: 0 },
        pid,
        comm: String::new(),
        running,
        updated: SystemTime::UNIX_EPOCH,
        counters: ["tx_bytes", "link_rx_queue_max", "rx_bytes"]
            .map(str::to_owned)
            .into_iter()
            .zip(values)
            .collect(),
    };
    let elsewhere = one(1, true, 2, [1000, 1000, 1000]);
    let all = [
        elsewhere,
        one(2, false, 1, [9, 9, 9]),
        one(3, true, 1, [1, 7, 3]),
        one(4, true, 1, [10, 5, u64::MAX]),
    ];
    let values = |programs: &[Published]| -> Option<Vec<u64>> {
        Some(of_port(programs.iter())?.into_iter().map(|(_, value)| value).collect())
    };
    assert_eq!(values(&all), Some(vec![11, 7, u64::MAX]), "of this namespace, of those who run");
    assert_eq!(values(&all[..3]), Some(vec![1, 7, 3]));
    assert_eq!(values(&all[1..2]), Some(vec![9, 9, 9]), "the latest, if none runs");
    assert_eq!(values(&[]), None);
    // A program of another version has other counters.
    let mut other = all[2].clone();
    other.counters.remove(0);
    assert_eq!(values(&[other, all[3].clone()]), Some(vec![10, 7, u64::MAX]));
}
