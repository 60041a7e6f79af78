//! The command `rnic show counters`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rnic::Device;
use rnic::process::Settings;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A run folder of one test, removed at its end.
struct RunDir(PathBuf);

impl RunDir {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }

    /// Opens devices of this process at these addresses, which publish their counters.
    fn devices(&self, addresses: &[&str]) -> Vec<Device> {
        let settings = Settings {
            run_dir: Some(self.0.clone()),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..Settings::default()
        };
        settings.process().unwrap().devices.iter().map(|device| device.open().unwrap()).collect()
    }

    /// Standard output and standard error.
    fn show(&self, args: &[&str]) -> (String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
        command.args(["show", "counters"]).args(args).env("RNIC_RUN_DIR", &self.0);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(&output.stdout), text(&output.stderr))
    }

    /// The rows that are shown as JSON.
    fn rows(&self, args: &[&str]) -> Vec<serde_json::Value> {
        serde_json::from_str(&self.show(&[args, &["--json"]].concat()).0).unwrap()
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn counters_are_filtered_by_process_program_device_and_name() {
    let dir = RunDir::new("filtered");
    let (own, devices) = (std::process::id().to_string(), dir.devices(&["127.96.1.1", "127.96.1.2"]));
    let names = |args: &[&str]| -> Vec<String> {
        dir.rows(args).iter().map(|row| row["ifname"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["--pid", &own]), ["rnic0", "rnic1"]);
    assert!(names(&["--pid", "1"]).is_empty());
    assert_eq!(names(&["--program", "show_c*"]), ["rnic0", "rnic1"]);
    assert_eq!(names(&["--device", "rnic1"]), ["rnic1"]);
    assert_eq!(names(&["--device", "127.96.1.1"]), ["rnic0"]);
    let row = dir.rows(&["--device", "rnic0", "--counter", "sent_*"]).remove(0);
    assert!(row["sent_pkts"] == 0 && row["rcvd_pkts"].is_null(), "{row}");
    let (text, told) = dir.show(&["--program", "somebody-else"]);
    assert!(text.is_empty() && told.contains("match none of the 2 devices"), "{told}");
    let (_, told) = dir.show(&["--counter", "no_such_*"]);
    assert!(told.starts_with("rnic: --counter: ") && told.lines().count() == 1, "{told}");
    drop(devices);
    assert_eq!(names(&[]).len(), 2, "kept for a while");
    assert!(names(&["--running"]).is_empty());
}

#[test]
fn a_network_namespace_does_not_see_the_counters_of_another() {
    let dir = RunDir::new("namespaces");
    let devices = dir.devices(&["127.96.2.1"]);
    let rows = std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            // A program started from this thread is in the thread's namespace.
            Some((dir.rows(&[]), dir.show(&[]).1, dir.rows(&["--all-namespaces"])))
        });
        elsewhere.join().unwrap()
    });
    let Some((own, told, all)) = rows else {
        eprintln!("SKIPPED: needs root for a network namespace");
        return;
    };
    assert!(own.is_empty(), "{own:?}");
    assert!(told.contains("1 more in other network namespaces (--all-namespaces shows them)"), "{told}");
    assert_eq!((all.len(), dir.rows(&[]).len()), (1, 1));
    assert!(all[0]["netns"].as_u64() > Some(0), "{all:?}");
    drop(devices);
}
