use super::*;
use crate::process::publish::Publication;
use crate::process::{GidLayout, Settings};
use crate::{Counters, QpCounters, RcEnd, WcStatus};
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A process configuration with its own run folder. A process has only one tree, so only one test in this file uses it.
fn process(run_dir: &Path, addresses: &[&str]) -> ProcessConfig {
    let settings = Settings {
        addresses: addresses.iter().map(|address| address.parse().expect("an address")).collect(),
        devices: Some(3),
        gid_table: Some(GidLayout::Rxe),
        run_dir: Some(run_dir.to_owned()),
        ..Settings::default()
    };
    settings.process().expect("in order")
}

fn read(process: &ProcessConfig, path: &str) -> String {
    let mapped = process.map_path(Path::new(path)).expect("a path of ours");
    fs::read_to_string(&mapped).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn programs_find_devices_where_the_kernel_would_have_them() {
    let run_dir = std::env::temp_dir().join(format!("rnic-tree-{}", std::process::id()));
    let all = process(&run_dir, &["127.83.3.1", "127.83.3.2", "127.83.3.3", "127.83.3.4", "127.83.3.5"]);
    let of = |device: &str, file: &str| read(&all, &format!("/sys/class/infiniband/{device}/{file}"));
    assert_eq!(of("rnic2", "node_type"), "1: CA\n");
    // Only what is named is written: a file, a folder with all that is in it, or, if the path leads through a link, everything.
    let there = |path: &str| {
        let node_type = all.map_path(Path::new("/sys/class/infiniband/rnic2/node_type")).expect("ours");
        node_type.ancestors().nth(2).expect("the devices").join(path).exists()
    };
    let [gids, types, other] =
        ["rnic2/ports/1/gids/15", "rnic2/ports/1/gid_attrs/types/15", "rnic0/ports/1/rate"];
    assert_eq!([gids, types, other].map(there), [false; 3]);
    assert!(
        all.map_path(Path::new("/sys/class/infiniband/rnic2/ports/1/none")).is_some_and(|at| !at.exists())
    );
    assert!(
        all.map_path(Path::new("/sys/class/infiniband/rnic2/ports/1/gids")).is_some_and(|at| at.is_dir())
    );
    assert_eq!([gids, types, other].map(there), [true, false, false]);
    assert_eq!(of("rnic2", "device/infiniband/rnic2/ports/1/lid"), "0x0\n");
    assert_eq!([gids, types, other].map(there), [true; 3]);
    assert_eq!(of("rnic2", "node_guid"), "504e:7fff:fe53:0303\n", "127.83.3.3 in it");
    assert_eq!(of("rnic2", "ports/1/link_layer"), "Ethernet\n");
    // With a single node, devices can only be there.
    let nodes = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let expected = if nodes == "0\n" { "0\n" } else { "-1\n" };
    assert_eq!(of("rnic2", "device/numa_node"), expected);
    assert_eq!(of("rnic2", "ports/1/rate"), "100 Gb/sec (4X EDR)\n");
    assert_eq!(of("rnic2", "ports/1/cap_mask"), "0x00010000\n");
    assert_eq!(of("rnic2", "ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:7f53:0303\n");
    assert_eq!(of("rnic2", "ports/1/gid_attrs/types/0"), "RoCE v2\n");
    assert_eq!(of("rnic2", "ports/1/gid_attrs/ndevs/0"), "lo\n");
    assert_eq!(of("rnic2", "ports/1/pkeys/0"), "0xffff\n");
    // A device with two addresses gets one of them only when it is opened.
    let empty = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    assert_eq!((&*of("rnic1", "ports/1/gids/1"), &*of("rnic1", "ports/1/gid_attrs/types/1")), (empty, ""));
    let list = |path: &str| {
        let mapped = all.map_path(Path::new(path)).expect("a path of ours");
        let entries = fs::read_dir(mapped).expect("a folder").flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(list("/sys/class/infiniband"), ["rnic0", "rnic1", "rnic2"]);
    assert_eq!(list("/sys//class/./infiniband_verbs/"), ["abi_version", "uverbs0", "uverbs1", "uverbs2"]);
    assert_eq!(list("/sys/class/infiniband/rnic1/device/net"), ["lo"]);
    assert_eq!(list("/sys/class/infiniband_verbs/uverbs2/device/infiniband"), ["rnic2"]);
    assert_eq!(list("/sys/class/infiniband/rnic2/device/infiniband_verbs/uverbs2")[3], "ibdev");
    let link = |path: &str| fs::read_link(all.map_path(Path::new(path)).expect("a path of ours")).ok();
    let [device, verbs] = ["infiniband/rnic2", "infiniband_verbs/uverbs2"];
    for class in [device, verbs] {
        let target = format!("../../devices/virtual/rnic/rnic2/{class}");
        assert_eq!(link(&format!("/sys/class/{class}")), Some(target.into()));
        assert_eq!(link(&format!("/sys/class/{class}/device")), Some("../../../rnic2".into()));
    }
    // What was removed is written again, by whichever path it is found.
    let by_device = "/sys/devices/virtual/rnic/rnic2";
    let lid = all.map_path(Path::new("/sys/class/infiniband/rnic2/ports/1/lid")).expect("a path of ours");
    let device = "/sys/class/infiniband/rnic2/device".to_owned();
    let paths = ["/infiniband/rnic2/ports/1/lid", "/infiniband/rnic2/ports/1/", ""];
    for by in paths.map(|path| format!("{by_device}{path}")).into_iter().chain([device]) {
        fs::remove_file(&lid).expect("it was there");
        all.map_path(Path::new(&by)).expect("a path of ours");
        assert!(lid.exists(), "{by}");
    }
    assert_eq!(read(&all, "/sys/devices/virtual/rnic/rnic2/infiniband/rnic2/ports/1/lid"), "0x0\n");
    assert_eq!(read(&all, "/sys/devices/virtual/rnic/rnic2/vendor"), "0xffff\n");
    let kind = |path: &str| {
        let mapped = all.map_path(Path::new(path)).expect("a path of ours");
        mapped.symlink_metadata().expect("it exists").is_symlink()
    };
    let [plain, slash] = ["/sys/class/infiniband/rnic2", "/sys/class/infiniband/rnic2/"].map(kind);
    assert!(plain && !slash, "a slash behind a link leads to its target");
    assert_eq!(list("/dev/infiniband"), ["rdma_cm", "uverbs0", "uverbs1", "uverbs2"]);
    assert_eq!(all.map_path(Path::new("/dev/infiniband/uverbs1")), Some("/dev/null".into()));
    let missing = all.map_path(Path::new("/dev/infiniband/uverbs3")).expect("a path of ours");
    assert!(!missing.exists());

    // Open devices show their addresses and current counters.
    let (a, b) = (all.devices[1].open().expect("a device"), all.devices[2].open().expect("a device"));
    assert_eq!(of("rnic1", "ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:7f53:0302\n");
    assert_eq!(of("rnic1", "ports/1/gids/0"), "fe80:0000:0000:0000:504e:7fff:fe53:0302\n");
    let (left, right) = RcEnd::pair(&a, &b).expect("a pair");
    let source = left.register(&[7; 20_000]).expect("memory");
    let target = right.register_remote(20_000).expect("memory");
    assert_eq!(of("rnic1", "ports/1/hw_counters/sent_pkts"), "0\n");
    let open = |file: &str| {
        let path = format!("/sys/class/infiniband/rnic1/ports/1/{file}");
        File::open(all.map_path(Path::new(&path)).expect("a path of ours")).expect("a counter")
    };
    let (mut kept, other) = (open("hw_counters/sent_bytes"), open("rate"));
    assert_eq!([&kept, &other].map(|file| all.refresh(file.as_fd(), None)), [true, false], "counters alone");
    left.qp.write(1, source.all(), target.remote(0)).expect("posted");
    assert_eq!(left.wait().expect("a completion").status, WcStatus::Success);
    let number = |device: &str, file: &str| of(device, file).trim_end().parse::<u64>().expect("a number");
    assert_eq!(number("rnic1", "ports/1/hw_counters/sent_bytes"), 20_000);
    assert!(number("rnic1", "ports/1/counters/port_xmit_data") >= 5_000, "words of four bytes");
    assert!(number("rnic2", "ports/1/counters/port_rcv_packets") >= 5);
    // A counter file that stays open shows the current value whenever it is read from its beginning.
    let mut again = || {
        assert!(all.refresh(kept.as_fd(), None));
        let mut text = String::new();
        kept.read_to_string(&mut text).expect("a counter");
        text
    };
    assert_eq!([again(), again()], ["20000\n", ""]);
    let held = hold();
    assert!(!all.refresh(kept.as_fd(), None), "whoever writes the tree does not wait for itself");
    drop(held);
    assert!(all.refresh(kept.as_fd(), None));
    assert!(!all.refresh(io::stdin().as_fd(), None));
    // A program that opens the directory and reads files relative to it also sees current values.
    let folder = all.map_path(Path::new("/sys/class/infiniband/rnic2/ports/1/hw_counters")).expect("ours");
    let received = fs::read_to_string(folder.join("rcvd_bytes")).expect("a counter");
    assert_eq!(received, "20000\n");
    a.inject_port_state(false).expect("a port");
    assert_eq!(of("rnic1", "ports/1/state"), "1: DOWN\n");
    assert_eq!(
        (&*of("rnic2", "ports/1/state"), &*of("rnic2", "ports/1/phys_state")),
        ("4: ACTIVE\n", "5: LinkUp\n")
    );
    // A closed device still shows its counters.
    drop((left, right, source, target, a, b));
    assert_eq!(number("rnic2", "ports/1/hw_counters/rcvd_bytes"), 20_000);
    fs::remove_dir_all(&run_dir).expect("the run folder");
}

#[test]
fn all_other_paths_are_left_alone() {
    for path in [
        "/",
        "/sys",
        "/sys/class",
        "/sys/class/infiniband_mad/abi_version",
        "/sys/class/infinibandx",
        "/sys/devices/virtual/net/lo",
        "/sys/devices/virtual/rnicx",
        "/dev/infinibandx/uverbs0",
        "/dev",
        "sys/class/infiniband",
        "/x/sys/class/infiniband",
        "",
    ] {
        assert_eq!(inside(Path::new(path)), None, "{path}");
    }
    assert_eq!(inside(Path::new("/sys/devices/virtual/rnic/x")), Some("sys/devices/virtual/rnic/x".into()));
    assert_eq!(inside(Path::new("//dev/./infiniband//uverbs0")), Some("dev/infiniband/uverbs0".into()));
    let none = Settings::default().process().expect("in order");
    assert_eq!(none.map_path(Path::new("/etc/passwd")), None);
}

#[test]
fn what_is_below_the_devices_of_the_kernel_has_a_path_below_its_classes() {
    for (path, expected) in [
        ("devices/virtual/rnic", "devices/virtual/rnic"),
        ("devices/virtual/rnic/rnic1", "class/infiniband/rnic1/device"),
        ("devices/virtual/rnic/rnic1/vendor", "class/infiniband/rnic1/device/vendor"),
        ("devices/virtual/rnic/rnic1/infiniband", "class/infiniband/rnic1/device/infiniband"),
        ("devices/virtual/rnic/rnic1/infiniband/rnic1/ports", "class/infiniband/rnic1/ports"),
        ("devices/virtual/rnic/rnic1/infiniband_verbs/uverbs1", "class/infiniband_verbs/uverbs1"),
        ("class/infiniband/rnic1/node_type", "class/infiniband/rnic1/node_type"),
    ] {
        let [path, expected] = [path, expected].map(|path| Path::new("sys").join(path));
        assert_eq!(content::by_class(&path), expected);
    }
}

#[test]
fn trees_of_processes_that_ended_are_removed() {
    let folder = std::env::temp_dir().join(format!("rnic-trees-{}", std::process::id()));
    make(&folder).expect("a folder");
    let held = make_locked(&folder, "1-a.lock").expect("a lock");
    drop(make_locked(&folder, "2-b.lock").expect("a lock"));
    for name in ["1-a", "2-b"] {
        fs::create_dir_all(folder.join(name).join("sys/class")).expect("a tree");
    }
    prune(&folder).expect("a folder");
    assert!(held.as_raw_fd() >= 512, "out of the way of a shell's redirections");
    let exists = |name: &str| folder.join(name).exists();
    assert_eq!(["1-a", "1-a.lock", "2-b", "2-b.lock"].map(exists), [true, true, false, false]);
    drop(held);
    fs::remove_dir_all(folder).expect("the folder");
}

/// A program may look at any moment: it finds all files of a device, or no device.
#[test]
fn a_folder_never_shows_a_part_of_a_device() {
    let place = std::env::temp_dir().join(format!("rnic-sysparts-{}", std::process::id()));
    let (run_dir, root) = (place.join("run"), place.join("sys"));
    let all = process(&run_dir, &["127.83.5.1", "127.83.5.2", "127.83.5.3"]);
    let mut folder = SysFolder::new(&root, &run_dir).expect("a new folder");
    // The first that is written, one from the middle, and the last.
    let shown = root.join("class/infiniband/rnic0_127.83.5.1");
    let files = ["node_type", "ports/1/rate", "ports/1/hw_counters/lifespan"];
    let (done, seen) = (AtomicBool::new(false), AtomicU32::new(0));
    let look = || {
        // A descriptor is of one folder, even if another takes its name meanwhile.
        let Ok(device) = File::open(&shown) else { return };
        let within = PathBuf::from(format!("/proc/self/fd/{}", device.as_raw_fd()));
        let found = files.map(|file| within.join(file).exists());
        if fs::read_link(&within).is_ok_and(|place| place == shown) {
            assert_eq!(found, [true; 3], "{files:?}");
            seen.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                look();
            }
        });
        for _ in 0..10 {
            let device = all.devices[0].open().expect("a device");
            let before = seen.load(Ordering::Relaxed);
            assert_eq!(folder.update().expect("written").len(), 1);
            while seen.load(Ordering::Relaxed) == before && !reader.is_finished() {
                std::thread::yield_now();
            }
            drop(device);
            assert_eq!(folder.update().expect("removed").len(), 0);
        }
        done.store(true, Ordering::Relaxed);
    });
    folder.remove().expect("removed");
    fs::remove_dir_all(&place).expect("the folder");
}

#[test]
fn a_folder_shows_the_devices_of_running_programs_as_files() {
    let place = std::env::temp_dir().join(format!("rnic-sysfolder-{}", std::process::id()));
    let (run_dir, root) = (place.join("run"), place.join("sys"));
    let mut folder = SysFolder::new(&root, &run_dir).expect("a new folder");
    let busy = SysFolder::new(&root, &run_dir).expect_err("taken");
    assert_eq!(busy.kind(), ErrorKind::ResourceBusy, "{busy}");
    assert!(folder.update().expect("nothing runs").is_empty());
    let all = process(&run_dir, &["127.83.4.1", "127.83.4.2", "127.83.4.3"]);
    let (a, b) = (all.devices[0].open().expect("a device"), all.devices[1].open().expect("a device"));
    let names = folder.update().expect("written").clone();
    assert!(names.iter().eq(["rnic0_127.83.4.1", "rnic1_127.83.4.2"]), "{names:?}");
    let read = |device: &str, file: &str| {
        let path = root.join("class/infiniband").join(device).join("ports/1").join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert_eq!(read("rnic1_127.83.4.2", "state"), "4: ACTIVE\n");
    assert_eq!(read("rnic1_127.83.4.2", "gids/0"), "0000:0000:0000:0000:0000:ffff:7f53:0402\n");
    let (left, right) = RcEnd::pair(&a, &b).expect("a pair");
    let (source, target) = (left.register(&[7; 20_000]), right.register_remote(20_000));
    let (source, target) = (source.expect("memory"), target.expect("memory"));
    left.qp.write(1, source.all(), target.remote(0)).expect("posted");
    assert_eq!(left.wait().expect("a completion").status, WcStatus::Success);
    drop((left, right, source, target, b));
    let names = folder.update().expect("written").clone();
    assert!(names.iter().eq(["rnic0_127.83.4.1"]), "{names:?}");
    drop(a);
    folder.remove().expect("removed");
    assert!(!root.exists());
    fs::create_dir_all(root.join("kernel")).expect("a folder");
    let foreign = SysFolder::new(&root, &run_dir).expect_err("somebody else's");
    assert_eq!(foreign.kind(), ErrorKind::DirectoryNotEmpty, "{foreign}");
    fs::remove_dir_all(&place).expect("the folder");
}

/// Two programs at an address of the daemon: one device with the sums, whichever of them changed last.
#[test]
fn a_folder_shows_programs_that_share_an_address_as_one_device() {
    let place = std::env::temp_dir().join(format!("rnic-sysshared-{}", std::process::id()));
    let (run_dir, root) = (place.join("run"), place.join("sys"));
    let address = IpAddr::from([127, 83, 6, 1]);
    let [a, b] = [(); 2].map(|()| Publication::in_folder(&run_dir, "rnic0", address).expect("a file"));
    let mut folder = SysFolder::new(&root, &run_dir).expect("a new folder");
    for (program, count, sum) in [(&a, 3, 3), (&b, 4, 7), (&a, 5, 9)] {
        let qp = QpCounters { sent_pkts: count, ..QpCounters::default() };
        program.write(&Counters { qp, ..Counters::default() });
        let names = folder.update().expect("written");
        assert!(names.iter().eq(["rnic0_127.83.6.1"]), "{names:?}");
        let file = root.join("class/infiniband/rnic0_127.83.6.1/ports/1/hw_counters/sent_pkts");
        assert_eq!(fs::read_to_string(file).expect("a counter"), format!("{sum}\n"));
    }
    drop(b);
    folder.update().expect("written");
    let file = root.join("class/infiniband/rnic0_127.83.6.1/ports/1/hw_counters/sent_pkts");
    assert_eq!(fs::read_to_string(file).expect("a counter"), "5\n", "of the one that runs");
    folder.remove().expect("removed");
    fs::remove_dir_all(&place).expect("the folder");
}
