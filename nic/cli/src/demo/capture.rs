//! The capture file of the demo.

use super::client::Client;
use super::{Failure, Outcome, expect, program};
use rnic::capture::Decoder;
use std::fs::File;
use std::path::Path;

/// Ends the capture, reads it back and shows how to open it.
pub(super) fn finish(client: &mut Client<'_>, path: &Path) -> Outcome {
    client.page.section(
        "5. The capture",
        "All packets so far in both directions, as the client's port saw them. Dropped packets are included, with a comment \
         that names the rule.",
    );
    client.stop_drawing();
    client.device.stop_captures();
    let name = path.display();
    if let Some(error) = client.capture.error() {
        return Err(Failure::new(format!("{name}: {error}")));
    }
    let cannot = |error: &dyn std::fmt::Display| Failure::new(format!("{name}: {error}"));
    let file = File::open(path).map_err(|error| cannot(&error))?;
    let mut decoder = Decoder::new(file).map_err(|error| cannot(&error))?;
    for packet in decoder.by_ref() {
        packet.map_err(|error| cannot(&error))?;
    }
    let summary = decoder.summary();
    let good = summary.bad_icrc + summary.malformed + summary.truncated + summary.other_frames == 0;
    expect(good, || format!("{name} holds {summary}"))?;
    expect(summary.packets == client.capture.packets() && client.capture.missed() == 0, || {
        format!("{name} holds {} packets of {}", summary.packets, client.capture.packets())
    })?;
    client.page.line("To open it:");
    for command in [format!("{} decode", program()), "tshark -r".to_owned(), "wireshark".to_owned()] {
        client.page.line(&format!("  {command} {name}"));
    }
    client.page.proved(&format!("read back: {summary}"));
    Ok(())
}
