//! A peer in a separate process: its own side.

use crate::protocol::{
    Command, Completion, Connection, Data, Opening, Piece, Place, Reply, Sizes, Traffic, Verb, all_rights,
};
use crate::{os, pattern};
use rnic::{
    CompletionQueue, Device, Gather, MemoryRegion, Operation, ProtectionDomain, QpAddress, QpCap, QpInit,
    QueuePair, RecvWr, SendFlags, SendWr, WcStatus,
};
use std::error::Error;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// Seconds after which a peer exits by itself, in case the test that started it has vanished.
const LIFETIME: u32 = 600;

/// The result of a command; errors are reported to the test.
type Answer<T> = Result<T, Box<dyn Error>>;

/// Serves commands until the input ends.
///
/// # Errors
///
/// Standard input or output failed, or a line is not a command.
pub fn run() -> Answer<()> {
    nix::unistd::alarm::set(LIFETIME);
    let mut peer = State::default();
    // Read without holding a lock across a fork.
    let mut line = String::new();
    loop {
        line.clear();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(());
        }
        let command = serde_json::from_str(&line)?;
        let reply = peer.act(command).unwrap_or_else(|error| Reply::Failed(error.to_string()));
        say(&reply)?;
    }
}

/// Writes one reply.
pub(crate) fn say(reply: &Reply) -> Answer<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(reply)?)?;
    Ok(out.flush()?)
}

/// One queue pair with its completion queue.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
}

/// Everything that a peer owns. Fields are dropped in this order: users before the resources they use.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) ends: Vec<Option<End>>,
    pub(crate) regions: Vec<Option<MemoryRegion>>,
    pub(crate) pd: Option<ProtectionDomain>,
    pub(crate) device: Option<Device>,
    child: Option<nix::unistd::Pid>,
}

impl State {
    fn act(&mut self, command: Command) -> Answer<Reply> {
        match command {
            Command::Open(opening) => return self.open(&opening),
            Command::Close => *self = Self { child: self.child, ..Self::default() },
            Command::CreateQp(sizes) => return self.create_qp(sizes),
            Command::Connect(qp, to, options) => self.connect(qp, &to, options)?,
            Command::DestroyQp(qp) => {
                drop(self.ends.get_mut(qp).and_then(Option::take).ok_or("no such end")?)
            }
            Command::Register(len, seed) => return self.register(len, seed),
            Command::Deregister(id) => {
                drop(self.regions.get_mut(id).and_then(Option::take).ok_or("no such region")?);
            }
            Command::Unmap(p) => os::unmap(self.region(p.region)?, p.offset..p.offset + p.len)?,
            Command::Post(qp, wr_id, verb, data) => {
                let data = self.data(&data)?;
                self.end(qp)?.qp.post(wr_id, operation(verb), data)?;
            }
            Command::PostRecv(qp, wr_id, pieces) => {
                let data = self.gather(&pieces)?;
                self.end(qp)?.qp.post_recv(RecvWr { wr_id, data })?;
            }
            Command::Wait(qp, count, millis) => {
                return self.wait(qp, count, Duration::from_millis(millis));
            }
            Command::Run(qp, traffic) => return self.run(qp, &traffic),
            Command::Check(piece, seed, from) => return self.check(piece, seed, from),
            Command::Counters => {
                let counters = self.device()?.counters();
                return Ok(Reply::Counters(counters.iter().map(|(n, v)| (n.to_owned(), v)).collect()));
            }
            Command::State(qp) => return Ok(Reply::State(self.end(qp)?.qp.state().to_string())),
            Command::Events(count, millis) => return self.events(count, Duration::from_millis(millis)),
            Command::Port => return self.port(),
            Command::CloseSocket => os::close_socket(self.device()?.address())?,
            Command::Probe(qp, place, region, count) => return self.probe(qp, place, region, count),
            Command::Poll(qp, millis) => {
                let until = Instant::now() + Duration::from_millis(millis);
                let cq = &self.end(qp)?.cq;
                while Instant::now() < until {
                    if let Some(wc) = cq.poll_one() {
                        return Err(format!("nothing should complete: {wc:?}").into());
                    }
                }
            }
            Command::BackgroundTime => return Ok(Reply::Time(background_time()?)),
            Command::Fork(stay) => self.child = Some(os::fork(self, stay)?),
            Command::Reap => {
                let child = self.child.take().ok_or("there is no child")?;
                return Ok(Reply::Reaped(format!("{:?}", nix::sys::wait::waitpid(child, None)?)));
            }
        }
        Ok(Reply::Done)
    }

    fn open(&mut self, opening: &Opening) -> Answer<Reply> {
        let device = opening.config()?.open()?;
        let address = device.address();
        self.pd = Some(device.alloc_pd()?);
        self.device = Some(device);
        Ok(Reply::Opened(address))
    }

    fn events(&self, count: usize, limit: Duration) -> Answer<Reply> {
        let deadline = Instant::now() + limit;
        let mut names = Vec::new();
        while names.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(event) = self.device()?.wait_event(left)? else { break };
            names.push(event.name().to_owned());
        }
        Ok(Reply::Events(names))
    }

    fn port(&self) -> Answer<Reply> {
        let device = self.device()?;
        let port = device.port_attr();
        let gids = device.gid_table().into_iter();
        let gids = gids.map(|entry| (entry.gid.to_string(), entry.interface.map(|i| i.name))).collect();
        Ok(Reply::Port(port.active, port.active_mtu.bytes(), gids))
    }

    fn device(&self) -> Answer<&Device> {
        self.device.as_ref().ok_or_else(|| "no device is open".into())
    }

    fn pd(&self) -> Answer<&ProtectionDomain> {
        self.pd.as_ref().ok_or_else(|| "no device is open".into())
    }

    fn end(&self, id: usize) -> Answer<&End> {
        self.ends.get(id).and_then(Option::as_ref).ok_or_else(|| "no such end".into())
    }

    fn region(&self, id: usize) -> Answer<&MemoryRegion> {
        self.regions.get(id).and_then(Option::as_ref).ok_or_else(|| "no such region".into())
    }

    fn create_qp(&mut self, sizes: Sizes) -> Answer<Reply> {
        let cq = self.device()?.create_cq(sizes.cqe)?;
        let cap = QpCap {
            max_send_wr: sizes.send_wr,
            max_recv_wr: sizes.recv_wr,
            max_send_sge: sizes.sge,
            max_recv_sge: sizes.sge,
            max_inline_data: 256,
        };
        let qp = self.pd()?.create_qp(&QpInit { cap, ..QpInit::rc(&cq, &cq) })?;
        let address = qp.address();
        self.ends.push(Some(End { qp, cq }));
        Ok(Reply::Qp(self.ends.len() - 1, address))
    }

    fn connect(&self, qp: usize, to: &QpAddress, options: Connection) -> Answer<()> {
        Ok(self.end(qp)?.qp.connect(to, &options.into())?)
    }

    fn register(&mut self, len: usize, seed: Option<u64>) -> Answer<Reply> {
        let region = self.pd()?.register(len, all_rights())?;
        if let Some(seed) = seed {
            let mut block = vec![0; len.min(1 << 20)];
            for offset in (0..len).step_by(block.len()) {
                let part = block.len().min(len - offset);
                pattern::fill(seed, offset as u64, &mut block[..part]);
                region.write_at(offset, &block[..part])?;
            }
        }
        let place = Place { addr: region.addr(), rkey: region.rkey() };
        self.regions.push(Some(region));
        Ok(Reply::Region(self.regions.len() - 1, place))
    }

    fn gather(&self, pieces: &[Piece]) -> Answer<Gather> {
        let mut list = Vec::with_capacity(pieces.len());
        for piece in pieces {
            list.push(self.region(piece.region)?.slice(piece.offset..piece.offset + piece.len)?);
        }
        Ok(Gather::from(list.as_slice()))
    }

    fn data(&self, data: &Data) -> Answer<Gather> {
        match data {
            Data::Pieces(pieces) => self.gather(pieces),
            Data::Inline(seed, len) => Ok(Gather::Inline(pattern::bytes(*seed, *len).into())),
        }
    }

    fn wait(&self, qp: usize, count: usize, limit: Duration) -> Answer<Reply> {
        let cq = &self.end(qp)?.cq;
        let deadline = Instant::now() + limit;
        let mut completions = Vec::new();
        while completions.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(wc) = cq.wait(left) else { break };
            completions.push(Completion::from(wc));
        }
        Ok(Reply::Completions(completions))
    }

    fn run(&self, qp: usize, traffic: &Traffic) -> Answer<Reply> {
        let end = self.end(qp)?;
        let region = self.region(traffic.region)?;
        let (mut posted, mut done) = (0, 0);
        while done < traffic.count {
            while posted < traffic.count && posted - done < traffic.depth {
                let offset = (posted % traffic.slots) as usize * traffic.size;
                let data = region.slice(offset..offset + traffic.size)?;
                let verb = match traffic.verb {
                    Verb::Send(imm) => Verb::Send(imm),
                    Verb::Write(place, imm) => Verb::Write(place.plus(offset as u64), imm),
                    Verb::Read(place) => Verb::Read(place.plus(offset as u64)),
                };
                end.qp.post_send(SendWr::new(posted, operation(verb), data).flags(SendFlags::SIGNALED))?;
                posted += 1;
            }
            let wc = end.cq.wait(crate::peer::LIMIT / 2)?;
            if wc.status != WcStatus::Success {
                return Ok(Reply::Ran(done, Some(wc.into())));
            }
            if wc.wr_id != done {
                return Err(format!("completion {} came where {done} was due", wc.wr_id).into());
            }
            done += 1;
        }
        Ok(Reply::Ran(done, None))
    }

    fn probe(&self, qp: usize, place: Place, region: usize, count: u64) -> Answer<Reply> {
        let end = self.end(qp)?;
        let into = self.region(region)?.slice(0..8)?;
        let mut took = Vec::new();
        for nth in 0..count {
            let start = Instant::now();
            end.qp.read(nth, into, place.into())?;
            let wc = end.cq.wait(crate::peer::LIMIT / 2)?;
            if wc.status != WcStatus::Success {
                return Err(format!("READ {}: {}", wc.wr_id, wc.status).into());
            }
            took.push(u64::try_from(start.elapsed().as_micros())?);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Reply::Probed(took))
    }

    fn check(&self, piece: Piece, seed: u64, from: u64) -> Answer<Reply> {
        let region = self.region(piece.region)?;
        let mut block = vec![0; piece.len.min(1 << 20)];
        for offset in (0..piece.len).step_by(block.len().max(1)) {
            let part = block.len().min(piece.len - offset);
            region.read_at(piece.offset + offset, &mut block[..part])?;
            if let Some(at) = pattern::mismatch(seed, from + offset as u64, &block[..part]) {
                return Ok(Reply::Mismatch(Some(offset + at)));
            }
        }
        Ok(Reply::Mismatch(None))
    }
}

/// Processor time of all threads of this process with the library's name, in milliseconds.
fn background_time() -> Answer<u64> {
    let mut nanos = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == "rnic" {
            // The first number is the time on a processor, in nanoseconds (Documentation/scheduler/sched-stats).
            let stat = std::fs::read_to_string(path.join("schedstat"))?;
            nanos += stat.split(' ').next().unwrap_or("").parse::<u64>()?;
        }
    }
    Ok(nanos / 1_000_000)
}

fn operation(verb: Verb) -> Operation {
    match verb {
        Verb::Send(imm) => Operation::Send { imm, invalidate: None },
        Verb::Write(place, imm) => Operation::Write { remote: place.into(), imm },
        Verb::Read(place) => Operation::Read { remote: place.into() },
    }
}
