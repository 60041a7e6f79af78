//! Linux rxe in a virtual machine as a peer: rnic's Rust API and programs under `rnic run` against the kernel.
//!
//! `interop/rxe/boot` starts the guest, once for all tests here, on a network that only the guest and this process
//! have. This program starts itself again on that network, and a second time, for a few of the tests, as an
//! unprivileged user. The tests run one after another, each with its own objects on both sides.

mod api;
mod case;
mod congestion;
mod connections;
mod data;
mod datagrams;
mod death;
mod end;
mod errors;
mod guest;
mod lines;
mod loss;
mod programs;
mod prompt;
mod rdma_cm;
mod restart;
mod wire;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

/// A test and its name.
pub(crate) type Test = (&'static str, fn());

/// The location and the message of a panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn tests() -> impl Iterator<Item = Test> {
    let groups: [&[Test]; 10] = [
        data::TESTS,
        datagrams::TESTS,
        errors::TESTS,
        loss::TESTS,
        death::TESTS,
        programs::TESTS,
        wire::TESTS,
        congestion::TESTS,
        connections::TESTS,
        rdma_cm::TESTS,
    ];
    groups.into_iter().flatten().copied()
}

/// The tests whose names contain one of the arguments of this program, or all tests without arguments.
fn chosen() -> Vec<Test> {
    let words: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    tests().filter(|(name, _)| words.is_empty() || words.iter().any(|word| name.contains(word))).collect()
}

/// Runs one test; returns its panic message if it failed.
fn failure(test: fn()) -> Option<String> {
    let done = panic::catch_unwind(AssertUnwindSafe(test));
    done.is_err().then(|| std::mem::take(&mut *PANIC.lock().expect("no test panics here")))
}

fn main() -> ExitCode {
    let (chosen, count) = (chosen(), tests().count());
    if std::env::args().any(|word| word == "--list") {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if std::env::var_os("RXE_LOG").is_none() {
        return restart::beside_guests(&chosen);
    }
    if chosen.iter().any(|(name, _)| name.starts_with("wire::")) {
        wire::watch();
    }
    panic::set_hook(Box::new(|info| {
        // The first panic is the cause; others may follow from it.
        let mut text = PANIC.lock().expect("nothing panics here");
        if text.is_empty() {
            *text = info.to_string();
        }
    }));
    let started = Instant::now();
    let network = std::env::var("RXE_NETWORK").unwrap_or_default();
    println!("\nrunning {} tests on a network of kind {network}", chosen.len());
    let mut failures = Vec::new();
    for (at, (name, test)) in (0_u8..).zip(&chosen) {
        let began = Instant::now();
        let failure = failure(*test);
        let how = if failure.is_some() { "FAILED" } else { "ok" };
        println!("test {name} ... {how} ({:.2} s)", began.elapsed().as_secs_f64());
        if let Some(text) = &failure {
            println!("{text}");
            // Only the first: what follows may be its consequence.
            if failures.is_empty() {
                let is_dead = guest::network_is_dead();
                println!("---- the guest ----\n{}", guest::state());
                if is_dead {
                    println!(
                        "\ntest result: ok. {at} passed; 0 failed; until the network of the guest died\n"
                    );
                    return ExitCode::from(restart::DIED_AT + at);
                }
            }
        }
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
