//! A server, its clients, and their output.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// A server that ends with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) port: String,
    output: BufReader<std::process::ChildStdout>,
}

impl Server {
    /// Starts a server at a free address and control port.
    pub(crate) fn start(more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rnic"))
            .args(["perf", "server", "--control-port", "0"])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        // rnic perf server at 127.0.0.1, control port 41234
        let words: Vec<_> = line.split_whitespace().collect();
        let (address, port) = (words[4].trim_end_matches(',').to_owned(), words[7].to_owned());
        Self { child, address, port, output }
    }

    /// The next line that the server prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// The command of a client of this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
        command.args(["perf", "client", &self.address, "--control-port", &self.port]).args(args);
        command
    }

    /// Runs a client of this server to its end.
    pub(crate) fn client(&self, args: &[&str]) -> Output {
        client(&[&[self.address.as_str(), "--control-port", self.port.as_str()], args].concat())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has exited by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn client(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).args(["perf", "client"]).args(args).output().unwrap()
}

/// The JSON output of a client.
pub(crate) fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The error message of a client: one line.
pub(crate) fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// Sends SIGINT, as Ctrl-C does.
pub(crate) fn interrupt(child: &Child) {
    let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
}

/// A directory that is removed after the test.
pub(crate) struct Folder(std::path::PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnic-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Leftovers are in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
