//! Validates the list of protocol rules, `tests/spec/rules.toml`: the items that it names exist, it contains all
//! rules that the code cites, and `docs/rules.md` is up to date.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    topic: Vec<Topic>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Topic {
    title: String,
    intro: String,
    rule: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    id: String,
    #[serde(default)]
    ibta: Vec<String>,
    source: String,
    rule: String,
    #[serde(default)]
    checked: Vec<Place>,
    #[serde(default)]
    tests: Vec<String>,
    exception: Option<String>,
}

/// A file, relative to the root of the repository, and an identifier in it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    file: String,
    item: String,
}

/// The folders that contain code and tests.
const FOLDERS: [&str; 6] = ["qp", "cc", "cm", "nic", "interop", "tests"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn list() -> List {
    let text = include_str!("../spec/rules.toml");
    toml::from_str(text).expect("rules.toml is a list of rules")
}

fn rules(list: &List) -> impl Iterator<Item = &Rule> {
    list.topic.iter().flat_map(|topic| &topic.rule)
}

/// All Rust sources except this one, whose examples are not citations.
fn sources() -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).expect("a folder of the project").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") && name != "rules.rs" {
                let text = fs::read_to_string(&path).expect("a readable source");
                found.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    for folder in FOLDERS {
        collect(&root().join(folder), &mut found);
    }
    found
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether the text contains `item` as a whole word.
fn has_item(text: &str, item: &str) -> bool {
    text.match_indices(item).any(|(at, _)| {
        let before = text.as_bytes()[..at].last();
        let after = text.as_bytes().get(at + item.len());
        !before.is_some_and(|byte| is_word(*byte)) && !after.is_some_and(|byte| is_word(*byte))
    })
}

/// The rule numbers that a text cites: C9-6, o10-37.2.13, oA19-14.
fn citations(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '.'));
    let cited = words.map(|word| word.trim_matches(['.', '-'])).filter(|word| {
        let Some((chapter, number)) = word.split_once('-') else { return false };
        let chapter = chapter.strip_prefix("oA").or(chapter.strip_prefix('o')).or(chapter.strip_prefix('C'));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        chapter.is_some_and(digits) && number.split('.').all(digits)
    });
    cited.map(str::to_owned).collect()
}

/// The names of all tests: functions after `#[test]`, including those in `proptest!`.
fn tests(sources: &[(PathBuf, String)]) -> BTreeSet<&str> {
    let marked = sources.iter().flat_map(|(_, text)| text.split("#[test]").skip(1));
    marked.filter_map(|rest| Some(rest.split_once("fn ")?.1.split_once('(')?.0)).collect()
}

#[test]
fn the_search_finds_what_it_looks_for() {
    let text = "IBTA C9-6, (o10-37.2.13) and oA19-14; not C-9, o9, C9-x, Proc9-3 nor no10-3.";
    assert_eq!(citations(text), ["C9-6", "o10-37.2.13", "oA19-14"].map(str::to_owned).into());
    assert!(has_item("fn take(x)", "take") && !has_item("fn take_all(x)", "take"));
    let source = (PathBuf::new(), "#[test]\n#[ignore]\nfn works() {}\nfn helper() {}".to_owned());
    assert_eq!(tests(&[source]), ["works"].into());
}

#[test]
fn names_and_numbers_are_used_once() {
    let list = list();
    let mut ids = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    for rule in rules(&list) {
        assert!(ids.insert(&rule.id), "{} is there twice", rule.id);
        assert!(rule.rule.ends_with('.') && !rule.source.is_empty(), "{}", rule.id);
        for number in &rule.ibta {
            assert!(numbers.insert(number), "{number} stands at two rules");
        }
    }
    assert!(ids.len() > 100, "{} rules", ids.len());
}

/// Every rule is checked and tested, or gives the reason why not.
#[test]
fn every_rule_is_checked_and_tested_or_an_exception() {
    let (list, sources) = (list(), sources());
    let tests = tests(&sources);
    for rule in rules(&list) {
        let id = &rule.id;
        let excused = rule.exception.is_some();
        assert!(rule.exception.as_ref().is_none_or(|reason| reason.ends_with('.')), "{id}: a reason");
        assert!(
            excused || (!rule.checked.is_empty() && !rule.tests.is_empty()),
            "{id}: where, and what test?"
        );
        for Place { file, item } in &rule.checked {
            let text = fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{id}: {file}: {e}"));
            assert!(has_item(&text, item), "{id}: there is no {item} in {file}");
        }
        for test in &rule.tests {
            assert!(tests.contains(test.as_str()), "{id}: there is no test {test}");
        }
    }
}

#[test]
fn cited_rules_are_listed_and_listed_rules_are_cited() {
    let list = list();
    let listed: BTreeSet<&String> = rules(&list).flat_map(|rule| &rule.ibta).collect();
    let mut cited: BTreeMap<String, PathBuf> = BTreeMap::new();
    for (path, text) in sources() {
        cited.extend(citations(&text).into_iter().map(|number| (number, path.clone())));
    }
    for (number, path) in &cited {
        assert!(listed.contains(number), "{number}, cited in {}, is not in the list", path.display());
    }
    for number in listed {
        assert!(cited.contains_key(number), "{number} is listed and cited nowhere");
    }
}

/// The list as Markdown.
fn rendered(list: &List) -> String {
    let mut text = "# The rules of the protocol\n\n".to_owned();
    let count = rules(list).count();
    let exceptions = rules(list).filter(|rule| rule.exception.is_some()).count();
    let numbers: usize = rules(list).map(|rule| rule.ibta.len()).sum();
    let intro = format!(
        "The protocol rules that rnic follows: {count} rules, in our own words, each with its source, the code that enforces \
         it, and the tests that verify it. Numbers such as C9-6 are statements of the InfiniBand Architecture Specification, \
         volume 1 ({numbers} of them); other numbers are its sections and annexes. {exceptions} rules are not followed, or \
         only in part; each of these gives the reason.\n\n\
         This file is generated from `tests/spec/rules.toml` by `UPDATE=1 cargo test -p rnic-tests --test rules`.\n"
    );
    text.push_str(&intro);
    for topic in &list.topic {
        let _ = writeln!(text, "\n## {}\n\n{}", topic.title, topic.intro);
        for rule in &topic.rule {
            let numbers: String = rule.ibta.iter().map(|number| format!("{number}; ")).collect();
            let _ = writeln!(text, "\n**{}** ({numbers}{})", rule.rule, rule.source);
            if let Some(reason) = &rule.exception {
                let _ = writeln!(text, "- Exception: {reason}");
            }
            let places = rule.checked.iter().map(|p| format!("[`{}`](../{})", p.item, p.file));
            list_of(&mut text, "Enforced in", places);
            list_of(&mut text, "Tests", rule.tests.iter().map(|test| format!("`{test}`")));
        }
    }
    text
}

fn list_of(text: &mut String, what: &str, items: impl Iterator<Item = String>) {
    let items: Vec<_> = items.collect();
    if !items.is_empty() {
        let _ = writeln!(text, "- {what}: {}", items.join(", "));
    }
}

#[test]
fn the_rendered_rules_are_up_to_date() {
    let path = root().join("docs/rules.md");
    let text = rendered(&list());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &text).expect("docs/rules.md can be written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "docs/rules.md is out of date: UPDATE=1 cargo test -p rnic-tests --test rules");
}
