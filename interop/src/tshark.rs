//! tshark, the command line of Wireshark.

use std::path::Path;
use std::process::Command;

/// Whether tshark is installed. If not, prints a message: the test is then skipped.
#[must_use]
pub fn is_installed() -> bool {
    let found = Command::new("tshark").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        println!("SKIPPED: tshark is not installed, so nobody but ourselves has read these captures");
    }
    found
}

/// Runs tshark and returns its output.
///
/// # Panics
/// If tshark fails: the caller has no other judge.
#[must_use]
pub fn run(arguments: &[&str]) -> String {
    let output = Command::new("tshark").args(arguments).output().expect("tshark runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The values of these fields in each packet that passes the filter. A field that a packet lacks is empty.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn fields(capture: &Path, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    // tshark guesses that some payloads are RPC and then calls them malformed. Only RoCE is to be judged here.
    let path = capture.to_string_lossy();
    let mut arguments = vec!["-r", &path, "--disable-protocol", "rpcordma", "-Y", filter];
    arguments.extend(["-T", "fields", "-E", "separator=;", "-E", "occurrence=f"]);
    for field in fields {
        arguments.extend(["-e", field]);
    }
    let text = run(&arguments);
    text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect()
}

/// Parses a number as tshark prints it: decimal, hexadecimal, or a truth value.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    match text {
        "True" => Some(1),
        "False" => Some(0),
        _ => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
    }
}
