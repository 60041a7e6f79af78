//! A daemon that is tried out: programs do not reach it, and nobody holds its sockets when it is gone.
//!
//! Whoever has it plays its programs: says what they say, byte for byte, and gets what they would get. Its addresses are real.

use crate::config::Config;
use crate::nic::Outgoing;
use crate::server::{DaemonFault, Limited, Server};
use crate::session::{Answer, Peer, Session};
use crate::store::Store;
use bytes::BytesMut;
use rnic::daemon::protocol::{FrameError, Reply};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Datagrams that wait for a program that is played.
const LINE: usize = 16;

/// The daemon.
pub struct Trial(Arc<Server>);

/// A connection of a program that is played. Dropped, it ends.
pub struct Line {
    session: Session,
    incoming: BytesMut,
    outgoing: mpsc::Receiver<Outgoing>,
}

impl Trial {
    /// Takes the addresses of a configuration.
    ///
    /// # Errors
    /// [`DaemonFault`].
    pub fn open(config: &Config) -> Result<Self, DaemonFault> {
        // There is no keeper, so no program is run to start one.
        let server = Server::with_store(config, Path::new(""), || Ok((Store::of_nobody(), BTreeMap::new())))?;
        Ok(Self(Arc::new(server)))
    }

    /// A program of this user connects.
    #[must_use]
    pub fn connect(&self, uid: u32) -> Line {
        let (line, outgoing) = mpsc::channel(LINE);
        let pid = std::process::id().cast_signed();
        // As it is given back at the end.
        self.0.take(uid, Limited::Lines, u32::MAX);
        let session = Session::new(Arc::clone(&self.0), Peer { uid, gids: Vec::new(), pid }, line);
        Line { session, incoming: BytesMut::new(), outgoing }
    }

    /// Whether no program has anything of what the daemon counts, and no datagram would reach a program.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.0.is_idle()
    }
}

impl Line {
    /// The program says something, which need not end with a frame; returns the answers, without their descriptors, and the
    /// datagrams that have come.
    ///
    /// # Errors
    /// It is no message: the daemon would close the connection.
    pub fn say(&mut self, bytes: &[u8]) -> Result<Vec<Reply>, FrameError> {
        self.incoming.extend_from_slice(bytes);
        let mut replies = Vec::new();
        while let Some(answer) = self.session.take(&mut self.incoming)? {
            match answer {
                Answer::Reply((reply, _)) => replies.push(reply),
                Answer::Programs => self.see(&mut replies),
                Answer::Silence => {}
            }
            if !self.session.has_greeted() {
                return Err(FrameError::Malformed);
            }
        }
        replies.extend(std::iter::from_fn(|| self.outgoing.try_recv().ok()).map(|(reply, _)| reply));
        Ok(replies)
    }

    fn see(&self, replies: &mut Vec<Reply>) {
        match self.session.seen() {
            Ok(seen) => {
                let opened = seen.into_iter().filter_map(|(nic, number)| nic.programs().open(number)?.ok());
                replies.extend(opened.map(|(program, _)| Reply::Program(program)));
                replies.push(Reply::Done(None));
            }
            Err(refusal) => replies.push(Reply::Refused(refusal)),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.session.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use rnic::daemon::protocol::{Hello, LedgerEntry, Refusal, Request, VERSION, write_frame};

    #[test]
    fn a_program_without_a_slot_has_no_changes_to_tell() {
        let process = std::process::id() % 60_000;
        let address = format!("127.94.{}.{}", process / 250, process % 250 + 1);
        let config = Config { addresses: vec![address], ..Config::default() };
        let daemon = Trial::open(&config).expect("a loopback address");
        let mut line = daemon.connect(nix::unistd::geteuid().as_raw());
        let mut say = |request: &Request| {
            let mut frame = BytesMut::new();
            write_frame(request, &mut frame);
            line.say(&frame).expect("messages")
        };
        let hello = Hello { version: VERSION, pid: 1, program: "played".to_owned() };
        assert_eq!(say(&Request::Hello(hello)), []);
        let listens = Request::Ledger { entries: vec![LedgerEntry::Listens(1)], number: Some(7) };
        let refused = say(&listens);
        assert!(matches!(refused[..], [Reply::Refused(Refusal::Malformed(_))]), "{refused:?}");
        let attached = say(&Request::Attach { address: None });
        assert!(matches!(attached[..], [Reply::Attached(_)]), "{attached:?}");
        assert_eq!(say(&listens), [Reply::Done(Some(7))]);
        assert!(!daemon.is_idle());
        drop(line);
        assert!(daemon.is_idle(), "its slot and its listener are gone with it");
    }
}
