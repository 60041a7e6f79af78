//! One packet at a time, back and forth.

use super::super::Outcome;
use super::idle::Idle;
use super::wire::{Op, PSNS, Received, header_len, number, short};
use super::{Link, PATIENCE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use qp::wire::{ICRC_LEN, Opcode};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a sleeping side waits before it looks whether to stop, in milliseconds.
const TICK: u16 = 10;

/// A ping: its operation, and how to wait.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ping {
    pub(crate) op: Op,
    pub(crate) size: usize,
    /// Sleep in poll(2) until the socket is readable, rather than read it all the time.
    pub(crate) asleep: bool,
}

impl Ping {
    /// The packet from the client, and the answer. Only a READ has two different ones.
    fn packets(self) -> (Vec<u8>, Vec<u8>) {
        let with_data = |opcode| {
            let mut packet = short(opcode);
            packet.splice(packet.len() - ICRC_LEN..packet.len() - ICRC_LEN, vec![0; self.size]);
            packet
        };
        let both = |packet: Vec<u8>| (packet.clone(), packet);
        match self.op {
            Op::Write => both(with_data(Opcode::RcWriteOnly)),
            Op::Send => both(with_data(Opcode::RcSendOnly)),
            Op::Read => (short(Opcode::RcReadRequest), with_data(Opcode::RcReadResponseOnly)),
        }
    }

    fn send(self, link: &mut Link, packet: &mut [u8], psn: u64, region: &[u8]) -> Outcome<()> {
        let end = packet.len() - ICRC_LEN;
        // A request to read has no payload.
        if let Some(payload) = end.checked_sub(self.size).filter(|start| *start >= header_len(packet)) {
            packet[payload..end].copy_from_slice(&region[..self.size]);
        }
        number(packet, psn % PSNS, false);
        link.sent.seal(0, packet);
        link.send(packet.len(), packet)
    }

    /// Receives packet `psn`, and puts its payload into `region`.
    fn receive(self, link: &mut Link, psn: u64, region: &mut [u8]) -> Outcome<bool> {
        if self.asleep {
            let mut fds = [PollFd::new(link.socket.as_fd(), PollFlags::POLLIN)];
            // A caller that was woken for another reason calls again.
            let _ = poll(&mut fds, PollTimeout::from(TICK));
        }
        let Some((len, _)) = link.receive()? else { return Ok(false) };
        let Some(packet) = link.received.open(0, &link.buffer[..len]).and_then(Received::read) else {
            return Err("a packet of the bare path has a wrong ICRC".into());
        };
        if packet.psn != psn % PSNS {
            return Ok(false);
        }
        region[..packet.payload.len()].copy_from_slice(packet.payload);
        Ok(true)
    }
}

/// Round trips for the given time, in nanoseconds. The peer runs [`echo`].
pub(crate) fn ping(link: &mut Link, ping: Ping, region: &mut [u8], time: Duration) -> Outcome<Vec<f64>> {
    let (mut request, _) = ping.packets();
    let (mut trips, mut idle) = (Vec::new(), Idle::default());
    let begin = Instant::now();
    for psn in 0.. {
        let start = Instant::now();
        if start - begin >= time {
            break;
        }
        ping.send(link, &mut request, psn, region)?;
        idle.end();
        while !ping.receive(link, psn, region)? {
            if start.elapsed() > PATIENCE {
                return Err("the bare path has no answer".into());
            }
            idle.wait();
        }
        trips.push(start.elapsed().as_nanos() as f64);
    }
    Ok(trips)
}

/// Answers each packet while `go`: the far side of [`ping`].
pub(crate) fn echo(link: &mut Link, ping: Ping, region: &mut [u8], go: impl Fn() -> bool) -> Outcome<()> {
    let (_, mut answer) = ping.packets();
    let (mut psn, mut idle) = (0, Idle::default());
    while go() {
        if ping.receive(link, psn, region)? {
            ping.send(link, &mut answer, psn, region)?;
            psn += 1;
            idle.end();
        } else {
            idle.wait();
        }
    }
    Ok(())
}
