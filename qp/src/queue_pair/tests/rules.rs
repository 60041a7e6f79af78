//! The list of rules and their tests, `RULES.md`.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

const RULES: &str = include_str!("RULES.md");

/// Names of the tests in all Rust files below a folder.
fn collect(folder: &Path, tests: &mut HashSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let marked = text.split("#[test]").skip(1);
            let names = marked.filter_map(|rest| rest.split_once("fn ")?.1.split_once('('));
            tests.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
}

#[test]
fn every_rule_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut tests = HashSet::new();
    for folder in ["qp/src", "qp/tests", "nic/src", "tests/tests"] {
        collect(&root.join(folder), &mut tests);
    }
    let rows = RULES.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Rule "));
    let mut rules = 0;
    for row in rows {
        let (_, names) = row.trim_end_matches(" |").rsplit_once('|').unwrap();
        let names: Vec<_> = names.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            assert!(tests.contains(name), "there is no test {name}: {row}");
        }
        rules += 1;
    }
    assert!(rules > 70, "{rules} rules");
}
