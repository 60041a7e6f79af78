//! The sockets of ibsim's protocol: datagrams between abstract names.
//!
//! A server called `sim` has `sim:ctl` for control, and `sim:out0`, `sim:out1` and so on for the requests of its slots. A
//! program with the process number 7 has `sim:ctl7` and `sim:in7`. Every name ends with a zero that counts.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic_fabric::subnet::{CONTROL_LEN, Control, REQUEST_LEN, SLOTS, Served};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Datagrams of a socket that are taken before the others have a turn.
const TURN: usize = 64;

/// The longest name: an abstract address has 107 bytes.
pub(super) const LONGEST_NAME: usize = 64;

/// The sockets of a server.
pub(super) struct Sockets {
    base: String,
    control: UnixDatagram,
    slots: Vec<UnixDatagram>,
}

/// What is to be read.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Standard input.
    pub(super) input: bool,
    control: bool,
    slots: Vec<usize>,
}

fn address(base: &str, end: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{base}:{end}\0"))
}

fn bind(base: &str, end: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind_addr(&address(base, end)?)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Sockets {
    /// Binds all of them.
    pub(super) fn bind(base: &str) -> io::Result<Self> {
        let slots = (0..SLOTS).map(|slot| bind(base, &format!("out{slot}"))).collect::<io::Result<_>>()?;
        Ok(Self { base: base.to_owned(), control: bind(base, "ctl")?, slots })
    }

    /// Waits until something is to be read, for so many milliseconds at most.
    pub(super) fn wait(&self, input: Option<BorrowedFd<'_>>, millis: u16) -> io::Result<Ready> {
        let sockets = std::iter::once(&self.control).chain(&self.slots);
        let mut fds: Vec<PollFd<'_>> =
            sockets.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        fds.extend(input.map(|input| PollFd::new(input, PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::from(millis)) {
            Err(nix::errno::Errno::EINTR) => return Ok(Ready::default()),
            other => other?,
        };
        let is_ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
        Ok(Ready {
            control: is_ready(fds.first()),
            slots: (0..SLOTS).filter(|slot| is_ready(fds.get(slot + 1))).collect(),
            input: is_ready(fds.get(SLOTS + 1)),
        })
    }

    /// Takes what is to be read, and answers. Returns whether there was anything.
    pub(super) fn serve(&self, ready: &Ready, served: &mut Served) -> bool {
        if ready.control {
            self.take_control(served);
        }
        let mut buffer = [0; REQUEST_LEN + 1];
        for slot in &ready.slots {
            for _ in 0..TURN {
                let Ok(length) = self.slots[*slot].recv(&mut buffer) else { break };
                served.handle_request(*slot, &buffer[..length]);
            }
        }
        self.transmit(served);
        ready.control || !ready.slots.is_empty()
    }

    /// Takes datagrams of control.
    fn take_control(&self, served: &mut Served) {
        let mut buffer = [0; CONTROL_LEN + 1];
        for _ in 0..TURN {
            let Ok((length, from)) = self.control.recv_from(&mut buffer) else { break };
            self.forget_the_dead(served);
            let (answer, connected) = match served.handle_control(&buffer[..length]) {
                Control::Ignore => continue,
                Control::Answer(answer) | Control::Disconnected { answer, .. } => (answer, None),
                Control::Connected { slot, id, answer } => (answer, Some((slot, id))),
            };
            // A slot may be in use by another program than the last one.
            if let Some((slot, id)) = connected
                && address(&self.base, &format!("in{id}"))
                    .and_then(|to| self.slots[slot].connect_addr(&to))
                    .is_err()
            {
                served.disconnect(slot);
                // It waits for an answer, and has no timeout for it.
                let _ = self.control.send_to_addr(&Control::refusal(answer), &from);
                continue;
            }
            // A program that has gone does not hear the answer.
            let _ = self.control.send_to_addr(&answer, &from);
        }
    }

    /// Frees the slots of programs that ended without a word: nobody has their names any more.
    fn forget_the_dead(&self, served: &mut Served) {
        let Ok(probe) = UnixDatagram::unbound() else { return };
        let is_dead = |id: &u32| {
            let to = address(&self.base, &format!("in{id}"));
            to.and_then(|to| probe.connect_addr(&to))
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        let dead: Vec<usize> =
            served.clients().connected().filter(|(_, id)| is_dead(id)).map(|(slot, _)| slot).collect();
        dead.into_iter().for_each(|slot| served.disconnect(slot));
    }

    /// Sends what is due. What a program does not take is lost, as on a wire.
    pub(super) fn transmit(&self, served: &mut Served) {
        while let Some((slot, datagram)) = served.poll_transmit() {
            let sent = self.slots.get(slot).map(|socket| socket.send(&datagram));
            if let Some(Err(error)) = sent
                && matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotConnected)
            {
                served.disconnect(slot);
            }
        }
    }
}
