//! Forgers: hosts that send messages between ports in the name of others, and that nobody believes.
//!
//! A forger knows everything but the tokens that two ports gave each other, unless it repeats what it heard. It asks,
//! answers questions that were never put, gives credit and takes it back, pauses, and tells of congestion. None of it
//! is a reason for anything: an error, a delay beyond patience, or a partner that does not exist would be a violation.

use super::Check;
use super::host::Host;
use super::rng::Rng;
use super::world::World;
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::hello::{Counting, Features, Hello, Kind, SourcePorts, VERSION};
use qp::wire::{DethFields, Headers, IpHeader, Opcode, PauseTimes, icrc};
use rnic::cc::credits::{self, CreditMessage};
use rnic::cc::vl::Vl;
use rnic::{Psn, QKey, Qpn};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The longest time between two packets of a forger, in nanoseconds.
const PAUSE: u64 = 20_000;

/// The most copies that a fault of a plan makes of a packet.
const COPIES: u64 = 2;

impl World<'_> {
    /// A forger sends `times` packets to a device, in the name of the other side of a connection or of another.
    pub(crate) fn forge(&mut self, c: usize, side: usize, times: u32, rng: &mut Rng) -> Check {
        let victim = self.conns[c].ends[side].host;
        for _ in 0..times {
            let named = match rng.below(4) {
                0 => rng.size(0, self.hosts.len() - 1),
                _ => self.conns[c].ends[1 - side].host,
            };
            self.forge_one(c, side, victim, named, rng);
            self.run_for(Duration::from_nanos(rng.below(PAUSE)))?;
        }
        Ok(())
    }

    fn forge_one(&mut self, c: usize, side: usize, victim: usize, named: usize, rng: &mut Rng) {
        let dst = self.hosts[victim].device.address();
        let (mut src, mut src_port) =
            (self.hosts[named].device.address(), self.witness.port_of(self.hosts[named].device.address()));
        if rng.percent(20) {
            src = IpAddr::V4(Ipv4Addr::from(0x0a63_0000 + rng.below(1 << 16) as u32));
        }
        if rng.percent(10) {
            src_port = rng.between(1, 0xffff) as u16;
        }
        let arrival = IpHeader { src, dst, src_port, hop_limit: 64, ..IpHeader::default() };
        let [dest_slot, src_slot] = [victim, named].map(|host| self.hosts[host].slot);
        let sequence = rng.below(1 << 16) as u16;
        let token = if rng.percent(30) { 0 } else { rng.word() };
        let said = |body: &[u8]| [&token.to_be_bytes()[..], body].concat();
        let (what, headers, payload) = match rng.below(6) {
            0 => ("forged question", to_qp1(), hello(Kind::Ask, src_slot, src_port, rng)),
            1 => ("forged answer", to_qp1(), hello(Kind::Answer, src_slot, src_port, rng)),
            2 => {
                let limit = if rng.percent(50) { 0 } else { rng.below(1 << 12) as u32 };
                let kind = if rng.percent(50) { credits::Kind::Ask } else { credits::Kind::Grant };
                let Some(vl) = Vl::new(0) else { return };
                let [want, number, echo] = [100, 9, 9].map(|most| rng.below(most) as u16);
                let count = rng.below(1 << 12) as u32;
                let update = CreditMessage { kind, vl, want, number, echo, count, limit };
                (
                    "forged credits",
                    Headers::flow_control(dest_slot, src_slot, sequence),
                    said(&update.encode()),
                )
            }
            3 => {
                let times = PauseTimes([Some(u16::MAX); 8]).emit();
                ("forged pause", Headers::pause(dest_slot, src_slot, sequence), said(&times))
            }
            4 => {
                let Some(qp) = &self.conns[c].ends[side].qp else { return };
                ("forged CNP", Headers { token, ..Headers::cnp(Qpn::new(qp.qpn().value())) }, Vec::new())
            }
            _ => return self.repeat(dst, rng),
        };
        self.cover.hit(what);
        self.note(|| format!("{what} to host {victim} in the name of {src}:{src_port}"));
        self.net.inject(&arrival, &seal(&arrival, &headers, &payload));
    }

    /// Repeats a message that a port received earlier.
    fn repeat(&mut self, dst: IpAddr, rng: &mut Rng) {
        if let Some((arrival, packet)) = self.witness.heard_at(dst, rng) {
            let what = match packet.first() {
                Some(0xc0) => "repeated credits",
                Some(0xc1) => "repeated pause",
                Some(0x81) => "repeated CNP",
                _ => "repeated hello",
            };
            self.cover.hit(what);
            self.note(|| format!("{what} to {dst}"));
            self.net.inject(&arrival, &packet);
        }
    }

    /// Ports believed no more messages than ports sent, apart from copies that the network made, and from those that a
    /// forger repeated with the token in them. (Anybody may tell a port of congestion whose peer is not known to be rnic.)
    pub(crate) fn check_messages(&self) -> Check {
        let copies = COPIES * self.cover.get("fault dup");
        for (believed, sent, repeated) in [
            ("rx_flow_control", "tx_flow_control", "repeated credits"),
            ("rx_pause", "tx_pause", "repeated pause"),
        ] {
            let [is, sent, again] = [believed, sent, repeated].map(|what| self.cover.get(what));
            if is > sent + again + copies {
                return Err(format!(
                    "{believed} is {is}, and {sent} were sent, {again} repeated and {copies} copied"
                ));
            }
        }
        Ok(())
    }

    /// No forger is a partner: a device met each life of another at most once, and again if it lost it.
    pub(crate) fn check_partners(&self, host: &Host) -> Check {
        let counters = host.device.counters().port;
        // A connection that is set up may meet again whom the last one had left.
        let most = self.lives + counters.partners_lost + self.cover.get("setup") + self.cover.get("recovery");
        if counters.partners_met > most {
            return Err(format!(
                "{} met {} partners, of {most} at most",
                host.device.name(),
                counters.partners_met
            ));
        }
        Ok(())
    }
}

fn to_qp1() -> Headers {
    Headers {
        deth: DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI },
        ..Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0))
    }
}

fn hello(kind: Kind, slot: u8, port: u16, rng: &mut Rng) -> Vec<u8> {
    let hello = Hello {
        kind,
        transaction_id: rng.word(),
        version: VERSION,
        slot,
        lanes: 1,
        features: Features::CREDITS | Features::PAUSE | Features::CNP,
        instance: rng.word(),
        block: 512,
        counting: Counting::PacketBytes,
        ports: SourcePorts::new(&[port.max(1)]).unwrap_or_default(),
        token: rng.word(),
        proof: if rng.percent(50) { 0 } else { rng.word() },
    };
    let mut mad = [0; MAD_LEN];
    hello.emit(&mut mad);
    mad.to_vec()
}

/// A packet with a right checksum.
fn seal(arrival: &IpHeader, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; headers.wire_len()];
    headers.emit(&mut packet, payload.len());
    packet.extend(payload);
    packet.extend(icrc::compute(&arrival.flow(), arrival.ident, &packet).to_le_bytes());
    packet
}
