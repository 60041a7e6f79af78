//! The engine in the page does what the native one does, byte for byte.

mod support;

use std::path::Path;
use std::process::Command;
use support::{assert_same, has_node, page};

/// A set-up in which everything happens that depends on random numbers, on fractions, or on a hand.
const SETUP: &str = r#"{"seed": 7, "messages": 40, "cc": "dcqcn:preset=laptop", "sliders": {"loss": 3, "rate_gbps": 1.3},
    "actions": [{"do": "drop", "at": 20, "packet": 3}, {"do": "set", "at": 400, "sliders": {"latency_us": 17.5, "rate_gbps": 0.7}}]}"#;

/// The same for the fabric.
const FABRIC: &str =
    r#"{"seed": 3, "senders": 5, "buffer": 300, "ecn": true, "cc": "dcqcn:preset=paper", "pmax": 12.5}"#;

/// Takes the page, the function, the set-up and the time; prints the log.
const HOST: &str = r#"
const page = require('fs').readFileSync(process.argv[1], 'utf8');
const text = page.match(/<script id="engine"[^>]*>([^<]*)</)[1];
const { memory, input_room, ...functions } = new WebAssembly.Instance(new WebAssembly.Module(require('zlib').gunzipSync(Buffer.from(text, 'base64'))), {}).exports;
const setup = Buffer.from(process.argv[3]);
const room = input_room(setup.length);
Buffer.from(memory.buffer, room, setup.length).set(setup);
const at = functions[process.argv[2]](Number(process.argv[4]));
const length = new DataView(memory.buffer).getUint32(at, true);
process.stdout.write(Buffer.from(memory.buffer, at + 4, length));
"#;

/// What the engine in the page gives, in Node.
fn in_node(file: &Path, function: &str, setup: &str, until: f64) -> String {
    let mut node = Command::new("node");
    node.args(["-e", HOST]).arg(file).args([function, setup, &until.to_string()]);
    let ran = node.output().expect("node");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("text")
}

#[test]
fn the_page_has_the_engine_itself() {
    if !has_node() {
        return;
    }
    let Some(file) = page() else { return };
    let native = rnic_page::Bench::log(SETUP, 2500.0).expect("a log");
    assert_same(&native, &in_node(file, "log", SETUP, 2500.0));
    for part in ["\"lost\"", "\"again\":true", "CNP", "NAK"] {
        assert!(native.contains(part), "{part}");
    }
    let native = rnic_page::FabricBench::log(FABRIC, 2500.0).expect("a log");
    assert_same(&native, &in_node(file, "fabric_log", FABRIC, 2500.0));
    assert!(native.lines().count() > 500, "one line for every 5 us");
}

/// The pictures of `rnic lab plot` come out of the page, byte for byte. In a browser the other tests see more of them.
#[test]
fn the_page_draws_the_pictures_of_the_labs() {
    if !has_node() {
        return;
    }
    let Some(file) = page() else { return };
    for (lab, experiment) in [("go-back-n", "loss"), ("pause", "ring"), ("balance", "modes")] {
        let setup = format!("{{\"lab\": \"{lab}\", \"experiment\": \"{experiment}\", \"student\": \"bob\"}}");
        let native = rnic_page::lab_run(&setup).expect("a run");
        assert!(native.picture.is_some(), "{setup}");
        let native = serde_json::to_string(&native).expect("JSON");
        assert_same(&native, &in_node(file, "lab_show", &setup, 0.0));
    }
}

#[test]
fn the_page_is_small_and_asks_for_nothing() {
    let Some(file) = page() else { return };
    let page = std::fs::read_to_string(file).expect("a page");
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    for word in ["src=\"", "<link", "href=\"http", "fetch(", "import("] {
        assert!(!page.contains(word), "the page asks for nothing: {word}");
    }
}
