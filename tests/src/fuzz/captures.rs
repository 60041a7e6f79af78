//! The files that `rnic decode` and `rnic plot` read.

use rnic::capture::{Decoder, Report};
use rnic::trace::Trace;

/// Parses the bytes as a capture and as a trace, and prints their content.
///
/// # Panics
///
/// Panics if a packet is printed on more than one line, or if counts contradict each other.
pub fn captures(data: &[u8]) {
    if data.first() == Some(&b'{') {
        // A parsed trace is written as text, which must parse again.
        if let Ok(trace) = Trace::read(data) {
            assert!(trace.samples.is_sorted_by_key(|sample| sample.at));
        }
        return;
    }
    let Ok(mut decoder) = Decoder::new(data) else { return };
    let mut packets = Vec::new();
    for packet in decoder.by_ref() {
        match packet {
            Ok(packet) => {
                let line = packet.content.to_string();
                assert!(!line.contains('\n'), "{line:?}");
                packets.push(packet);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let summary = decoder.summary();
    assert!(!summary.to_string().is_empty());
    let report = serde_json::to_value(Report::new(&packets, summary)).expect("a report is JSON");
    assert_eq!(report["packets"].as_array().map(Vec::len), Some(packets.len()));
}
