//! `rnic perf server`.

use super::control::{Control, Message, PATIENCE, PORT, SideReport};
use super::endpoint::Endpoint;
use super::params::{Op, Params, Test};
use super::progress::Progress;
use super::stream::Arrivals;
use super::{Failure, counted_since, counters, pingpong, stop, stream, trace};
use crate::setup::Setup;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rnic::Device;
use rnic::process::HostAddress;
use std::io::{ErrorKind, Write, stdout};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long to wait for a client before looking whether the user wants to stop, in milliseconds.
const TICK: u16 = 100;

/// Serve clients, several at a time, until interrupted.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The address to serve, or an interface or name of this host; without it, that of the configuration file, or the first
    /// free one of 127.0.0.1, 127.0.0.2, ...
    #[arg(long, value_name = "ADDRESS", value_parser = HostAddress::look_up)]
    bind: Option<HostAddress>,
    /// TCP port, at the same address, where clients say what to measure. 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    control_port: u16,
    /// End after one client.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    setup: Setup,
    #[command(flatten)]
    trace: trace::TraceArgs,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut config = args.setup.device()?;
    if let Some(HostAddress { ip, scope_id }) = args.bind {
        (config.address, config.scope_id) = (Some(ip), scope_id);
    }
    let device = Device::open(&config)?;
    let wanted = SocketAddr::new(device.address(), args.control_port);
    let listener = TcpListener::bind(wanted)
        .map_err(|error| format!("cannot listen for clients at {wanted}: {error}; see --control-port"))?;
    listener.set_nonblocking(true)?;
    let tracing = args.trace.start(&device, &config, "rnic perf server")?;
    let port = listener.local_addr()?.port();
    say(&format!("rnic perf server at {}, control port {port}", device.address()));
    serve_all(&device, &listener, args.once)?;
    tracing.map_or(Ok(()), trace::Tracing::finish)?;
    Ok(ExitCode::SUCCESS)
}

/// Serves clients as they come, each in a thread of its own, or one and no more.
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

/// Prints a line at once, also into a pipe: whoever starts a server waits for the first.
fn say(line: &str) {
    // A reader that went away does not keep clients from being served.
    let _ = writeln!(stdout(), "{line}").and_then(|()| stdout().flush());
}

/// The next client, if one comes soon.
fn accept(listener: &TcpListener) -> Option<Result<Control, Failure>> {
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    // Whatever comes of it, accept knows better.
    let _ = poll(&mut fds, PollTimeout::from(TICK));
    match listener.accept() {
        Ok((stream, _)) => Some(Control::new(stream, true)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => {
            // Such as a lack of descriptors, which may pass.
            std::thread::sleep(Duration::from_millis(u64::from(TICK)));
            Some(Err(format!("cannot accept a client: {error}").into()))
        }
    }
}

/// Measures with one client; gives a line for the log.
fn serve(device: &Device, mut control: Control) -> Result<String, Failure> {
    let outcome = session(device, &mut control);
    if let Err(error) = &outcome {
        let reason = if stop::requested() { "the server was stopped".into() } else { error.to_string() };
        // If the connection is the reason, this goes nowhere.
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
    control.send(&Message::End { end: end.describe() })?;
    match control.receive(PATIENCE)? {
        Message::End { end: peer } => end.connect(peer)?,
        other => return Err(control.unexpected(&other)),
    }
    control.send(&Message::Connected)?;
    for index in 0.. {
        // The client closes the connection when it is done, or has had enough.
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
    Ok(format!("client {}: {}, {seconds:.1} s", control.peer(), params.title()))
}

/// The server's part in the run of one size.
fn measure(end: &Endpoint, size: u32, control: &mut Control) -> Result<SideReport, Failure> {
    let params = &end.params;
    end.prepare(size)?;
    let before = counters(&end.device);
    let mut arrivals = Arrivals::new(end);
    control.send(&Message::Ready)?;
    let mut report = SideReport::default();
    let mut finish = None;
    if params.server_is_active() {
        let mut progress = Progress::new(size, true);
        let sent = stream::send(end, size, &mut progress, &mut || match control.try_receive()? {
            None => Ok(stop::requested()),
            Some(message @ Message::Finish { interrupted }) => {
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
    (report.arrived, report.arrival_seconds, report.arrival_peak) = (sum.messages, sum.seconds, sum.peak);
    report.added = end.added()?;
    if params.verify {
        report.corruption = end.verify(size, verifiable(params, size, Side::Server))?;
    }
    report.counters = counted_since(&before, &end.device);
    Ok(report)
}

/// Which side's memory is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Server,
    Client,
}

/// How many of the first bytes of a message arrive at `side` as the pattern has them.
pub(super) fn verifiable(params: &Params, size: u32, side: Side) -> usize {
    let size = size as usize;
    let arrives = match (params.op, params.test) {
        // What was added up is another check.
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
