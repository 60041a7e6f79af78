//! The event logs of a WRITE and of a fabric, in virtual time.
//!
//! As a WebAssembly module (`cargo build -p rnic-wasm --target wasm32-unknown-unknown`) this runs wherever there is a
//! JavaScript engine, and writes the same logs as on the host: packets with their times, every byte of the capture, and
//! all counters.

use rnic_core::ladder::{Ladder, Style};
use rnic_core::link::capture::{Capture, CaptureOptions};
use rnic_core::sim::Net;
use rnic_core::time::Duration;
use rnic_core::{ConnectOptions, Mtu, RcEnd, Result};
use rnic_fabric::scenario::{Scenario, ScenarioError};
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A capture in memory.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    /// Its bytes as digits.
    fn lines(&self) -> impl Iterator<Item = String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let line = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            })
        };
        bytes.chunks(32).map(line).collect::<Vec<_>>().into_iter()
    }
}

impl io::Write for Bytes {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes 5,000 bytes in packets of 1 KiB, of which the network loses the third and delays the reply, and READs them
/// back. Returns what happened.
///
/// # Errors
/// A verb failed: that is a bug.
pub fn log_of_a_write() -> Result<String> {
    let net = Net::with_seed(1);
    let (a, b) = (net.named_device("a"), net.named_device("b"));
    net.set_latency(Duration::from_micros(5));
    a.add_fault("tx data psn=#2 drop once")?;
    b.add_fault("tx ack delay 3us+-2us")?;
    let ladder = Ladder::new("a", "b", 1000);
    a.observe(ladder.observer())?;
    let capture = Bytes::default();
    a.capture_to(capture.clone())?;
    let options = ConnectOptions { mtu: Some(Mtu::B1024), ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    let data: Vec<u8> = (0..5000).map(|i| (i * 7 + i / 256) as u8).collect();
    let (source, target) = (left.register(&data)?, right.register_remote(data.len())?);
    let back = left.register(&vec![0; data.len()])?;
    let mut log = String::new();
    let mut note = |line: String| log.push_str(&(line + "\n"));
    left.qp.write(1, source.all(), target.remote(0))?;
    note(format!("{:?} {:?}", net.elapsed(), left.wait()?));
    left.qp.read(2, back.all(), target.remote(0))?;
    note(format!("{:?} {:?}", net.elapsed(), left.wait()?));
    note(format!("intact: {} {}", target.to_vec()? == data, back.to_vec()? == data));
    a.stop_captures();
    note(ladder.render(&Style::default()));
    for device in [&a, &b] {
        for (name, count) in device.counters().iter().filter(|(_, count)| *count > 0) {
            note(format!("{} {name} {count}", device.name()));
        }
    }
    capture.lines().for_each(note);
    Ok(log)
}

/// A fabric in which everything happens that depends on random numbers or on fractions: packets are sprayed, marked, damaged and
/// lost, DCQCN sets the rates, and a cable is cut.
const FABRIC: &str = r#"
name = "everything"
about = "Two leaves and three spines."
until = "3 ms"
[topology]
kind = "leaf-spine"
leaves = 2
spines = 3
hosts_per_leaf = 3
[switch]
buffer = { shared = "60 KB" }
red = { kmin = 4000, kmax = 30000, pmax = 0.5 }
balance = { mode = "spray" }
[nic]
mtu = 1024
cc = "dcqcn:preset=laptop"
timeout = 4
[[workload]]
pattern = "poisson"
load = 0.8
sizes = "web-search"
time = "300 us"
[[workload]]
pattern = "incast"
to = "host0"
bytes = "60 KB"
[[change]]
what = "cut"
cable = "leaf0-spine1"
at = "20 us"
until = "250 us"
reaction = "200 us"
[sample]
interval = "20 us"
ports = ["leaf0>host0"]
"#;

/// Runs a fabric, and returns its report, and the packets of a port of a switch.
///
/// # Errors
/// It cannot run: that is a bug.
pub fn log_of_a_fabric() -> std::result::Result<String, ScenarioError> {
    let (scenario, nowhere) = (Scenario::read(FABRIC)?, Path::new("."));
    let report = scenario.run(nowhere, 5, &mut |_| true)?;
    let mut log = serde_json::to_string_pretty(&report).unwrap_or_default();
    let mut run = scenario.prepare(nowhere, 5)?;
    let capture = Bytes::default();
    let options = CaptureOptions { interface: "leaf0>host0".to_owned(), max_bytes: None };
    let names = run.fabric().lock().topology().port_names();
    let leaf = names.iter().position(|ports| ports.contains(&options.interface)).unwrap_or(0);
    let port = names[leaf].iter().position(|port| *port == options.interface).unwrap_or(0);
    let sink = Capture::new(capture.clone(), options);
    let status = run.fabric().lock().capture(leaf, port, sink);
    run.run(scenario.until, &mut |_| true)?;
    run.fabric().lock().flush_captures();
    let _ = writeln!(log, "\n{} packets", status.map_or(0, |status| status.packets()));
    capture.lines().for_each(|line| log.push_str(&(line + "\n")));
    Ok(log)
}

/// For hosts of WebAssembly: a log as bytes behind their number, 32 bits in little-endian order. The caller keeps it.
#[cfg(target_family = "wasm")]
fn handed_out(text: std::result::Result<String, String>) -> *const u8 {
    let text = text.unwrap_or_else(|error| format!("failed: {error}"));
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.leak().as_ptr()
}

/// The log of a WRITE.
#[cfg(target_family = "wasm")]
#[expect(unsafe_code, reason = "a name for the host")]
#[unsafe(no_mangle)]
pub extern "C" fn write_log() -> *const u8 {
    handed_out(log_of_a_write().map_err(|error| error.to_string()))
}

/// The log of a fabric.
#[cfg(target_family = "wasm")]
#[expect(unsafe_code, reason = "a name for the host")]
#[unsafe(no_mangle)]
pub extern "C" fn fabric_log() -> *const u8 {
    handed_out(log_of_a_fabric().map_err(|error| error.to_string()))
}
