//! What programs find in the file system.

use crate::lab::{self, Folder, LIMIT, Running, has};

/// The output of a shell script in a process with a device at this address.
fn sh(address: &str, script: &str) -> String {
    let folder = Folder::new();
    let options = ["--addr", address, "--gid-table", "rxe"];
    let ended = Running::start(&folder, lab::run(&folder, &options, "sh").args(["-c", script])).wait(LIMIT);
    assert_eq!(ended.fault(), None, "{script}: {}", ended.text);
    ended.text
}

#[test]
fn a_shell_finds_devices_where_the_kernel_would_have_them() {
    let script = "set -e; cd /sys/class/infiniband/rnic0; cat node_type ports/1/gids/1 ports/1/gid_attrs/types/1
                  ls /sys/class/infiniband /dev/infiniband device/net; cat < /sys/class/infiniband_verbs/uverbs0/ibdev
                  test -c /dev/infiniband/uverbs0; test -r /dev/infiniband/uverbs0; test ! -e /dev/infiniband/uverbs1
                  exec 3<>/dev/infiniband/uverbs0; readlink /sys/class/infiniband/rnic0 device
                  cd /sys/class/infiniband_verbs/uverbs0/device; realpath /sys/class/infiniband/rnic0/node_type $PWD/../rnic0/vendor
                  cat vendor infiniband/rnic0/ports/1/state";
    let expected = "1: CA\n0000:0000:0000:0000:0000:ffff:7f5a:0301\nRoCE v2\n\
                    /dev/infiniband:\nrdma_cm\nuverbs0\n\n/sys/class/infiniband:\nrnic0\n\ndevice/net:\nlo\nrnic0\n\
                    ../../devices/virtual/rnic/rnic0/infiniband/rnic0\n../../../rnic0\n\
                    /sys/devices/virtual/rnic/rnic0/infiniband/rnic0/node_type\n/sys/devices/virtual/rnic/rnic0/vendor\n\
                    0xffff\n4: ACTIVE\n";
    assert_eq!(sh("127.90.3.1", script), expected);
}

/// A descriptor serves again, also to rnic itself, which reads files of the host while it writes the second counter.
#[test]
fn a_program_reads_one_counter_after_another() {
    let script = "cd /sys/class/infiniband/rnic0/ports/1/counters; counters=/sys/class/infiniband/rnic0/ports/1/counters
                  cat $counters/port_xmit_data $counters/port_rcv_data $counters/port_xmit_data
                  cat port_xmit_data /sys/class/infiniband/rnic0/node_desc port_rcv_data | wc -l";
    assert_eq!(sh("127.90.3.9", script), "0\n0\n0\n3\n");
}

#[test]
fn tools_that_walk_through_folders_find_everything() {
    let script = "cd /sys/class/infiniband; find $PWD/rnic0/ $PWD/rnic0/device/ -type f | sort
                  ls -lR . rnic0/ /sys/devices/virtual/rnic";
    let walked = sh("127.90.3.2", script);
    for file in [
        "fw_ver",
        "node_guid",
        "device/vendor",
        "ports/1/state",
        "ports/1/pkeys/0",
        "ports/1/counters/port_rcv_data",
    ] {
        assert!(walked.contains(&format!("/sys/class/infiniband/rnic0/{file}\n")), "{file} in {walked}");
    }
    assert!(!walked.contains("No such file"), "{walked}");
    let read = sh("127.90.3.3", "grep -r . /sys/class/infiniband/rnic0/ports/1/hw_counters");
    assert!(read.contains("/hw_counters/sent_pkts:0\n"), "{read}");
}

#[test]
fn other_paths_are_as_they_were() {
    let script = "ls -d /sys/class/net /dev/null /proc/self; cat /sys/class/net/lo/mtu; test ! -e /sys/class/infinibandx";
    let plain = std::process::Command::new("sh").args(["-c", script]).output().expect("a shell");
    assert_eq!(sh("127.90.3.4", script).into_bytes(), plain.stdout);
}

#[test]
fn python_finds_devices_and_reads_exact_counters() {
    if !has("python3") {
        return;
    }
    let script = "python3 -c '
import glob, os, stat
base = \"/sys/class/infiniband\"
assert os.listdir(base) == [\"rnic0\"] and os.path.isdir(base + \"/rnic0/device/net/\")
assert sorted(e.name for e in os.scandir(\"/dev/infiniband\")) == [\"rdma_cm\", \"uverbs0\"]
assert stat.S_ISCHR(os.stat(\"/dev/infiniband/uverbs0\").st_mode)
assert open(base + \"/rnic0/ports/1/rate\").read() == \"100 Gb/sec (4X EDR)\\n\"
real = os.path.realpath(base + \"/rnic0\")
assert real == \"/sys/devices/virtual/rnic/rnic0/infiniband/rnic0\" and os.path.islink(base + \"/rnic0\")
assert open(real + \"/node_type\").read() == open(base + \"/rnic0/node_type\").read()
assert int(open(os.path.realpath(base + \"/rnic0/device\") + \"/numa_node\").read()) >= -1
assert glob.glob(base + \"/*/node_guid\") == [base + \"/rnic0/node_guid\"]
here = os.open(base, os.O_RDONLY)
assert os.read(os.open(\"rnic0/node_type\", os.O_RDONLY, dir_fd=here), 99) == b\"1: CA\\n\"
try:
    open(base + \"/rnic1/node_type\")
    raise SystemExit(\"there is no such device\")
except FileNotFoundError as error:
    print(error.errno)
'";
    assert_eq!(sh("127.90.3.5", script), "2\n");
}

#[test]
fn the_tree_of_a_process_goes_with_it() {
    let folder = Folder::new();
    let mut shell = lab::run(&folder, &[], "sh");
    let ended = Running::start(
        &folder,
        shell.args(["-c", "ls /sys/class/infiniband; ls $RNIC_RUN_DIR/trees | wc -l"]),
    );
    let ended = ended.wait(LIMIT);
    // `ls` created a tree and removed it at exit; the second command only lists the directory.
    assert_eq!((ended.fault(), &*ended.text), (None, "rnic0\n0\n"));
    // A killed process leaves its tree for the next one to remove.
    let mut killed = lab::run(&folder, &[], "python3");
    let script =
        "import os, signal; os.listdir('/sys/class/infiniband'); os.kill(os.getpid(), signal.SIGKILL)";
    if has("python3") {
        Running::start(&folder, killed.args(["-c", script])).wait(LIMIT);
        let trees = || std::fs::read_dir(folder.path().join("run/trees")).expect("a folder").count();
        assert_eq!(trees(), 2, "a tree and its lock");
        let mut next = lab::run(&folder, &[], "ls");
        Running::start(&folder, next.arg("/sys/class/infiniband")).wait(LIMIT);
        assert_eq!(trees(), 0);
    }
}
