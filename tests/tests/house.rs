//! Project rules that no compiler checks.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is inside the workspace").to_path_buf()
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

/// Whether the line of an item is its last one.
fn is_whole(line: &str) -> bool {
    line.ends_with([';', ','])
        || (line.ends_with('}') && line.matches('{').count() == line.matches('}').count())
}

/// The text of a file, divided into the lines of the product and those of items for tests only. Relies on the
/// formatting: an item ends at the first line that begins with a closing bracket at its own indentation.
fn split_tests(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut product, mut tests) = (Vec::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim_start();
        if trimmed != "#[cfg(test)]" {
            product.push(line);
            continue;
        }
        let indent = &line[..line.len() - trimmed.len()];
        let mut inside = false;
        for line in lines.by_ref() {
            tests.push(line);
            let trimmed = line.trim_start();
            let is_own = line.len() - trimmed.len() == indent.len();
            let ends = if inside {
                is_own && trimmed.starts_with(['}', ')', ']'])
            } else if trimmed.starts_with("#[") || trimmed.starts_with("//") {
                continue;
            } else {
                inside = true;
                is_whole(line)
            };
            if ends {
                break;
            }
        }
    }
    (product, tests)
}

/// The sources below a folder, as far as they are part of the product: each with its path. Files and items that exist
/// for tests only are left out.
fn product(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    let mut test_modules = Vec::new();
    for path in sources(folder) {
        let text = fs::read_to_string(&path).expect("a readable source");
        let (product, tests) = split_tests(&text);
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        // The folder of its modules.
        let inside = if ["mod", "lib", "main"].contains(&stem) {
            path.with_file_name("")
        } else {
            path.with_extension("")
        };
        let names = tests.iter().filter_map(|line| line.trim_start().strip_prefix("mod ")?.strip_suffix(';'));
        test_modules.extend(names.map(|name| inside.join(name)));
        all.push((path, product.join("\n")));
    }
    all.retain(|(path, _)| {
        !test_modules.iter().any(|m| path.starts_with(m) || *path == m.with_extension("rs"))
    });
    all
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
    for name in ["time", "qp", "cc", "cm"] {
        let folder = root().join(name);
        let mut seen = 0;
        for (path, text) in product(&folder.join("src")) {
            assert_eq!(offences(&text), Vec::<&str>::new(), "{}", path.display());
            seen += 1;
        }
        assert!(seen > 0, "no sources found in {}", folder.display());
        let root_file = fs::read_to_string(folder.join("src/lib.rs")).expect("lib.rs");
        assert!(root_file.contains("#![forbid(unsafe_code)]"), "{name} must forbid unsafe code");
        depends_on_no_operating_system(name);
    }
}

fn depends_on_no_operating_system(folder: &str) {
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("Cargo.toml");
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or("");
    let own = dependencies.split("\n[").next().unwrap_or("");
    for banned in ["tokio", "socket2", "nix", "libc", "rand.", "mio"] {
        assert!(!own.lines().any(|l| l.starts_with(banned)), "{folder} depends on {banned}");
    }
}

/// Functions of the standard library whose last digits differ between platforms: `libm` has them for all.
const INEXACT: [&str; 13] = [
    ".exp(", ".exp2(", ".exp_m1(", ".ln(", ".ln_1p(", ".log2(", ".log10(", ".powf(", ".powi(", ".cbrt(",
    ".sin(", ".cos(", ".tanh(",
];

#[test]
fn numbers_are_the_same_on_every_platform() {
    let mut seen = 0;
    for folder in ["time", "qp", "cc", "cm", "nic/core"] {
        for (path, text) in product(&root().join(folder).join("src")) {
            let code = code(&text);
            let found: Vec<_> = INEXACT.iter().filter(|name| code.contains(**name)).collect();
            assert!(found.is_empty(), "{}: {found:?}; use libm", path.display());
            seen += usize::from(code.contains("libm::"));
        }
    }
    assert!(seen > 0, "the search finds nothing");
}

/// Terms under which a dependency may be used without further thought.
const LICENCES: [&str; 7] =
    ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "Unicode-3.0"];

/// Whether these terms (SPDX) can be met with [`LICENCES`].
fn is_allowed(terms: &str) -> bool {
    let terms = terms.replace(['(', ')'], "").replace('/', " OR ");
    terms.split(" AND ").all(|all| all.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn dependencies_come_from_the_registry_under_known_terms() {
    for (terms, allowed) in
        [("(MIT OR GPL-3.0) AND Unicode-3.0", true), ("MIT/GPL-2.0", true), ("MIT AND GPL-2.0", false)]
    {
        assert_eq!(is_allowed(terms), allowed, "{terms}");
    }
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock");
    let sources: HashSet<&str> = lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    assert_eq!(sources, HashSet::from(["\"registry+https://github.com/rust-lang/crates.io-index\""]));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = std::process::Command::new(cargo)
        .args(["tree", "--workspace", "--edges=normal,build", "--prefix=none", "--no-dedupe", "--offline"])
        .args(["--format", "{p}|{l}"])
        .current_dir(root())
        .output()
        .expect("cargo");
    let tree = String::from_utf8(tree.stdout).expect("text");
    let refused: HashSet<&str> = tree
        .lines()
        .filter(|line| !line.is_empty() && line.rsplit_once('|').is_none_or(|(_, terms)| !is_allowed(terms)))
        .collect();
    assert!(tree.lines().count() > 100 && refused.is_empty(), "{refused:?}");
}

/// What the engine and the link must not use.
fn clocks_and_sockets(text: &str) -> Vec<&'static str> {
    let code = code(text);
    ["Instant::now", "std::time", "UdpSocket", "tokio"]
        .into_iter()
        .filter(|word| code.contains(word))
        .collect()
}

#[test]
fn the_core_reads_no_clock_and_needs_no_operating_system() {
    let (mut files, mut lines) = (0, 0);
    for (path, text) in product(&root().join("nic/core/src")) {
        assert_eq!(clocks_and_sockets(&text), Vec::<&str>::new(), "{}", path.display());
        files += 1;
        lines += text.lines().count();
    }
    depends_on_no_operating_system("nic/core");
    println!("{files} files, {lines} lines");
    // Without its tests it has more than 20,000 lines.
    assert!(lines > 15_000, "only {lines} lines were read");
}

#[test]
fn the_search_skips_test_modules_and_nothing_else() {
    let text = "\
#[cfg(test)]
mod tests;
#[cfg(test)]
use std::{
    fs,
};
fn first() {
    Instant::now();
}
#[cfg(test)]
#[expect(dead_code, reason = \"a test\")]
/// Documented.
mod inner {
    fn test() {
        std::time::SystemTime::now();
    }
}
impl S {
    #[cfg(test)]
    fn test(&self) -> usize {
        tokio()
    }
    fn second() -> UdpSocket {}
}
";
    assert_eq!(clocks_and_sockets(text), ["Instant::now", "std::time", "UdpSocket", "tokio"]);
    let (product, tests) = split_tests(text);
    assert_eq!(clocks_and_sockets(&product.join("\n")), ["Instant::now", "UdpSocket"]);
    assert_eq!(clocks_and_sockets(&tests.join("\n")), ["std::time", "tokio"]);
    assert_eq!(split_tests("fn a() {}\n#[cfg(test)]\nmod tests {}\nfn b() {}").0, ["fn a() {}", "fn b() {}"]);
}

#[test]
fn files_for_tests_only_are_no_part_of_the_product() {
    let folder = root().join("nic/core/src/engine/partner");
    let of = |names: &[(PathBuf, String)]| -> Vec<String> {
        names.iter().map(|(path, _)| path.file_name().unwrap_or_default().display().to_string()).collect()
    };
    let mut left = of(&product(&folder));
    left.sort_unstable();
    assert!(left.contains(&"greet.rs".into()) && left.contains(&"mod.rs".into()), "{left:?}");
    for test in ["tests.rs", "attacks.rs", "first_contact.rs"] {
        assert!(folder.join(test).exists() && !left.contains(&test.into()), "{left:?}");
    }
}

#[test]
fn crates_do_not_know_each_other() {
    let manifest = |name: &str| fs::read_to_string(root().join(name).join("Cargo.toml")).expect("Cargo.toml");
    assert!(!manifest("qp").contains("\ncc"), "qp must not know cc");
    assert!(!manifest("cc").contains("\nqp"), "cc must not know qp");
    assert!(!manifest("cm").contains("\ncc"), "cm must not know cc");
    assert!(!manifest("qp").contains("\ncm"), "qp must not know cm");
    for name in ["qp", "cc", "cm"] {
        assert!(!manifest(name).contains("\nrnic.workspace"), "{name} must not know nic");
    }
}

/// The text that a deliberate bug (`tests/mutations`) replaces appears exactly once in the code; and no two bugs
/// have the same name.
/// Otherwise cargo does not optimise across crates, which takes a sixth of its small messages from a program in C.
#[test]
fn the_objects_that_programs_load_are_all_that_their_packages_make() {
    for package in ["dropin", "rdmacm", "shim"] {
        let manifest =
            fs::read_to_string(root().join("interop").join(package).join("Cargo.toml")).expect("a manifest");
        let manifest: toml::Table = manifest.parse().expect("TOML");
        let kinds = &manifest["lib"]["crate-type"];
        assert_eq!(
            kinds.as_array().map(Vec::as_slice),
            Some(["cdylib".into()].as_slice()),
            "interop/{package}"
        );
    }
}

#[test]
fn deliberate_bugs_fit_the_code() {
    let list = fs::read_to_string(root().join("tests/mutations/mutations.json")).expect("the list");
    let bugs: Vec<HashMap<String, serde_json::Value>> = serde_json::from_str(&list).expect("objects");
    assert!(bugs.len() >= 30, "only {}", bugs.len());
    let mut names = HashSet::new();
    for bug in &bugs {
        let [name, file, find, replace] =
            ["name", "file", "find", "replace"].map(|key| bug[key].as_str().expect("a text"));
        let text = fs::read_to_string(root().join(file)).expect("a file of the project");
        assert_eq!(text.matches(find).count(), 1, "{name}: its text in {file}");
        assert_ne!(find, replace, "{name} changes nothing");
        assert!(names.insert(name), "two are called: {name}");
        // Bugs outside of what the worlds and the unit tests of the Rust crates see list their own tests.
        let own = bug.get("tests").map(|tests| tests.as_array().expect("a list"));
        assert!(
            own.is_some() || ["qp/", "cc/", "cm/", "nic/"].iter().any(|at| file.starts_with(at)),
            "{name}: no tests"
        );
        assert!(
            own.is_none_or(
                |own| !own.is_empty() && own.iter().all(|t| t.as_str().is_some_and(|t| t.starts_with("-p ")))
            ),
            "{name}: its tests"
        );
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
    let texts: Vec<String> = ["nic/core/src", "nic/src", "qp/src"]
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
