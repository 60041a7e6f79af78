//! `rnic fabric serve`: a fabric whose switches and hosts a real subnet manager finds, configures and watches.
//!
//! The agents are in `rnic_fabric::subnet`. Here are the sockets of ibsim's protocol (`sockets`), and what people say
//! meanwhile (`commands`). One thread waits for all of them.

mod commands;
mod sockets;

use super::Output;
use super::error::{Problem, Status};
use super::set::Changes;
use super::source::Source;
use commands::{Command, HELP};
use rnic_fabric::subnet::{Refusals, Served, Tables};
use rnic_fabric::topology::Topology;
use sockets::{LONGEST_NAME, Sockets};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long nothing happens before it is looked whether to end.
const TICK: u16 = 100;

/// How often traps and requests are sent again that nobody has answered.
const REPEAT: Duration = Duration::from_secs(1);

/// A second program wants to be the subnet manager of a node. Programs go on without it, so it is to be seen here.
const SECOND_MANAGER: &str =
    "refused: a second subnet manager at one node. Start it with another SIM_HOST.\n";

/// The longest command.
const LONGEST_LINE: usize = 4096;

/// Where distributions put the library that connects programs.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib/aarch64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib64/umad2sim/libumad2sim.so",
    "/usr/lib/umad2sim/libumad2sim.so",
];

/// Have a subnet manager, such as OpenSM, configure a scenario's fabric.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The fabric speaks the protocol of ibsim: programs connect with its library libumad2sim.so. Management is \
                  answered at once; virtual time moves on only with the command `run` or with --pace. Commands are read \
                  from standard input: `help` lists them."
)]
pub(super) struct Args {
    /// The name of a scenario of `rnic fabric list`, or a file.
    #[arg(value_name = "NAME|FILE")]
    scenario: String,
    #[command(flatten)]
    changes: Changes,
    /// The name by which programs find the fabric. [default: the environment's IBSIM_SOCKNAME, or sim]
    #[arg(long, value_name = "NAME")]
    socket: Option<String>,
    /// Save what the subnet manager has written to this file, whenever it has written something and at the end: TOML, or
    /// JSON if it ends in .json. A scenario reads it with `[subnet] tables = "FILE"`.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// How much virtual time passes in a second, such as "1 ms". Without it, it is held.
    #[arg(long, value_name = "TIME", value_parser = pace)]
    pace: Option<Duration>,
    /// The seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn pace(text: &str) -> Result<Duration, String> {
    rnic::cc::quantity::parse_duration(text).map_err(|why| why.to_string())
}

/// A server at work.
struct Server<'a> {
    args: &'a Args,
    served: Served,
    sockets: Sockets,
    /// The state of the tables that were saved, and of those that were seen last.
    saved: u64,
    seen: u64,
    /// Second subnet managers at a node, as far as people were told of them.
    told: u64,
    was_active: bool,
    line: Vec<u8>,
    has_input: bool,
    /// When what nobody has answered was sent again, and when virtual time moved on.
    repeated: Instant,
    moved: Instant,
}

/// Serves until it is told to end.
pub(super) fn run(
    args: &Args,
    stop: &(dyn Fn() -> bool + Sync),
    out: &mut Output<'_>,
) -> Result<Status, Problem> {
    let named = args.socket.clone().or_else(|| std::env::var("IBSIM_SOCKNAME").ok());
    let socket = named.unwrap_or_else(|| "sim".to_owned());
    if socket.is_empty() || socket.len() > LONGEST_NAME {
        let why = format!("write a name of 1 to {LONGEST_NAME} bytes");
        return Err(Problem::Option { option: "--socket", why });
    }
    let source = Source::find(&args.scenario)?;
    let scenario = source.with(&args.changes)?;
    let failed = |error| Problem::scenario(&*source.name, &error);
    let run = scenario.prepare(&source.base, args.seed).map_err(failed)?;
    let served = Served::new(run)
        .map_err(|why| Problem::Scenario { place: source.name.clone(), why: why.to_string() })?;
    let sockets = Sockets::bind(&socket).map_err(|why| Problem::Option {
        option: "--socket",
        why: format!("cannot serve as `{socket}`: {why}"),
    })?;
    out.print(&greeting(&scenario.name, &socket, served.topology()))?;
    let now = Instant::now();
    let mut server = Server {
        args,
        served,
        sockets,
        saved: 0,
        seen: 0,
        told: 0,
        was_active: false,
        line: Vec::new(),
        has_input: true,
        repeated: now,
        moved: now,
    };
    while !stop() {
        if !server.turn(out)? {
            break;
        }
    }
    server.save(args.save.as_deref())?;
    Ok(Status::Passed)
}

/// What to do now, for people.
fn greeting(scenario: &str, socket: &str, topology: &Topology) -> String {
    let (hosts, nodes) = (topology.hosts(), topology.nodes.len());
    let (switches, cables) = (nodes - hosts, topology.cables.len());
    let library = LIBRARIES.into_iter().find(|path| Path::new(path).exists());
    let hint = if library.is_none() { " (install ibsim-utils, and write where it is)" } else { "" };
    let library = library.unwrap_or("libumad2sim.so");
    let name = if socket == "sim" { String::new() } else { format!("IBSIM_SOCKNAME={socket} ") };
    let program =
        |host: &str, program: &str| format!("  {name}SIM_HOST={host} LD_PRELOAD={library} {program}\n");
    let (first, last) = (topology.name(0), topology.name(hosts.saturating_sub(1)));
    format!(
        "Serving {scenario} as `{socket}`: {hosts} hosts, {switches} switches, {cables} cables.\n\n\
         A subnet manager and other programs, in other shells{hint}:\n{}{}{}\n\
         Commands:\n  {}\n",
        program(first, "opensm"),
        program(last, "ibnetdiscover"),
        program(last, "perfquery -x"),
        HELP.trim_end().replace('\n', "\n  "),
    )
}

impl Server<'_> {
    /// Waits for something, and does it. False at the end.
    fn turn(&mut self, out: &mut Output<'_>) -> Result<bool, Problem> {
        let stdin = std::io::stdin();
        let input = self.has_input.then(|| stdin.as_fd());
        let wait = self.sockets.wait(input, if self.args.pace.is_some() { TICK / 10 } else { TICK });
        let ready = wait.map_err(|why| Problem::Option { option: "--socket", why: why.to_string() })?;
        let is_busy = self.sockets.serve(&ready, &mut self.served);
        if self.repeated.elapsed() >= REPEAT {
            self.repeated = Instant::now();
            self.served.repeat();
        }
        if let Some(pace) = self.args.pace {
            let passed = self.moved.elapsed();
            self.moved = Instant::now();
            self.run_for(pace.mul_f64(passed.as_secs_f64()))?;
        }
        let managers = self.served.clients().refusals().managers();
        if managers > std::mem::replace(&mut self.told, managers) {
            out.print(SECOND_MANAGER)?;
        }
        let goes_on = !ready.input || self.read(out)?;
        self.sockets.transmit(&mut self.served);
        if !is_busy {
            self.look(out)?;
        }
        Ok(goes_on)
    }

    /// Nothing is to be done: says what has changed, and saves it.
    fn look(&mut self, out: &mut Output<'_>) -> Result<(), Problem> {
        let version = self.served.subnet().version();
        // The subnet manager has written nothing for a while.
        if version == self.seen && version != self.saved {
            self.saved = version;
            self.save(self.args.save.as_deref())?;
            let is_active = self.served.subnet().is_active();
            if is_active && !self.was_active {
                out.print("All links are active.\n")?;
            }
            self.was_active = is_active;
        }
        self.seen = version;
        Ok(())
    }

    /// Reads commands. False at the last.
    fn read(&mut self, out: &mut Output<'_>) -> Result<bool, Problem> {
        let mut buffer = [0; 1024];
        // Past the buffer of the library, which `poll` does not see.
        match nix::unistd::read(std::io::stdin().as_fd(), &mut buffer) {
            // It is closed: the fabric is served until a signal comes.
            Ok(0) | Err(_) => self.has_input = false,
            Ok(length) => self.line.extend_from_slice(&buffer[..length]),
        }
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            match Command::read(&String::from_utf8_lossy(&line)) {
                Ok(None) => {}
                Ok(Some(Command::Quit)) => return Ok(false),
                Ok(Some(command)) => {
                    let told = self.obey(command).unwrap_or_else(|why| format!("{why}\n"));
                    out.print(&told)?;
                }
                Err(why) => out.print(&format!("{why}\n"))?,
            }
        }
        if self.line.len() > LONGEST_LINE {
            self.line.clear();
        }
        Ok(true)
    }

    /// Does what a command says. Returns what is printed.
    fn obey(&mut self, command: Command) -> Result<String, Problem> {
        match command {
            Command::Cut(name) => self.set_cables(&name, false),
            Command::Mend(name) => self.set_cables(&name, true),
            Command::Run(time) => {
                self.run_for(time)?;
                Ok(self.now())
            }
            Command::Save(file) => {
                let Some(file) = file.as_deref().or(self.args.save.as_deref()) else {
                    return Ok("save where? Write `save FILE`\n".to_owned());
                };
                self.save(Some(file))?;
                Ok(format!("saved {}\n", file.display()))
            }
            Command::Status => Ok(self.status()),
            Command::Help | Command::Quit => Ok(HELP.to_owned()),
        }
    }

    fn set_cables(&mut self, name: &str, is_whole: bool) -> Result<String, Problem> {
        let cables = match self.served.topology().cables_named(name) {
            Ok(cables) => cables,
            Err(why) => return Ok(format!("{why}\n")),
        };
        let names: Vec<String> =
            cables.iter().map(|cable| self.served.topology().cable_name(*cable)).collect();
        cables.into_iter().for_each(|cable| self.served.set_cable(cable, is_whole));
        Ok(format!("{} {}\n", if is_whole { "mended" } else { "cut" }, names.join(", ")))
    }

    fn run_for(&mut self, time: Duration) -> Result<(), Problem> {
        let failed = |error: rnic_fabric::run::RunError| Problem::Scenario {
            place: self.args.scenario.clone(),
            why: error.to_string(),
        };
        self.served.run_for(time).map_err(failed)
    }

    /// The time, and what has become of the packets until now.
    fn now(&mut self) -> String {
        let run = self.served.run();
        let now = run.elapsed();
        let tally = run.fabric().lock().tally();
        let stuck = run.fabric().lock().stuck().len();
        let dropped: u64 = tally.drops.values().sum();
        let finished = run.flows().iter().filter(|flow| flow.finished.is_some()).count();
        let stuck = if stuck > 0 { format!(", {stuck} ports deadlocked") } else { String::new() };
        let groups = run.groups();
        let groups = if groups.is_empty() {
            String::new()
        } else {
            let finished = groups.iter().filter(|group| group.finished.is_some()).count();
            format!(", {finished} of {} collective operations finished", groups.len())
        };
        format!(
            "at {now:?}: {} packets delivered, {dropped} dropped, {} under way, {finished} flows finished{groups}{stuck}\n",
            tally.delivered, tally.inside
        )
    }

    fn status(&mut self) -> String {
        let mut text = self.now();
        let subnet = self.served.subnet();
        let topology = self.served.topology();
        let lids = |node: usize| {
            format!("  {} lid {} guid {:#018x}\n", topology.name(node), subnet.lid(node), subnet.guid(node))
        };
        (0..topology.nodes.len()).for_each(|node| text.push_str(&lids(node)));
        for (group, lid) in subnet.groups() {
            text.push_str(&format!("  multicast group {group} lid {lid:#06x}\n"));
        }
        let active = (0..topology.cables.len()).filter(|cable| subnet.carries(*cable)).count();
        let programs = self.served.clients().connected().count();
        text.push_str(&format!("{active} of {} cables active, {programs} programs\n", topology.cables.len()));
        text + &refused(self.served.clients().refusals())
    }

    fn save(&self, file: Option<&Path>) -> Result<(), Problem> {
        let Some(file) = file else { return Ok(()) };
        let text = write(&self.served.tables(), file)?;
        std::fs::write(file, text).map_err(Problem::write(file))
    }
}

/// What programs have asked for in vain.
fn refused(refusals: &Refusals) -> String {
    let mut text: String =
        refusals.kinds().map(|(kind, times)| format!("  refused {times} times: {kind}\n")).collect();
    if refusals.others() > 0 {
        text.push_str(&format!("  refused {} times: others\n", refusals.others()));
    }
    text
}

/// Tables as text.
fn write(tables: &Tables, file: &Path) -> Result<String, Problem> {
    if file.extension().is_some_and(|end| end == "json") {
        return Ok(serde_json::to_string_pretty(tables)? + "\n");
    }
    let wrong =
        |why: toml::ser::Error| Problem::Scenario { place: file.display().to_string(), why: why.to_string() };
    toml::to_string(tables).map_err(wrong)
}
