//! Captures of simulations are identical in every run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rnic::link::LinkConfig;
use rnic::sim::{DeviceSetup, Net};
use rnic::{Access, ConnectOptions, MwType, Operation, RcEnd, WcStatus};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in a process that runs the program: the capture file.
const CHILD: &str = "RNIC_TEST_SIM_CAPTURE";

/// A program that uses everything that contains addresses, keys and random numbers: all operations, faults, marks and
/// windows.
fn program(seed: u64, capture: &Path) {
    let net = Net::with_seed(seed);
    let setup = DeviceSetup {
        link: "ethernet:rate=5Gb/s,buffer=100KB".parse::<LinkConfig>().unwrap(),
        cc: "dcqcn:preset=laptop".parse().unwrap(),
        ..DeviceSetup::default()
    };
    let (a, b) = (net.device_with(&setup).unwrap(), net.device_with(&setup).unwrap());
    a.capture(capture).unwrap();
    a.add_fault("tx data p=0.05 drop").unwrap();
    let (left, right) = RcEnd::pair_with(&a, &b, &ConnectOptions::default()).unwrap();
    let source = left.register(&[7; 200_000]).unwrap();
    let target = right.register_remote(200_000).unwrap();
    let word = right.register_remote(8).unwrap();
    let done = |end: &RcEnd| assert_eq!(end.wait().unwrap().status, WcStatus::Success);
    for wr_id in 0..4 {
        left.qp.write(wr_id, source.all(), target.remote(0)).unwrap();
        done(&left);
    }
    let whole = Operation::Read { remote: target.remote(0) };
    left.qp.post(5, whole, source.all()).unwrap();
    done(&left);
    let back = left.register(&[0; 8]).unwrap();
    left.qp.post(6, Operation::FetchAdd { remote: word.remote(0), add: 3 }, back.all()).unwrap();
    done(&left);
    let window = right.pd().alloc_mw(MwType::Type1).unwrap();
    assert!(window.rkey() > 0);
    let ours = left.pd().register(64, Access::LOCAL_WRITE).unwrap();
    right.qp.recv(7, target.slice(0..64).unwrap()).unwrap();
    left.qp.send(8, ours.all()).unwrap();
    done(&left);
    a.stop_captures();
}

/// Runs the program in its own process, where the kernel chooses other memory addresses.
fn run(seed: u64, run: u32) -> Vec<u8> {
    let name = format!("sim-{seed}-{run}-{}.pcapng", std::process::id());
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let test = "two_runs_of_a_seeded_simulation_give_identical_captures";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(CHILD, format!("{seed} {}", path.display()))
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

#[test]
fn two_runs_of_a_seeded_simulation_give_identical_captures() {
    if let Ok(task) = std::env::var(CHILD) {
        let (seed, path) = task.split_once(' ').unwrap();
        return program(seed.parse().unwrap(), Path::new(path));
    }
    let (first, second, other) = (run(7, 1), run(7, 2), run(8, 1));
    assert!(first.len() > 1_000_000, "{} bytes", first.len());
    let differs = first.iter().zip(&second).position(|(a, b)| a != b);
    assert!(first.len() == second.len() && differs.is_none(), "the files differ at byte {differs:?}");
    assert_ne!(first, other, "keys and faults follow from the seed");
}
