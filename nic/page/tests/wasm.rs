//! The engine in the page does what the native one does, byte for byte.

mod support;

use std::process::Command;
use support::{assert_same, has_node, page};

/// A set-up in which everything happens that depends on random numbers, on fractions, or on a hand.
const SETUP: &str = r#"{"seed": 7, "messages": 40, "cc": "dcqcn:preset=laptop", "sliders": {"loss": 3, "rate_gbps": 1.3},
    "actions": [{"do": "drop", "at": 20, "packet": 3}, {"do": "set", "at": 400, "sliders": {"latency_us": 17.5, "rate_gbps": 0.7}}]}"#;

/// Takes the page, the set-up and the time; prints the log.
const HOST: &str = r#"
const page = require('fs').readFileSync(process.argv[1], 'utf8');
const text = page.match(/<script id="engine"[^>]*>([^<]*)</)[1];
const { memory, input_room, log } = new WebAssembly.Instance(new WebAssembly.Module(Buffer.from(text, 'base64')), {}).exports;
const setup = Buffer.from(process.argv[2]);
const room = input_room(setup.length);
Buffer.from(memory.buffer, room, setup.length).set(setup);
const at = log(Number(process.argv[3]));
const length = new DataView(memory.buffer).getUint32(at, true);
process.stdout.write(Buffer.from(memory.buffer, at + 4, length));
"#;

#[test]
fn the_page_has_the_engine_itself() {
    if !has_node() {
        return;
    }
    let Some(file) = page() else { return };
    let page = std::fs::read_to_string(file).expect("a page");
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    for word in ["src=\"http", "href=\"http", "fetch(", "import("] {
        assert!(!page.contains(word), "the page asks for nothing: {word}");
    }
    let ran = Command::new("node").args(["-e", HOST]).arg(file).args([SETUP, "2500"]).output().expect("node");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let there = String::from_utf8(ran.stdout).expect("text");
    let native = rnic_page::Bench::log(SETUP, 2500.0).expect("a log");
    assert_same(&native, &there);
    for part in ["\"lost\"", "\"again\":true", "CNP", "NAK"] {
        assert!(native.contains(part), "{part}");
    }
}
