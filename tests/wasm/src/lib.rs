//! The event log of a WRITE in virtual time.
//!
//! As a WebAssembly module (`cargo build -p rnic-wasm --target wasm32-unknown-unknown`) this runs wherever there is a
//! JavaScript engine, and writes the same log as on the host: packets with their times, every byte of the capture, and
//! all counters.

use rnic_core::ladder::{Ladder, Style};
use rnic_core::sim::Net;
use rnic_core::time::Duration;
use rnic_core::{ConnectOptions, Mtu, RcEnd, Result};
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// A capture in memory.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

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
    for line in capture.0.lock().unwrap_or_else(PoisonError::into_inner).chunks(32) {
        note(line.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }));
    }
    Ok(log)
}

/// For hosts of WebAssembly: the log as bytes behind their number, 32 bits in little-endian order. The caller keeps it.
#[cfg(target_family = "wasm")]
#[expect(unsafe_code, reason = "a name for the host")]
#[unsafe(no_mangle)]
pub extern "C" fn log() -> *const u8 {
    let text = log_of_a_write().unwrap_or_else(|error| format!("failed: {error}"));
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.leak().as_ptr()
}
