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

/// The functions of libibverbs without a counterpart in the Rust API: what Rust does by dropping values, helpers of C
/// programs, and what a NIC in software does not have.
const WITHOUT_COUNTERPART: &[&str] = &[
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_device_index",
    "ibv_get_sysfs_path",
    "ibv_import_device",
    "ibv_import_dm",
    "ibv_import_mr",
    "ibv_import_pd",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_qp_to_qp_ex",
    "ibv_query_ece",
    "ibv_query_gid_type",
    "ibv_query_qp_data_in_order",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_read_sysfs_file",
    "ibv_reg_dmabuf_mr",
    "ibv_resolve_eth_l2_from_gid",
    "ibv_set_ece",
    "ibv_unimport_dm",
    "ibv_unimport_mr",
    "ibv_unimport_pd",
];

/// The names in quotation marks that begin like a function of verbs.
fn verbs_in(text: &str) -> HashSet<&str> {
    text.split('"').filter(|word| word.starts_with("ibv_") && !word.contains(char::is_whitespace)).collect()
}

#[test]
fn every_function_of_libibverbs_is_found_in_the_documentation_of_the_rust_api() {
    let export =
        fs::read_to_string(root().join("interop/dropin/src/export.rs")).expect("the exported functions");
    let texts: Vec<String> = ["nic/src", "qp/src"]
        .iter()
        .flat_map(|folder| sources(&root().join(folder)))
        .map(|path| fs::read_to_string(path).expect("a source"))
        .collect();
    let aliases: HashSet<&str> = texts
        .iter()
        .flat_map(|text| text.split("#[doc(alias").skip(1))
        .filter_map(|rest| rest.split_once(")]"))
        .flat_map(|(names, _)| verbs_in(names))
        .collect();
    let mut missing: Vec<_> = verbs_in(&export)
        .into_iter()
        .filter(|verb| aliases.contains(verb) == WITHOUT_COUNTERPART.contains(verb))
        .collect();
    missing.sort_unstable();
    assert!(!verbs_in(&export).is_empty());
    assert!(
        missing.is_empty(),
        "neither an alias in the documentation nor listed as without a counterpart, or both: {missing:?}"
    );
}
