//! Ceph (16): a monitor and a storage daemon whose messenger uses RDMA, and `rados`, which stores objects there.
//!
//! The messenger exchanges queue pairs over TCP, and then sends everything over reliable connections with a shared receive
//! queue. It waits for events.

use crate::lab::{self, Folder, LIMIT, Running, has};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

const MONITOR: &str = "127.91.249.1";
const STORE: &str = "127.91.249.2";
const CLIENT: &str = "127.91.249.3";

/// Of the cluster, and of its one store.
const CLUSTER_ID: &str = "3e3a0f5c-58d4-4f52-8b0b-3d2a3c6f8a01";
const STORE_ID: &str = "6b1a9d0e-0d6f-4bd0-9f53-5f5b9d1c7e02";

/// A cluster without authentication that keeps its objects in memory. A program would register 4 GiB if nothing were said, and a
/// monitor would end without a word where less than 5 % of the disk are free.
fn configuration(folder: &str, port: u16) -> String {
    format!(
        "[global]
fsid = {CLUSTER_ID}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
mon_host = v2:{MONITOR}:{port}
mon_data = {folder}/mon
mon_initial_members = a
mon_data_avail_warn = 0
mon_data_avail_crit = 0
osd_data = {folder}/osd
osd_objectstore = memstore
memstore_device_bytes = 1073741824
osd_pool_default_size = 1
osd_pool_default_min_size = 1
run_dir = {folder}
admin_socket = {folder}/$name.asok
log_file = {folder}/$name.log
ms_type = async+rdma
ms_async_rdma_device_name = rnic0
ms_async_rdma_buffer_size = 32768
ms_async_rdma_send_buffers = 512
ms_async_rdma_receive_buffers = 4096
ms_async_rdma_receive_queue_len = 512
"
    )
}

struct Cluster {
    folder: Folder,
}

impl Cluster {
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn command(&self, address: &str, program: &str, arguments: &[&str]) -> Command {
        let mut command = lab::run(&self.folder, &["--addr", address, "--explain"], program);
        command.arg("-c").arg(self.path("ceph.conf")).args(arguments);
        command
    }

    /// Runs a program that must succeed. What it prints.
    fn finish(&self, address: &str, program: &str, arguments: &[&str]) -> String {
        let ended = Running::start(&self.folder, &mut self.command(address, program, arguments)).wait(LIMIT);
        assert_eq!(ended.fault(), None, "{program} {arguments:?}: {}", ended.text);
        ended.text
    }

    fn daemon(&self, address: &str, program: &str, arguments: &[&str]) -> Running {
        Running::start(&self.folder, &mut self.command(address, program, arguments))
    }

    /// The last lines of a log.
    fn log(&self, name: &str) -> String {
        let log = fs::read_to_string(self.path(name)).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Waits until the monitor listens. A program that comes before it tries again for minutes, and does not say why.
    fn await_monitor(&self, monitor: &mut Running, port: u16) {
        if !lab::await_listener(port, monitor) {
            let log = self.log("mon.a.log");
            panic!("the monitor does not listen; {}\n{}\n{log}", monitor.state(), monitor.text());
        }
    }

    /// Waits until the cluster has its store.
    fn await_store(&self, store: &mut Running) {
        let begin = Instant::now();
        while !self.finish(CLIENT, "ceph", &["osd", "stat"]).contains("1 up") {
            if store.has_ended() || begin.elapsed() >= LIMIT {
                let log = self.log("osd.0.log");
                panic!("the store does not come up; {}\n{}\n{log}", store.state(), store.text());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn ceph_stores_objects_over_rdma() {
    if !["ceph-mon", "ceph-osd", "ceph", "rados", "monmaptool"].into_iter().all(has) {
        return;
    }
    let _alone = lab::alone();
    let cluster = Cluster { folder: Folder::new() };
    let port = lab::free_port();
    fs::write(cluster.path("ceph.conf"), configuration(&cluster.path(""), port)).expect("a file");
    for name in ["mon", "osd"] {
        fs::create_dir(cluster.path(name)).expect("a folder");
    }
    let map = cluster.path("map");
    let made = Command::new("monmaptool")
        .args(["--create", "--fsid", CLUSTER_ID, "--addv", "a", &format!("[v2:{MONITOR}:{port}]"), &map])
        .output()
        .expect("monmaptool");
    assert!(made.status.success(), "{made:?}");
    cluster.finish(MONITOR, "ceph-mon", &["--mkfs", "-i", "a", "--monmap", &map]);
    let mut monitor = cluster.daemon(MONITOR, "ceph-mon", &["-f", "-i", "a"]);
    cluster.await_monitor(&mut monitor, port);
    cluster.finish(CLIENT, "ceph", &["osd", "new", STORE_ID]);
    cluster.finish(STORE, "ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", STORE_ID]);
    let place = ["--public_addr", STORE, "--crush_location", "root=default host=one"];
    let mut store = cluster.daemon(STORE, "ceph-osd", &[&["-f", "-i", "0"], &place[..]].concat());
    cluster.await_store(&mut store);
    cluster.finish(CLIENT, "ceph", &["osd", "pool", "create", "pool", "8"]);

    let bytes: Vec<u8> = (0..3_000_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let [from, back] = ["from", "back"].map(|name| cluster.path(name));
    fs::write(&from, &bytes).expect("a file");
    cluster.finish(CLIENT, "rados", &["-p", "pool", "put", "object", &from]);
    cluster.finish(CLIENT, "rados", &["-p", "pool", "get", "object", &back]);
    assert!(fs::read(&back).expect("a file") == bytes, "what was read back differs");
    let bench = ["-p", "pool", "bench", "1", "write", "-b", "16384", "-t", "8", "--no-cleanup"];
    cluster.finish(CLIENT, "rados", &bench);
    // Compares what it reads with what was written.
    let text = cluster.finish(CLIENT, "rados", &["-p", "pool", "bench", "1", "seq", "-t", "8"]);
    assert!(text.contains("Total reads made"), "{text}");

    let (sent, programs) = lab::counted(&cluster.folder, "tx_bytes");
    assert!(programs > 2 && sent > 2 * bytes.len() as u64, "{sent} bytes of {programs} programs");
    for daemon in [&mut monitor, &mut store] {
        assert!(!daemon.has_ended());
        daemon.kill();
    }
}
