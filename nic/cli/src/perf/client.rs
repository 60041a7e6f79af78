//! `rnic perf client`.

use super::control::{Control, Message, PATIENCE, PORT, SideReport};
use super::endpoint::Endpoint;
use super::params::{Limit, MAX_SL, Op, Params, Test, parse_size, parse_tclass, tclass_of};
use super::progress::Progress;
use super::report::{Figures, Loss, Report, Run};
use super::server::{Side, verifiable};
use super::service::Service;
use super::stream::Sent;
use super::{Failure, counters, difference, pingpong, stream, trace};
use crate::number::whole;
use crate::setup::Setup;
use crate::stop;
use rnic::Mtu;
use rnic::cc::quantity::parse_seconds;
use rnic::process::HostAddress;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

/// The sizes of `--all`: powers of two from 2 bytes to 8 MiB, as in perftest.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 1..=23;

/// The size of a datagram that fits into an Ethernet frame of 1500 bytes.
const UD_SIZE: u32 = 1024;

/// perftest's default number of outstanding messages per queue pair.
const DEPTH: u32 = 128;

/// The default of `--cq-mod` is a quarter of the depth, but at most this.
const CQ_MOD: u32 = 32;

/// How long to wait for the control connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Measure the path to SERVER.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Definitions are those of perftest. MiB are 2^20 bytes, and Mpps are millions of messages per second. BW peak is the \
highest rate over any part of the run, from posting its first message to completing its last. The latency of WRITE and \
SEND is half of a round trip; that of READ and atomics is the time from post to completion.

UC and UD can lose messages. Their bandwidth counts the messages that arrived, as seen by the server, and the report \
states how many were lost; there is no peak (0). Latency covers the messages that were answered.

RC and XRC support all operations, UC supports WRITE and SEND, UD supports SEND of one packet.

Examples:
  rnic perf client 10.0.0.2
  rnic perf client 10.0.0.2 --op read --test lat --size 4K
  rnic perf client 10.0.0.2 --duration 10s --sl 3 --link ethernet:rate=5Gb/s

Exit code: 0 if the measurement completed or was interrupted, 2 if it failed.")]
pub(super) struct Args {
    /// The address or host name of the server.
    #[arg(value_name = "SERVER", value_parser = server_address)]
    server: IpAddr,
    /// Measure from this address, interface or name of this host. [default: the file's, or the address that routes to the
    /// server; on loopback the first free one of 127.0.0.1, 127.0.0.2, ...]
    #[arg(long, value_name = "ADDRESS", value_parser = HostAddress::look_up)]
    bind: Option<HostAddress>,
    /// The TCP port on which the server accepts clients.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    control_port: u16,
    /// Use this service.
    #[arg(long, short = 'c', value_enum, default_value = "rc")]
    service: Service,
    /// Measure this operation.
    #[arg(long, value_enum, default_value = "write")]
    op: Op,
    /// Measure bandwidth or latency.
    #[arg(long, value_enum, default_value = "bw")]
    test: Test,
    /// Send immediate data with SEND or WRITE.
    #[arg(long)]
    imm: bool,
    /// Receive on all queue pairs through one shared receive queue (SEND over RC or UD).
    #[arg(long)]
    srq: bool,
    /// Send messages of this size, such as 4096, 64K or 1MB. Repeat for several. [default: 64K for bandwidth, 1K over UD, 2
    /// for latency; atomics always use 8]
    #[arg(long = "size", short = 's', value_name = "BYTES", value_parser = parse_size)]
    sizes: Vec<u32>,
    /// Use all powers of two from 2 bytes to 8 MiB (1 KiB over UD) as sizes.
    #[arg(long, short = 'a', conflicts_with = "sizes")]
    all: bool,
    /// Keep this number of messages outstanding on each queue pair (bandwidth).
    #[arg(long, value_name = "N", default_value_t = DEPTH, value_parser = whole::<u32>)]
    depth: u32,
    /// Signal one send in every N. [default: a quarter of the depth, at most 32]
    #[arg(long, value_name = "N", value_parser = whole::<u32>)]
    cq_mod: Option<u32>,
    /// Use this number of queue pairs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>)]
    qps: u32,
    /// Send this number of messages of each size on each queue pair. [default: 5000 for the bandwidth of WRITE, 1000
    /// otherwise]
    #[arg(long, short = 'n', value_name = "N", value_parser = whole::<u64>, conflicts_with = "duration")]
    iterations: Option<u64>,
    /// Send for this time per size instead, such as 10s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Use this path MTU: 256, 512, 1024, 2048 or 4096. [default: the largest that both ports support]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<Mtu>,
    /// Use this service level, 0 to 7. On RoCE it is the priority: the upper three bits of the DSCP.
    #[arg(long, value_name = "SL", value_parser = clap::value_parser!(u8).range(0..=MAX_SL), conflicts_with = "tclass")]
    sl: Option<u8>,
    /// Use this traffic class (IPv4 TOS byte), such as 96 or 0x60. The DSCP is its upper six bits.
    #[arg(long, value_name = "TCLASS", value_parser = parse_tclass)]
    tclass: Option<u8>,
    /// Wait for completion events instead of polling.
    #[arg(long)]
    events: bool,
    /// Send in both directions at the same time and report the sum.
    #[arg(long)]
    bidirectional: bool,
    /// Do not compare the received data with the data sent.
    #[arg(long)]
    no_verify: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trace: trace::TraceArgs,
    #[command(flatten)]
    setup: Setup,
}

impl Args {
    fn params(&self) -> Params {
        // The defaults of perftest.
        let iterations = if (self.test, self.op) == (Test::Bw, Op::Write) { 5000 } else { 1000 };
        let size = match (self.test, self.service) {
            _ if self.op.is_atomic() => 8,
            (Test::Bw, Service::Ud) => UD_SIZE,
            (Test::Bw, _) => 65_536,
            (Test::Lat, _) => 2,
        };
        let sizes = match (self.all, self.sizes.as_slice()) {
            (true, _) => ALL_SIZES
                .map(|power| 1 << power)
                .filter(|size| self.service != Service::Ud || *size <= UD_SIZE)
                .collect(),
            (false, []) => vec![size],
            (false, sizes) => sizes.to_vec(),
        };
        Params {
            service: self.service,
            op: self.op,
            imm: self.imm,
            srq: self.srq,
            test: self.test,
            sizes,
            depth: self.depth,
            cq_mod: self.cq_mod.unwrap_or_else(|| (self.depth / 4).clamp(1, CQ_MOD)),
            qps: self.qps,
            limit: match self.duration {
                Some(duration) => Limit::Seconds(duration.as_secs_f64()),
                None => Limit::Iterations(self.iterations.unwrap_or(iterations)),
            },
            mtu: self.mtu.map(Mtu::bytes),
            tclass: self.tclass.or(self.sl.map(tclass_of)).unwrap_or(0),
            events: self.events,
            bidirectional: self.bidirectional,
            verify: !self.no_verify,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let params = args.params();
    params.check()?;
    let mut config = args.setup.device()?;
    let (mut control, local) = reach(SocketAddr::new(args.server, args.control_port))?;
    // On loopback every process has its own address, whatever the route.
    let routed = (!args.server.is_loopback()).then_some(local);
    config.address = args.bind.or(config.address).or(routed.map(HostAddress::from));
    let device = config.open()?;
    let tracing = args.trace.start(&device, &config, params.title())?;
    control.send(&Message::Request { params: params.clone() })?;
    let peer = match control.receive(PATIENCE)? {
        Message::End { end } => end,
        other => return Err(control.unexpected(&other)),
    };
    let mut end = Endpoint::new(&device, &params)?;
    control.send(&Message::End { end: end.describe() })?;
    end.connect(peer)?;
    match control.receive(PATIENCE)? {
        Message::Connected => {}
        other => return Err(control.unexpected(&other)),
    }
    let mut report = Report::new(&params, device.address(), args.server, end.mtu(), args.json)?;
    for (index, size) in params.sizes.iter().copied().enumerate() {
        // An interrupt during the first size still yields a result, of fewer messages.
        if index > 0 && stop::requested() {
            break;
        }
        match measure(&end, size, &mut control) {
            Ok(run) => report.add(run)?,
            Err(error) => return Err(control.last_words().unwrap_or(error)),
        }
    }
    report.finish(stop::requested())?;
    tracing.map_or(Ok(()), trace::Tracing::finish)?;
    Ok(ExitCode::SUCCESS)
}

/// The address of a server. If a name has several, the first IPv4 address, else the first one.
fn server_address(text: &str) -> Result<IpAddr, String> {
    if let Ok(ip) = text.parse() {
        return Ok(ip);
    }
    let resolved = (text, 0).to_socket_addrs();
    let resolved =
        resolved.map_err(|error| format!("neither an IP address nor a known host name: {error}"))?;
    let first = resolved.map(|address| address.ip()).min_by_key(IpAddr::is_ipv6);
    first.ok_or_else(|| "the host name has no address".to_owned())
}

/// Connects to the server; also returns the local address.
fn reach(server: SocketAddr) -> Result<(Control, IpAddr), Failure> {
    let stream =
        TcpStream::connect_timeout(&server, CONNECT_TIMEOUT).map_err(|error| unreachable(server, &error))?;
    let local = stream.local_addr().map_err(|error| format!("the control connection failed: {error}"))?;
    Ok((Control::new(stream, false)?, local.ip()))
}

/// Why there is no control connection, and what to do about it.
fn unreachable(server: SocketAddr, error: &io::Error) -> String {
    let ip = server.ip();
    match error.kind() {
        ErrorKind::ConnectionRefused => format!(
            "no rnic perf server is listening on TCP {server}; start one with `rnic perf server --bind {ip}`"
        ),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            format!(
                "{ip} is unreachable: this host has no route to it; check the address with `ip route get {ip}`"
            )
        }
        ErrorKind::TimedOut => format!(
            "{ip} does not answer on TCP port {}; check the address and the firewalls on the way",
            server.port()
        ),
        _ => format!("cannot connect to TCP {server}: {error}"),
    }
}

/// Runs one size; returns the results of both sides.
fn measure(end: &Endpoint, size: u32, control: &mut Control) -> Result<Run, Failure> {
    let params = &end.params;
    end.prepare(size)?;
    control.send(&Message::Begin { size })?;
    match control.receive(PATIENCE)? {
        Message::Ready => {}
        other => return Err(control.unexpected(&other)),
    }
    let before = counters(&end.device);
    let mut progress = Progress::new(params, size);
    let (figures, sent, lost) = match params.test {
        Test::Lat => {
            let (latencies, lost) = pingpong::initiate(end, size, control, &mut progress)?;
            let sent = Sent { messages: latencies.len() + lost, seconds: 0.0, peak: 0.0 };
            (Figures::latency(&latencies), sent, lost)
        }
        Test::Bw => {
            let sent = stream::send(end, size, &mut progress, &mut || match control.try_receive()? {
                None => Ok(stop::requested()),
                Some(other) => Err(control.unexpected(&other)),
            })?;
            (Figures::bandwidth(size, &sent), sent, 0)
        }
    };
    drop(progress);
    control.send(&Message::Finish { interrupted: stop::requested(), messages: sent.messages })?;
    let server = match wait_for_report(end, control)? {
        Message::Report { report } => report,
        other => return Err(control.unexpected(&other)),
    };
    let mut run = Run {
        size,
        figures,
        loss: (!params.service.is_reliable()).then_some(Loss { sent: sent.messages, lost }),
        client: difference(&before, counters(&end.device)),
        server: server.counters.clone(),
        server_qps: server.qp_counters.clone(),
    };
    if params.counts_arrivals() {
        run.count_arrivals(&sent, &server);
    }
    if !stop::requested() {
        check_sums(end, &sent, &server)?;
    }
    if params.verify {
        let ours = end.verify(size, verifiable(params, size, Side::Client))?;
        refuse_corruption("client", ours)?;
        refuse_corruption("server", server.corruption.clone())?;
    }
    run.figures.add_server(size, &server);
    Ok(run)
}

/// Checks that each FETCH_ADD took effect exactly once.
fn check_sums(end: &Endpoint, sent: &Sent, server: &SideReport) -> Result<(), Failure> {
    if end.params.op != Op::FetchAdd || !end.params.verify {
        return Ok(());
    }
    for (side, added, asked) in
        [("server", server.added, sent.messages), ("client", end.added()?, server.messages)]
    {
        if added != asked {
            return Err(format!("{asked} FETCH_ADDs added {added} at the {side}").into());
        }
    }
    Ok(())
}

fn wait_for_report(end: &Endpoint, control: &mut Control) -> Result<Message, Failure> {
    // In a bidirectional run the server may still be sending.
    if end.params.server_is_active() { stream::serve(end, control) } else { control.receive(PATIENCE) }
}

fn refuse_corruption(side: &str, corruption: Option<String>) -> Result<(), Failure> {
    match corruption {
        Some(what) => Err(format!("wrong data at the {side}: {what}").into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_server_is_told_from_one_that_is_not_running() {
        let server = SocketAddr::from(([10, 0, 0, 2], PORT));
        let text = |kind: ErrorKind| unreachable(server, &kind.into());
        assert!(text(ErrorKind::ConnectionRefused).contains("`rnic perf server --bind 10.0.0.2`"));
        for kind in [ErrorKind::NetworkUnreachable, ErrorKind::HostUnreachable, ErrorKind::TimedOut] {
            let text = text(kind);
            assert!(!text.contains("start one") && text.contains("check the address"), "{text}");
        }
    }
}
