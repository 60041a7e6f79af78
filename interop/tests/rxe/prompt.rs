//! A program that answers each line of text with one line: on rxe in the guest, or under `rnic run` on this side.

use crate::guest;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// Where the program runs.
enum Place {
    Guest { input: TcpStream, output: BufReader<TcpStream> },
    Here { child: Child, input: ChildStdin, output: BufReader<ChildStdout> },
}

/// A running program. It is killed when this is dropped.
pub(crate) struct Prompt {
    place: Place,
    name: &'static str,
}

impl Prompt {
    /// In the guest, on the kernel's rxe.
    pub(crate) fn in_guest(program: &'static str) -> Self {
        let input = guest::connect(&format!("exec {program}"));
        let output = BufReader::new(input.try_clone().expect("a copy of a socket"));
        Self { place: Place::Guest { input, output }, name: program }
    }

    /// On this side, on rnic, with these `rnic run` options.
    pub(crate) fn on_rnic(program: &'static str, address: IpAddr, options: &[&str]) -> Self {
        let mut command = crate::programs::rnic_run(address, options);
        command.arg(guest::folder().join(program)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("rnic run");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { place: Place::Here { child, input, output }, name: program }
    }

    pub(crate) fn is_in_guest(&self) -> bool {
        matches!(self.place, Place::Guest { .. })
    }

    /// Sends it a line; returns its answer.
    pub(crate) fn tell(&mut self, line: &str) -> String {
        let (input, output): (&mut dyn Write, &mut dyn BufRead) = match &mut self.place {
            Place::Guest { input, output } => (input, output),
            Place::Here { input, output, .. } => (input, output),
        };
        let mut answer = String::new();
        let told = input.write_all(format!("{line}\n").as_bytes()).and_then(|()| input.flush());
        let read = told.and_then(|()| output.read_line(&mut answer));
        assert!(read.is_ok(), "{self}: `{line}`: {read:?}");
        answer.truncate(answer.trim_end().len());
        answer
    }

    /// Asks it to exit, and waits until it has.
    pub(crate) fn quit(mut self) {
        match &mut self.place {
            Place::Guest { input, output } => {
                drop(input.write_all(b"quit\n"));
                drop(output.read_to_end(&mut Vec::new()));
            }
            Place::Here { child, input, .. } => {
                drop(input.write_all(b"quit\n"));
                drop(child.wait());
            }
        }
    }
}

impl fmt::Display for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_in_guest() { "on rxe" } else { "on rnic" };
        write!(f, "{} {place}", self.name)
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        match &mut self.place {
            // The agent then kills the process.
            Place::Guest { input, .. } => drop(input.shutdown(Shutdown::Both)),
            // `rnic run` execs the program.
            Place::Here { child, .. } => {
                drop(child.kill());
                drop(child.wait());
            }
        }
    }
}
