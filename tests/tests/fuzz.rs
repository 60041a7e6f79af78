//! Runs the fuzz targets over the saved inputs, and over mutations of them.
//!
//! `fuzz/run` finds new inputs. They are saved in `tests/corpus/NAME`, and each bug that they reveal gets a test of
//! its own in the affected code.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rnic_tests::fuzz::{TARGETS, Target};
use std::fs;
use std::path::{Path, PathBuf};

/// Number of mutations of each input.
const MUTATIONS: u32 = 4;

/// Limit on the total size of all inputs in bytes, because they stay in the repository.
const MOST_BYTES: u64 = 1 << 20;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs of a target, sorted by name.
fn inputs(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = corpus().join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("a readable file"))).collect()
}

/// The input with a few bytes changed, removed or repeated.
fn mutated(input: &[u8], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.next_u32() % 4 {
        let mut below = |n: usize| random.next_u32() as usize % n.max(1);
        let (at, len, kind) = (below(bytes.len()), below(16), below(5));
        let end = (at + len).min(bytes.len());
        match kind {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << below(8),
            1 if !bytes.is_empty() => bytes[at] = below(256) as u8,
            2 => drop(bytes.drain(at..end)),
            3 => bytes.extend_from_within(at..end),
            _ => bytes.truncate(end),
        }
    }
    bytes
}

/// Runs a target on its inputs and on mutations of them. Prints a failing input, so that it can be run alone.
fn run((name, target): &Target) {
    let seed = 4791;
    println!("{name}: seed {seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let inputs = inputs(name);
    assert!(!inputs.is_empty(), "no inputs for {name}");
    for (path, input) in &inputs {
        println!("{}", path.display());
        target(input);
        for _ in 0..MUTATIONS {
            let other = mutated(input, &mut random);
            println!("  changed: {}", other.iter().map(|b| format!("{b:02x}")).collect::<String>());
            target(&other);
        }
    }
    target(&[]);
}

fn find(name: &str) -> &'static Target {
    TARGETS.iter().find(|(n, _)| *n == name).expect("a target of this name")
}

#[test]
fn datagrams_of_a_stranger() {
    run(find("datagrams"));
}

#[test]
fn packets_are_printed() {
    run(find("packets"));
}

#[test]
fn captures_and_traces_are_read() {
    run(find("captures"));
}

#[test]
fn partners_say_anything() {
    run(find("partners"));
}

#[test]
fn settings_are_read() {
    run(find("settings"));
}

#[test]
fn any_calls_in_any_order() {
    run(find("verbs"));
}

#[test]
fn any_calls_of_c_programs() {
    run(find("c_calls"));
}

#[test]
fn connection_managers_hear_anything() {
    run(find("connections"));
}

#[test]
fn any_commands_to_the_connection_manager() {
    run(find("rdma_cm"));
}

#[test]
fn programs_say_anything_to_the_daemon() {
    run(find("daemon"));
}

#[test]
fn programs_say_anything_to_a_subnet() {
    run(find("subnet"));
}

/// Every target has a fuzzer program and a test above; and its inputs stay small.
#[test]
fn every_target_is_fuzzed_and_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let here = include_str!("fuzz.rs");
    let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("the manifest of the fuzzers");
    for (name, _) in TARGETS {
        assert!(here.contains(&format!("find(\"{name}\")")), "{name} is not run here");
        let program = root.join(format!("fuzz/fuzz_targets/{name}.rs"));
        let text = fs::read_to_string(&program).unwrap_or_default();
        assert!(text.contains(&format!("rnic_tests::fuzz::{name}(")), "{} is wanted", program.display());
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in fuzz/Cargo.toml");
    }
    let folders = fs::read_dir(corpus()).expect("the inputs");
    let files = folders.flat_map(|folder| fs::read_dir(folder.expect("a folder").path()).expect("its files"));
    let bytes: u64 = files.map(|file| file.expect("a file").metadata().expect("its size").len()).sum();
    assert!(bytes <= MOST_BYTES, "{bytes} bytes of inputs, {MOST_BYTES} at most: `fuzz/run NAME minimise`");
}
