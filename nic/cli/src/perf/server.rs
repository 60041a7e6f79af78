//! `rnic perf server`.

use super::control::{Control, Message, PATIENCE, PORT, SideReport};
use super::delivery::Tally;
use super::endpoint::Endpoint;
use super::params::{Op, Params, Test};
use super::progress::Progress;
use super::stream::Arrivals;
use super::{Counters, Failure, counters, difference, pingpong, stream, trace};
use crate::setup::Setup;
use crate::stop;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic::Device;
use rnic::process::HostAddress;
use std::io::{ErrorKind, Write, stdout};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often to check for an interrupt while waiting for a client, in milliseconds.
const TICK: u16 = 100;

/// Wait for clients and measure with them until interrupted. Several clients can measure at the same time.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Serve this address, interface or name of this host. [default: the file's address, or the first free one of 127.0.0.1,
    /// 127.0.0.2, ...]
    #[arg(long, value_name = "ADDRESS", value_parser = HostAddress::look_up)]
    bind: Option<HostAddress>,
    /// Accept clients on this TCP port. 0 chooses a free one.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    control_port: u16,
    /// Exit after one client.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    setup: Setup,
    #[command(flatten)]
    trace: trace::TraceArgs,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut config = args.setup.device()?;
    config.address = args.bind.or(config.address);
    let device = config.open()?;
    let wanted = SocketAddr::new(device.address(), args.control_port);
    let listener = TcpListener::bind(wanted).map_err(|error| {
        format!("cannot listen on TCP {wanted}: {error}; choose another port with --control-port")
    })?;
    listener.set_nonblocking(true)?;
    let tracing = args.trace.start(&device, &config, "rnic perf server")?;
    let port = listener.local_addr()?.port();
    say(&format!("rnic perf server at {}, control port {port}", device.address()));
    serve_all(&device, &listener, args.once)?;
    tracing.map_or(Ok(()), trace::Tracing::finish)?;
    Ok(ExitCode::SUCCESS)
}

/// Serves each client in a thread of its own, or only one client.
fn serve_all(device: &Device, listener: &TcpListener, once: bool) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        while !stop::requested() {
            let Some(accepted) = accept(listener) else { continue };
            match accepted {
                Ok(control) if once => return serve(device, control).map(|line| say(&line)),
                Ok(control) => {
                    scope.spawn(|| match serve(device, control) {
                        Ok(line) => say(&line),
                        Err(_) if stop::requested() => {}
                        Err(error) => eprintln!("rnic: {error}"),
                    });
                }
                Err(error) => eprintln!("rnic: {error}"),
            }
        }
        Ok(())
    })
}

/// Prints a line and flushes it: scripts that start a server wait for the first line.
fn say(line: &str) {
    // The server serves clients even if its output cannot be written.
    let _ = writeln!(stdout(), "{line}").and_then(|()| stdout().flush());
}

/// Waits a tick for the next client.
fn accept(listener: &TcpListener) -> Option<Result<Control, Failure>> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    // The result of `accept` decides.
    let _ = poll(&mut fds, PollTimeout::from(TICK));
    match listener.accept() {
        Ok((stream, _)) => Some(Control::new(stream, true)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => {
            // A lack of descriptors, for example, may be temporary.
            std::thread::sleep(Duration::from_millis(u64::from(TICK)));
            Some(Err(format!("cannot accept a client: {error}").into()))
        }
    }
}

/// Measures with one client; returns a line for the log.
fn serve(device: &Device, mut control: Control) -> Result<String, Failure> {
    let outcome = session(device, &mut control);
    if let Err(error) = &outcome {
        let reason = if stop::requested() { "the server was stopped".to_owned() } else { error.to_string() };
        // If the connection failed, this fails as well.
        let _ = control.send(&Message::Failed { reason });
    }
    let peer = control.peer();
    outcome.map_err(|error| format!("client {peer}: {error}").into())
}

fn session(device: &Device, control: &mut Control) -> Result<String, Failure> {
    let start = Instant::now();
    let params = match control.receive(PATIENCE)? {
        Message::Request { params } => params,
        other => return Err(control.unexpected(&other)),
    };
    params.check()?;
    let mut end = Endpoint::new(device, &params)?;
    let mut address = control.peer().ip();
    control.send(&Message::End { end: end.describe() })?;
    match control.receive(PATIENCE)? {
        Message::End { end: peer } => {
            address = peer.address().unwrap_or(address);
            end.connect(peer)?;
        }
        other => return Err(control.unexpected(&other)),
    }
    control.send(&Message::Connected)?;
    let before = end.counters();
    for index in 0.. {
        // The client closes the connection after the last size, or when it is interrupted.
        let size = match control.receive(Duration::MAX) {
            Ok(Message::Begin { size }) if params.sizes.get(index) == Some(&size) => size,
            Ok(other) => return Err(control.unexpected(&other)),
            Err(_) if index > 0 && !stop::requested() => break,
            Err(error) => return Err(error),
        };
        let report = measure(&end, size, control)?;
        control.send(&Message::Report { report })?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let counted = difference(&before, end.counters());
    let repeated = summary(&counted);
    Ok(format!("client {address}: {}, {seconds:.1} s{repeated}", params.title()))
}

/// The loss and retransmission counters that are not 0, as the end of a line.
fn summary(counted: &Counters) -> String {
    let list: Vec<_> =
        Tally::of_server(counted).iter().map(|(name, value)| format!("{name} {value}")).collect();
    if list.is_empty() { String::new() } else { format!("; {}", list.join(", ")) }
}

/// The server's part of a run.
fn measure(end: &Endpoint, size: u32, control: &mut Control) -> Result<SideReport, Failure> {
    let params = &end.params;
    end.prepare(size)?;
    let (before, qps_before) = (counters(&end.device), end.counters());
    let mut arrivals = Arrivals::new(end);
    control.send(&Message::Ready)?;
    let mut report = SideReport::default();
    let mut finish = None;
    if params.server_is_active() {
        let mut progress = Progress::hidden();
        let sent = stream::send(end, size, &mut progress, &mut || match control.try_receive()? {
            None => Ok(stop::requested()),
            Some(message @ Message::Finish { interrupted, .. }) => {
                finish = Some(message);
                Ok(interrupted)
            }
            Some(other) => Err(control.unexpected(&other)),
        })?;
        (report.messages, report.seconds, report.peak) = (sent.messages, sent.seconds, sent.peak);
    }
    let message = match finish {
        Some(message) => message,
        None if params.test == Test::Lat => pingpong::answer(end, size, control)?,
        None if params.counts_arrivals() => arrivals.serve(control)?,
        None => stream::serve(end, control)?,
    };
    let Message::Finish { .. } = message else { return Err(control.unexpected(&message)) };
    let sum = arrivals.sum();
    (report.arrived, report.arrival_seconds) = (sum.messages, sum.seconds);
    report.added = end.added()?;
    if params.verify {
        report.corruption = end.verify(size, verifiable(params, size, Side::Server))?;
    }
    report.counters = difference(&before, counters(&end.device));
    report.qp_counters = difference(&qps_before, end.counters());
    Ok(report)
}

/// The side whose memory is verified.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

/// The number of bytes at the start of a message that must match the pattern at `side`.
pub(super) fn verifiable(params: &Params, size: u32, side: Side) -> usize {
    let size = size as usize;
    let arrives = match (params.op, params.test) {
        // The sum is checked instead.
        (Op::FetchAdd, _) => false,
        (Op::Read | Op::CmpSwap, Test::Bw) => side == Side::Client || params.bidirectional,
        (Op::Read | Op::CmpSwap, Test::Lat) => side == Side::Client,
        (_, Test::Bw) => side == Side::Server || params.bidirectional,
        (_, Test::Lat) => true,
    };
    match (arrives, params.op, params.test) {
        (false, ..) => 0,
        // The last byte carries the number of the message.
        (true, Op::Write, Test::Lat) if params.polls_memory() => size - 1,
        (true, ..) => size,
    }
}
