//! What the tests of the page share: the page, built once, and a browser.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod chromium;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const TARGET: &str = "wasm32-unknown-unknown";

fn has(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// The page, which the first caller builds. `None`, after a line that says why: something is missing for that.
pub(crate) fn page() -> Option<&'static Path> {
    static PAGE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PAGE.get_or_init(build) {
        Ok(file) => Some(file),
        Err(why) => {
            println!("SKIPPED: {why}, so the page was not built");
            None
        }
    }
}

fn build() -> Result<PathBuf, String> {
    if !has("python3", &["--version"]) {
        return Err("python3 is not installed".to_owned());
    }
    if !has("rustup", &["target", "add", TARGET])
        && !has("rustc", &["--print", "target-libdir", "--target", TARGET])
    {
        return Err(format!("rustup cannot fetch the target {TARGET}"));
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rnic.html");
    let built = Command::new(here.join("build")).arg(&file).output().expect("python3");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Ok(file)
}

/// Whether Node is installed; if not, a line says so.
pub(crate) fn has_node() -> bool {
    let has = has("node", &["--version"]);
    if !has {
        println!("SKIPPED: node is not installed, so the engine of the page was not run in it");
    }
    has
}

/// Two logs are the same, byte for byte.
#[track_caller]
pub(crate) fn assert_same(native: &str, there: &str) {
    for (number, (here, there)) in native.lines().zip(there.lines()).enumerate() {
        assert_eq!(here, there, "line {}", number + 1);
    }
    assert_eq!(native.len(), there.len(), "one log is longer");
}
