//! The engine, the objects of the API and the simulator as a WebAssembly module: they need no operating system, and do
//! the same as on the host.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARGET: &str = "wasm32-unknown-unknown";

/// Prints what a function of a module returns: its arguments name both.
const HOST: &str = "
const { readFileSync } = require('fs');
const module = new WebAssembly.Module(readFileSync(process.argv[1]));
const imports = WebAssembly.Module.imports(module);
if (imports.length) throw new Error('it imports ' + JSON.stringify(imports));
const exports = new WebAssembly.Instance(module, {}).exports;
const memory = exports.memory;
const at = exports[process.argv[2]]();
const length = new DataView(memory.buffer).getUint32(at, true);
process.stdout.write(Buffer.from(memory.buffer, at + 4, length));
";

fn run(command: &mut Command) -> Option<Output> {
    command.output().ok().filter(|output| output.status.success())
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Whether the compiler can build for the target: rustup fetches what that takes.
fn has_target() -> bool {
    let found = run(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]));
    let folder = found.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    folder.is_some_and(|folder| folder.is_dir())
        || run(Command::new("rustup").args(["target", "add", TARGET])).is_some()
}

/// Compares the log of a function of the module with what the same function does here.
fn compare(module: &Path, function: &str, here: &str) {
    let ran = Command::new("node").args(["-e", HOST]).arg(module).arg(function).output().expect("node");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let there = String::from_utf8(ran.stdout).expect("text");
    for (number, (here, there)) in here.lines().zip(there.lines()).enumerate() {
        assert_eq!(here, there, "line {} of {function}", number + 1);
    }
    assert_eq!(here.len(), there.len());
}

#[test]
fn virtual_time_is_the_same_in_webassembly() {
    if !has_target() {
        println!("SKIPPED: rustup cannot fetch the target {TARGET}, so nothing was run as WebAssembly");
        return;
    }
    if run(Command::new("node").arg("--version")).is_none() {
        println!("SKIPPED: node is not installed, so nothing was run as WebAssembly");
        return;
    }
    // target/PROFILE/deps/TEST
    let test = std::env::current_exe().expect("the path of this test");
    let target = test.ancestors().nth(3).expect("a target folder");
    let built = cargo()
        // As the page is built: the crates that both have are compiled once.
        .args([
            "build",
            "--quiet",
            "--profile=page",
            "--package=rnic-wasm",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(target)
        .status();
    assert!(built.expect("cargo").success(), "it cannot be built for {TARGET}");
    let module = target.join(TARGET).join("page/rnic_wasm.wasm");
    let write = rnic_wasm::log_of_a_write().expect("no error");
    compare(&module, "write_log", &write);
    assert!(write.contains("a retransmitted_pkts 3"), "{write}");
    let fabric = rnic_wasm::log_of_a_fabric().expect("no error");
    compare(&module, "fabric_log", &fabric);
    // All of that happened.
    for count in ["drops.cable_cut", "drops.queue_full", "flows.finished", "marked", "retransmitted"] {
        assert!(fabric.contains(&format!("\"{count}\": ")), "{count} is not counted");
        assert!(!fabric.contains(&format!("\"{count}\": 0.0")), "{count} is 0");
    }
}

/// Nothing that the module is made of calls an operating system.
#[test]
fn no_part_of_it_needs_an_operating_system() {
    let tree = cargo()
        .args(["tree", "--package=rnic-core", "--edges=normal", "--target", TARGET, "--prefix=none"])
        .output();
    let tree = String::from_utf8(tree.expect("cargo").stdout).expect("text");
    let parts: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(parts.contains(&"rnic-qp") && parts.contains(&"rnic-cc"), "{tree}");
    for system in ["libc", "nix", "socket2", "tokio", "getrandom", "mio"] {
        assert!(!parts.contains(&system), "{system} is a part:\n{tree}");
    }
}
