//! Linux rxe in a virtual machine as a peer: rnic's Rust API and programs under `rnic run` against the kernel.
//!
//! `interop/rxe/boot` starts the guest, once for all tests here, on a network that only it and this process have: this
//! program starts itself again inside. The tests run one after another, each with objects of its own on both sides.

mod api;
mod case;
mod congestion;
mod data;
mod datagrams;
mod death;
mod end;
mod errors;
mod guest;
mod lines;
mod loss;
mod programs;
mod wire;

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::Instant;

/// A test with its name.
pub(crate) type Test = (&'static str, fn());

/// Where a panic happened and what it said.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn tests() -> impl Iterator<Item = Test> {
    let groups: [&[Test]; 8] = [
        data::TESTS,
        datagrams::TESTS,
        errors::TESTS,
        loss::TESTS,
        death::TESTS,
        programs::TESTS,
        wire::TESTS,
        congestion::TESTS,
    ];
    groups.into_iter().flatten().copied()
}

/// What this host lacks, if it cannot start the guest.
fn missing() -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if let Some(program) = ["qemu-system-x86_64", "unshare", "setpriv", "ip"].iter().find(|p| !has(p)) {
        return Some(format!("{program} is not installed"));
    }
    if !guest::folder().join("initramfs").is_file() {
        return Some("interop/rxe/install has not been run".to_owned());
    }
    let inside = "ip tuntap add tap0 mode tap";
    let users: &[&str] = if guest::is_root() { &["-n"] } else { &["-Urn"] };
    let tap = Command::new("unshare").args(users).args(["sh", "-c", inside]).output();
    match tap {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "no network of its own with a tap device: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// Starts this program again on the network of a guest.
fn restart_beside_a_guest() -> ExitCode {
    if let Some(what) = missing() {
        println!("SKIPPED: {} tests against Linux rxe: {what}", tests().count());
        println!("test result: ok. 0 passed; 0 failed; {} ignored", tests().count());
        return ExitCode::SUCCESS;
    }
    // What is to be run is built outside: inside there is no network.
    guest::build();
    let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("rxe/boot");
    let this: PathBuf = std::env::current_exe().expect("the path of this test");
    let mut command = Command::new(boot);
    command.arg(this).args(std::env::args_os().skip(1));
    let target = guest::folder().parent().expect("a target folder").to_path_buf();
    let status = command.env("CARGO_TARGET_DIR", target).status().expect("interop/rxe/boot");
    ExitCode::from(u8::from(!status.success()))
}

/// Runs one test; what it said if it failed.
fn failure(test: fn()) -> Option<String> {
    let done = panic::catch_unwind(AssertUnwindSafe(test));
    done.is_err().then(|| std::mem::take(&mut *PANIC.lock().expect("no test panics here")))
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let (filter, count) = (words.next().unwrap_or_default(), tests().count());
    let chosen: Vec<_> = tests().filter(|(name, _)| name.contains(&filter)).collect();
    if std::env::args().any(|word| word == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if std::env::var_os("RXE_LOG").is_none() {
        return restart_beside_a_guest();
    }
    if chosen.iter().any(|(name, _)| name.starts_with("wire::")) {
        wire::watch();
    }
    panic::set_hook(Box::new(|info| {
        // The first tells what was wrong; others may follow from it.
        let mut text = PANIC.lock().expect("nothing panics here");
        if text.is_empty() {
            *text = info.to_string();
        }
    }));
    let started = Instant::now();
    println!("\nrunning {} tests", chosen.len());
    let mut failures = Vec::new();
    for (name, test) in &chosen {
        let began = Instant::now();
        let failure = failure(*test);
        let how = if failure.is_some() { "FAILED" } else { "ok" };
        println!("test {name} ... {how} ({:.2} s)", began.elapsed().as_secs_f64());
        failure.iter().for_each(|text| println!("{text}"));
        failures.extend(failure.map(|text| (name, text)));
    }
    if !failures.is_empty() {
        println!("\nfailures:\n");
        failures.iter().for_each(|(name, text)| println!("---- {name} ----\n{text}\n"));
        println!("---- the guest's console ----\n{}", guest::console());
    }
    let how = if failures.is_empty() { "ok" } else { "FAILED" };
    let (passed, filtered) = (chosen.len() - failures.len(), count - chosen.len());
    println!(
        "\ntest result: {how}. {passed} passed; {} failed; 0 ignored; 0 measured; {filtered} filtered out; finished in {:.2}s\n",
        failures.len(),
        started.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(!failures.is_empty()))
}
