//! Project rules that no compiler checks.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is inside the workspace").to_path_buf()
}

/// Whether a source file is a test module.
fn is_test(path: &Path) -> bool {
    let inside = path.strip_prefix(root()).expect("a source of the project");
    inside.components().any(|c| matches!(c.as_os_str().to_str(), Some("tests" | "tests.rs")))
}

/// All Rust sources below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the project").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file without comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Words that must not appear in a sans-IO crate.
const FORBIDDEN: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "std::net::UdpSocket",
    "std::net::Tcp",
    "std::fs",
    "std::io",
    "std::thread",
    "std::process",
    "tokio",
    "socket2",
    "libc::",
    "nix::",
    "rand::",
];

fn offences(text: &str) -> Vec<&'static str> {
    let code = code(text);
    FORBIDDEN.iter().copied().filter(|word| code.contains(word)).collect()
}

#[test]
fn the_search_finds_what_it_looks_for() {
    assert_eq!(offences("let now = std::time::Instant::now();"), ["Instant::now"]);
    assert!(offences("// Instant::now is not called here\nfn f(now: Instant) {}").is_empty());
}

#[test]
fn transport_and_congestion_control_are_sans_io() {
    for name in ["qp", "cc"] {
        let folder = root().join(name);
        let mut seen = 0;
        for path in sources(&folder.join("src")) {
            // Tests may read the clock to get a starting instant.
            if is_test(&path) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a readable source");
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
            assert_eq!(offences(product), Vec::<&str>::new(), "{}", path.display());
            seen += 1;
        }
        assert!(seen > 0, "no sources found in {}", folder.display());
        let root_file = fs::read_to_string(folder.join("src/lib.rs")).expect("lib.rs");
        assert!(root_file.contains("#![forbid(unsafe_code)]"), "{name} must forbid unsafe code");
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("Cargo.toml");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("");
        let own = dependencies.split("\n[").next().unwrap_or("");
        for banned in ["tokio", "socket2", "nix", "libc", "rand", "mio"] {
            assert!(!own.lines().any(|l| l.starts_with(banned)), "{name} depends on {banned}");
        }
    }
}

#[test]
fn the_engine_reads_no_clock() {
    for path in
        sources(&root().join("nic/src/engine")).into_iter().chain(sources(&root().join("nic/src/link")))
    {
        if is_test(&path) {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a readable source");
        let product = text.split("#[cfg(test)]").next().unwrap_or("");
        for word in ["Instant::now", "SystemTime::now", "UdpSocket", "tokio"] {
            assert!(!code(product).contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn crates_do_not_know_each_other() {
    let manifest = |name: &str| fs::read_to_string(root().join(name).join("Cargo.toml")).expect("Cargo.toml");
    assert!(!manifest("qp").contains("\ncc"), "qp must not know cc");
    assert!(!manifest("cc").contains("\nqp"), "cc must not know qp");
    for name in ["qp", "cc"] {
        assert!(!manifest(name).contains("\nrnic.workspace"), "{name} must not know nic");
    }
}

/// The text that a deliberate bug (`tests/mutations`) replaces appears exactly once in the code; and no two bugs
/// have the same name.
#[test]
fn deliberate_bugs_fit_the_code() {
    let list = fs::read_to_string(root().join("tests/mutations/mutations.json")).expect("the list");
    let bugs: Vec<HashMap<String, String>> = serde_json::from_str(&list).expect("objects of texts");
    assert!(bugs.len() >= 30, "only {}", bugs.len());
    let mut names = HashSet::new();
    for bug in &bugs {
        let [name, file, find, replace] = ["name", "file", "find", "replace"].map(|key| bug[key].as_str());
        let text = fs::read_to_string(root().join(file)).expect("a file of the project");
        assert_eq!(text.matches(find).count(), 1, "{name}: its text in {file}");
        assert_ne!(find, replace, "{name} changes nothing");
        assert!(names.insert(name), "two are called: {name}");
    }
}
