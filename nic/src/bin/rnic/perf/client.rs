//! `rnic perf client`.

use super::control::{Control, Message, PATIENCE, PORT, SideReport};
use super::endpoint::Endpoint;
use super::params::{Limit, Op, Params, Test, parse_size};
use super::progress::Progress;
use super::report::{Figures, Loss, Report, Run};
use super::server::{Side, verifiable};
use super::service::Service;
use super::stream::Sent;
use super::{Failure, counted_since, counters, pingpong, stop, stream, trace};
use crate::setup::Setup;
use rnic::Device;
use rnic::process::HostAddress;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

/// Sizes of `--all`: powers of two, 2 bytes to 8 MiB, as by perftest.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 1..=23;

/// A datagram that every port carries, also that of a 1500-byte Ethernet.
const UD_SIZE: u32 = 1024;

/// Messages that perftest keeps outstanding for each queue pair.
const DEPTH: u32 = 128;

/// Without a wish, a quarter of the queue is freed at a time, but no more than this many messages.
const CQ_MOD: u32 = 32;

/// Measure with the server at SERVER.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Over UC and UD messages may get lost. The bandwidth is then that of the messages that arrived, as the server \
                        counts them, and the report says how many did not; latency is measured with those that were answered.\n\
                        READ and atomics are of RC and XRC, WRITE is not of UD, and a datagram is one packet.\n\n\
                        Figures are those of perftest: MiB are 2^20 bytes, message rates are in millions, and the latency \
                        of WRITE and SEND is half of a round trip. The peak is the best 10 ms of a run.\n\
                        Exit code: 0 if all was measured, also when interrupted; 2 if it could not be."
)]
pub(super) struct Args {
    /// Address or host name of the server.
    #[arg(value_name = "SERVER", value_parser = server_address)]
    server: IpAddr,
    /// The address to measure from, or an interface or name of this host; without it, that of the configuration file, the
    /// one that routes to the server, or a free one of 127.0.0.1, 127.0.0.2, ...
    #[arg(long, value_name = "ADDRESS", value_parser = HostAddress::look_up)]
    bind: Option<HostAddress>,
    /// TCP port of the server.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    control_port: u16,
    /// The service.
    #[arg(long, short = 'c', value_enum, default_value = "rc")]
    service: Service,
    /// The operation to measure.
    #[arg(long, value_enum, default_value = "write")]
    op: Op,
    /// Bandwidth or latency.
    #[arg(long, value_enum, default_value = "bw")]
    test: Test,
    /// Let SEND or WRITE carry immediate data.
    #[arg(long)]
    imm: bool,
    /// Receive through one shared receive queue for all queue pairs. [SEND over RC and UD]
    #[arg(long)]
    srq: bool,
    /// Message size in bytes, or KiB or MiB with K or M. Repeat for several. [default: 64K for bandwidth, 1K over UD, 2 for
    /// latency, 8 for atomics, which have no other]
    #[arg(long = "size", short = 's', value_name = "BYTES", value_parser = parse_size)]
    sizes: Vec<u32>,
    /// All powers of two from 2 bytes to 8 MiB, over UD to 1 KiB.
    #[arg(long, short = 'a', conflicts_with = "sizes")]
    all: bool,
    /// Messages outstanding for each queue pair. [bandwidth only]
    #[arg(long, default_value_t = DEPTH)]
    depth: u32,
    /// Every so many sends one is signalled. [default: a quarter of the depth, 32 at most]
    #[arg(long, value_name = "N")]
    cq_mod: Option<u32>,
    /// Queue pairs.
    #[arg(long, default_value_t = 1)]
    qps: u32,
    /// Messages of each size and queue pair. [default: 5000 for bandwidth, 1000 for latency]
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "duration")]
    iterations: Option<u64>,
    /// Seconds for each size, instead of a number of messages.
    #[arg(long, value_name = "SECS")]
    duration: Option<f64>,
    /// Path MTU; without it, the largest that both ports carry.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Sleep on a completion channel instead of polling.
    #[arg(long)]
    events: bool,
    /// Let both sides send at the same time, and add up.
    #[arg(long)]
    bidirectional: bool,
    /// Do not compare what arrived with what was sent.
    #[arg(long)]
    no_verify: bool,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trace: trace::TraceArgs,
    /// A fault rule of this side's device, for tests.
    #[arg(long, hide = true)]
    fault: Vec<String>,
    #[command(flatten)]
    setup: Setup,
}

impl Args {
    fn params(&self) -> Params {
        // The defaults of perftest, as far as it has any.
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
            limit: self
                .duration
                .map_or(Limit::Iterations(self.iterations.unwrap_or(iterations)), Limit::Seconds),
            mtu: self.mtu,
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
    // On loopback, where every process has an address of its own, the route says nothing.
    let routed = (!args.server.is_loopback()).then_some(local);
    if let Some(HostAddress { ip, scope_id }) = args.bind {
        (config.address, config.scope_id) = (Some(ip), scope_id);
    }
    config.address = config.address.or(routed);
    config.faults.extend(args.fault.iter().cloned());
    let device = Device::open(&config)?;
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
        // Who interrupts gets a figure of the first size all the same, if of few messages.
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

/// The address of a server: of several that a name has, the first IPv4 address, else the first one.
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

/// Connects to the server; also gives the address of this side.
fn reach(server: SocketAddr) -> Result<(Control, IpAddr), Failure> {
    let stream = TcpStream::connect_timeout(&server, Duration::from_secs(5)).map_err(|error| {
        format!(
            "no rnic perf server at {server}: {error}; start one there with `rnic perf server --bind {}`",
            server.ip()
        )
    })?;
    let local = stream.local_addr().map_err(|error| format!("the control connection failed: {error}"))?;
    Ok((Control::new(stream, false)?, local.ip()))
}

/// The client's part in the run of one size, and what came of both.
fn measure(end: &Endpoint, size: u32, control: &mut Control) -> Result<Run, Failure> {
    let params = &end.params;
    end.prepare(size)?;
    control.send(&Message::Begin { size })?;
    match control.receive(PATIENCE)? {
        Message::Ready => {}
        other => return Err(control.unexpected(&other)),
    }
    let before = counters(&end.device);
    let mut progress = Progress::new(size, false);
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
    control.send(&Message::Finish { interrupted: stop::requested() })?;
    let server = match wait_for_report(end, control)? {
        Message::Report { report } => report,
        other => return Err(control.unexpected(&other)),
    };
    let mut run = Run {
        size,
        figures,
        loss: (!params.service.is_reliable()).then_some(Loss { sent: sent.messages, lost }),
        client: counted_since(&before, &end.device),
        server: server.counters.clone(),
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

/// Whether each addition took effect once.
fn check_sums(end: &Endpoint, sent: &Sent, server: &SideReport) -> Result<(), Failure> {
    if end.params.op != Op::FetchAdd || !end.params.verify {
        return Ok(());
    }
    for (side, added, asked) in
        [("server", server.added, sent.messages), ("client", end.added()?, server.messages)]
    {
        if added != asked {
            return Err(format!("{asked} additions made {added} at the {side}").into());
        }
    }
    Ok(())
}

fn wait_for_report(end: &Endpoint, control: &mut Control) -> Result<Message, Failure> {
    // The server of a bidirectional run may have as much to send still as it wants.
    if end.params.server_is_active() { stream::serve(end, control) } else { control.receive(PATIENCE) }
}

fn refuse_corruption(side: &str, corruption: Option<String>) -> Result<(), Failure> {
    match corruption {
        Some(what) => Err(format!("wrong data at the {side}: {what}").into()),
        None => Ok(()),
    }
}
