//! Builds many mutants into one program, each behind a switch: `rnic-switch ROOT < mutants.json`.
//!
//! Standard input is a list of mutants in the form of `cargo mutants --list --json`, each with a number, `id`. Their files
//! below ROOT are rewritten: where a mutant differs from the code, the program asks `crate::mutant_is(id)`, which the crate
//! gets too, and which compares the number with the variable MUTANT. Standard output names the mutants that no switch
//! can select (`{"id": reason}`): in constants, for example, which are computed before the variable is read.
//!
//! A switch chooses between the text before and the text after: an operator is replaced among the tokens of the whole
//! expression around it, so that precedence does what it does when a file is edited.

mod rewrite;

use proc_macro2::LineColumn;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::{env, fs, io, path::Path};

/// A mutant, as cargo-mutants lists it.
#[derive(Deserialize)]
struct Mutant {
    id: u32,
    file: String,
    genre: Genre,
    replacement: String,
    span: Range,
}

/// What cargo-mutants changes.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq, Hash)]
enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

#[derive(Deserialize)]
struct Range {
    start: Place,
}

/// A place in a file; both numbers begin with 1.
#[derive(Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

/// Mutants of a file by what they change, and where that begins.
type Wanted = HashMap<(Genre, usize, usize), Vec<(u32, String)>>;

/// The function that switches ask.
const MUTANT_IS: &str = r#"
pub(crate) fn mutant_is(id: u32) -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);
    let mut chosen = CHOSEN.load(Ordering::Relaxed);
    if chosen == u32::MAX {
        chosen = std::env::var("MUTANT").map_or(0, |text| text.parse().unwrap_or(0));
        CHOSEN.store(chosen, Ordering::Relaxed);
    }
    chosen == id
}
"#;

fn main() {
    let root = env::args().nth(1).expect("usage: rnic-switch ROOT < mutants.json");
    let root = Path::new(&root);
    let mutants: Vec<Mutant> = serde_json::from_reader(io::stdin()).expect("a list of mutants");
    let mut files: BTreeMap<String, Wanted> = BTreeMap::new();
    for mutant in mutants {
        let LineColumn { line, column } =
            LineColumn { line: mutant.span.start.line, column: mutant.span.start.column - 1 };
        let places = files.entry(mutant.file).or_default();
        places.entry((mutant.genre, line, column)).or_default().push((mutant.id, mutant.replacement));
    }
    let mut refused: BTreeMap<u32, String> = BTreeMap::new();
    let mut crates = Vec::new();
    for (name, wanted) in files {
        let path = root.join(&name);
        let text = fs::read_to_string(&path).expect("a readable source");
        let (text, bad) = rewrite::file(&text, wanted);
        refused.extend(bad);
        fs::write(&path, text).expect("a writable source");
        crates.push(name.split_once("/src/").expect("a source of a crate").0.to_owned());
    }
    crates.dedup();
    for name in crates {
        let path = root.join(name).join("src/lib.rs");
        let text = fs::read_to_string(&path).expect("lib.rs");
        fs::write(&path, text + MUTANT_IS).expect("a writable lib.rs");
    }
    println!("{}", serde_json::to_string(&refused).expect("a map of words"));
}
