//! `rnic lab serve` as a program: what a browser gets, and how it ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A folder as `rnic lab site` writes it, but small.
fn site(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("index.html"), "<main>labs</main>").unwrap();
    fs::write(path.join("a.svg"), "<svg/>").unwrap();
    fs::write(path.join("notes.txt"), "not a page").unwrap();
    path
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rnic"));
    command
        .args(["lab", "serve"])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A server that runs, and ends with the test.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
    /// What it said before it listened.
    said: String,
}

impl Server {
    fn start(folder: &Path, words: &[&str]) -> Self {
        let mut child = command(words).args(["--addr", "127.0.0.1:0"]).current_dir(folder).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended: {said}");
            if let Some(rest) = line.strip_prefix("http://") {
                break rest.split('/').next().unwrap().to_owned();
            }
            said += &line;
        };
        Self { child, out, address, said }
    }

    /// The head and the body of an answer.
    fn ask(&self, method: &str, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_browser_gets_pages_and_nothing_else() {
    let folder = site("pages");
    fs::write(folder.join("page"), "<p>NICs</p>").unwrap();
    let server = Server::start(&folder, &[".", "--page", "page"]);
    let (head, body) = server.ask("GET", "/");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/html; charset=utf-8"), "{head}");
    assert!(body.starts_with("<main>labs") && body.contains("href=\"rnic.html\""), "{body}");
    assert_eq!(server.ask("GET", "/index.html?from=mail").1, body);
    let (head, body) = server.ask("GET", "/a.svg");
    assert!(head.contains("image/svg+xml") && body == "<svg/>", "{head}");
    assert_eq!(server.ask("GET", "/rnic.html").1, "<p>NICs</p>");
    let (head, body) = server.ask("HEAD", "/a.svg");
    assert!(head.contains("content-length: 6") && body.is_empty(), "{head} {body}");
    for path in ["/notes.txt", "/../Cargo.toml", "/%2e%2e/Cargo.toml", "//etc/passwd", "/nothing"] {
        let (head, body) = server.ask("GET", path);
        assert!(
            head.starts_with("HTTP/1.1 404") && body == "there is no such page\n",
            "{path}: {head} {body}"
        );
    }
    let (head, _) = server.ask("POST", "/");
    assert!(head.starts_with("HTTP/1.1 405") && head.contains("allow: GET, HEAD"), "{head}");
}

#[test]
fn ctrl_c_ends_it() {
    let folder = site("end");
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut server = Server::start(&folder, &["."]);
        // A browser keeps its connection.
        let _kept = TcpStream::connect(&server.address).unwrap();
        kill(Pid::from_raw(server.child.id() as i32), signal).unwrap();
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        let mut rest = String::new();
        server.out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "it says nothing more");
    }
}

#[test]
fn ctrl_c_ends_it_while_the_experiments_run() {
    let folder = site("early");
    let scratch = folder.join("scratch");
    fs::create_dir_all(&scratch).unwrap();
    let mut child = command(&["--addr", "127.0.0.1:0"]).env("TMPDIR", &scratch).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert!(line.contains("experiments run"), "{line}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn mistakes_are_told_in_a_line() {
    let folder = site("mistakes");
    let server = Server::start(&folder, &["."]);
    let empty = folder.join("empty");
    fs::create_dir_all(&empty).unwrap();
    let in_use = ["--addr", &server.address];
    for (words, part) in [
        (&in_use[..], "in use"),
        (&["nowhere", "--addr", "127.0.0.1:0"], "cannot read nowhere"),
        (&["empty", "--addr", "127.0.0.1:0"], "`rnic lab site FOLDER` makes"),
        (&[".", "--page", "nothing", "--addr", "127.0.0.1:0"], "cannot read nothing"),
    ] {
        let output = command(words).current_dir(&folder).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.lines().count() == 1 && said.contains(part),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn a_page_that_is_not_built_is_told_with_the_remedy() {
    let folder = site("unbuilt");
    // Under this name the program has no page beside it.
    let program = folder.join("rnic");
    fs::hard_link(env!("CARGO_BIN_EXE_rnic"), &program).unwrap();
    let mut child = Command::new(&program)
        .args(["lab", "serve", ".", "--addr", "127.0.0.1:0"])
        .current_dir(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.next().unwrap().unwrap();
    let listening = lines.next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.contains("`nic/page/build`"), "{said}");
    assert!(listening.starts_with("http://127.0.0.1:"), "{listening}");
}

#[test]
fn without_a_folder_all_labs_are_there() {
    let folder = site("labs");
    let server = Server::start(&folder, &["--title", "Our course"]);
    assert!(server.said.contains("experiments run"), "{}", server.said);
    assert!(server.ask("GET", "/").1.contains("Our course"));
    assert!(server.ask("GET", "/go-back-n.html").1.contains("Predict first"));
}
