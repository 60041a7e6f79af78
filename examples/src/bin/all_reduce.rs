//! Processes that add up their vectors: the library `rnic-collectives` over sockets.
//!
//! ```text
//! cargo run --release -p rnic-examples --bin all_reduce                   three ranks, by all algorithms
//! ... -- --ranks 4 --bytes 1MB --algorithm ring                            four ranks, by one
//! ... -- --kill 1                                                          a rank that dies: the others say so, and end
//! ... -- --fault "tx p=0.01 drop" --selective-repeat on                    lost packets, which are repeated alone
//! ```
//!
//! The program starts a process for each rank. A rank says how its neighbours reach it, in a line of JSON; the program passes
//! that on, as a launcher of parallel programs does, and then tells all ranks to begin. What a rank does is in `work`: it is
//! what a rank does on the simulated hosts of `rnic fabric run all-reduce`, with the same library.

use rnic_collectives::{Algorithm, Collective, Communicator, Element, Offer, Plan, Settings, peers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ALL: [Algorithm; 4] =
    [Algorithm::Ring, Algorithm::Tree, Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling];
/// How long an operation may take: much longer than it does.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is to be done, in the words of the command line.
#[derive(Clone)]
struct Task {
    ranks: usize,
    bytes: u64,
    algorithms: Vec<Algorithm>,
    /// The rank that dies before it begins.
    kill: Option<usize>,
    /// A fault rule of every rank.
    faults: Vec<String>,
    selective_repeat: bool,
}

/// What a rank says of one operation, or why it cannot end.
type Said = Result<Done, String>;

/// An operation that is done.
#[derive(Serialize, Deserialize)]
struct Done {
    micros: f64,
    bytes: u64,
    messages: u64,
    /// Packets that were sent again.
    again: u64,
    verified: bool,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut task = Task {
        ranks: 3,
        bytes: 1 << 20,
        algorithms: ALL.to_vec(),
        kill: None,
        faults: Vec::new(),
        selective_repeat: false,
    };
    let mut rank = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        match word.as_str() {
            "--ranks" => task.ranks = value.parse()?,
            "--bytes" => task.bytes = rnic::cc::quantity::parse_size(value)?,
            "--algorithm" => task.algorithms = vec![value.parse()?],
            "--kill" => task.kill = Some(value.parse()?),
            "--fault" => task.faults.push(value.clone()),
            "--selective-repeat" => task.selective_repeat = value == "on",
            // A process of ours.
            "--rank" => rank = Some(value.parse()?),
            _ => {
                return Err(format!(
                    "{word} is not known: --ranks N, --bytes SIZE, --algorithm NAME, --kill RANK, --fault RULE, --selective-repeat on"
                )
                .into());
            }
        }
    }
    if !(2..=32).contains(&task.ranks) {
        return Err(format!("{} ranks: write 2 to 32", task.ranks).into());
    }
    if let Some(rank) = task.kill.filter(|rank| *rank >= task.ranks) {
        return Err(
            format!("there is no rank {rank} of {} to kill: they are counted from 0", task.ranks).into()
        );
    }
    match rank {
        Some(rank) => work(rank, &task),
        None => launch(&task, &arguments),
    }
}

/// The plan of one operation.
fn plan(task: &Task, algorithm: Algorithm) -> Outcome<Plan> {
    let count = usize::try_from(task.bytes / 8)?;
    Ok(Plan { collective: Collective::AllReduce, algorithm, element: Element::U64, count })
}

/// One line of the launcher.
fn line<T: for<'a> Deserialize<'a>>() -> Outcome<T> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// What a rank does.
fn work(rank: usize, task: &Task) -> Outcome<()> {
    let config = rnic::DeviceConfig {
        faults: task.faults.clone(),
        selective_repeat: task.selective_repeat,
        ..rnic::DeviceConfig::default()
    };
    let device = config.open()?;
    let mut neighbours = Vec::new();
    for algorithm in &task.algorithms {
        neighbours.extend(peers(&plan(task, *algorithm)?, rank, task.ranks)?);
    }
    let bytes = usize::try_from(task.bytes)?;
    let mut ours = Communicator::new(&device, rank, task.ranks, &neighbours, bytes, &Settings::default())?;

    let ranks: BTreeSet<usize> = neighbours.iter().map(|peer| peer.rank).collect();
    let offers: Vec<(usize, Offer)> =
        ranks.into_iter().map(|peer| Ok((peer, ours.offer(peer)?))).collect::<Outcome<_>>()?;
    println!("{}", serde_json::to_string(&offers)?);
    for offer in line::<Vec<Offer>>()? {
        ours.connect(&offer, &rnic::ConnectOptions::default())?;
    }

    for algorithm in &task.algorithms {
        let plan = plan(task, *algorithm)?;
        // Rank r begins with r, r + 1, r + 2, and so on.
        let numbers = (0..plan.count).flat_map(|index| ((rank + index) as u64).to_le_bytes());
        ours.data().write_at(0, &numbers.collect::<Vec<u8>>())?;
        println!("\"ready\"");
        let _: String = line()?;
        let before = device.counters().qp.retransmitted_pkts;
        let said = operate(&mut ours, &plan, task.ranks).map(|mut done| {
            done.again = device.counters().qp.retransmitted_pkts - before;
            done
        });
        let said: Said = said.map_err(|why| why.to_string());
        println!("{}", serde_json::to_string(&said)?);
        if said.is_err() {
            break;
        }
    }
    // Others may wait for acknowledgements of ours.
    let _: String = line()?;
    Ok(())
}

/// Runs an operation, and checks its result.
fn operate(ours: &mut Communicator, plan: &Plan, ranks: usize) -> Outcome<Done> {
    let (began, before) = (Instant::now(), ours.counts());
    ours.start(plan, began.elapsed())?;
    while !ours.poll(began.elapsed())? {
        if began.elapsed() > PATIENCE {
            return Err("the other ranks do not come".into());
        }
        std::thread::yield_now();
    }
    let micros = began.elapsed().as_secs_f64() * 1e6;
    let (ranks, data) = (ranks as u64, ours.data().to_vec()?);
    let is_sum = |(index, number): (usize, &[u8; 8])| {
        u64::from_le_bytes(*number) == ranks * index as u64 + ranks * (ranks - 1) / 2
    };
    let verified = data.as_chunks::<8>().0.iter().take(plan.count).enumerate().all(is_sum);
    let counts = ours.counts();
    let (bytes, messages) = (counts.bytes - before.bytes, counts.messages - before.messages);
    Ok(Done { micros, bytes, messages, again: 0, verified })
}

/// The process of a rank. It ends with us.
struct Rank {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Rank {
    fn start(rank: usize, arguments: &[String]) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).args(["--rank", &rank.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().ok_or("no pipe")?;
        let from = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Self { child, to, from })
    }

    fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> Outcome<T> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        Ok(serde_json::from_str(&line).map_err(|_| format!("a rank said {line:?}"))?)
    }

    fn tell(&mut self, what: &impl Serialize) -> Outcome<()> {
        writeln!(self.to, "{}", serde_json::to_string(what)?)?;
        Ok(())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the ranks, introduces them to each other, and prints what they say.
fn launch(task: &Task, arguments: &[String]) -> Outcome<()> {
    let mut ranks =
        (0..task.ranks).map(|rank| Rank::start(rank, arguments)).collect::<Outcome<Vec<Rank>>>()?;
    let mut offers = vec![Vec::new(); task.ranks];
    for rank in &mut ranks {
        for (to, offer) in rank.hear::<Vec<(usize, Offer)>>()? {
            offers.get_mut(to).ok_or("an offer to nobody")?.push(offer);
        }
    }
    ranks.iter_mut().zip(&offers).try_for_each(|(rank, offers)| rank.tell(offers))?;
    println!("{} ranks add up vectors of {} bytes", task.ranks, task.bytes / 8 * 8);
    println!(
        "{:<20}{:>10}{:>16}{:>12}{:>10}{:>12}",
        "algorithm", "us", "bytes a rank", "messages", "Gb/s", "sent again"
    );
    for algorithm in &task.algorithms {
        for rank in &mut ranks {
            let _: String = rank.hear()?;
        }
        if let Some(dead) = task.kill {
            return bury(ranks, dead);
        }
        ranks.iter_mut().try_for_each(|rank| rank.tell(&"begin"))?;
        let mut done = Vec::new();
        for rank in &mut ranks {
            done.push(rank.hear::<Said>()??);
        }
        if !done.iter().all(|done| done.verified) {
            return Err(format!("{algorithm}: a rank has another sum").into());
        }
        let (most, mean) = (done.iter().fold(0.0, |most: f64, of| most.max(of.micros)), task.ranks as u64);
        let bytes = done.iter().map(|done| done.bytes).sum::<u64>() / mean;
        let messages = done.iter().map(|done| done.messages).sum::<u64>() / mean;
        let bus = Collective::AllReduce.bus_share(task.ranks) * 8e-3 * task.bytes as f64 / most;
        let again: u64 = done.iter().map(|done| done.again).sum();
        println!("{:<20}{most:>10.0}{bytes:>16}{messages:>12}{bus:>10.2}{again:>12}", algorithm.name());
    }
    ranks.iter_mut().try_for_each(|rank| rank.tell(&"end"))?;
    println!("ok: all {} ranks have the sum, by {} algorithms", task.ranks, task.algorithms.len());
    Ok(())
}

/// Kills a rank and has the others begin. Each of them has to end with an error.
fn bury(mut ranks: Vec<Rank>, dead: usize) -> Outcome<()> {
    drop(ranks.remove(dead));
    let mut left: Vec<_> = (0..=ranks.len()).filter(|rank| *rank != dead).zip(ranks).collect();
    left.iter_mut().try_for_each(|(_, rank)| rank.tell(&"begin"))?;
    for (number, rank) in &mut left {
        match rank.hear::<Said>()? {
            Ok(_) => return Err(format!("rank {number} is done without rank {dead}").into()),
            Err(why) => println!("rank {number}: {why}"),
        }
    }
    left.iter_mut().try_for_each(|(_, rank)| rank.tell(&"end"))?;
    println!("ok: rank {dead} died, and all {} others have ended with an error", left.len());
    Ok(())
}
