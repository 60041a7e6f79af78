//! A device and the resources of its program.

use super::Check;
use super::arena::Arena;
use super::ledger::Posted;
use super::plan::{HostPlan, Plan, Service};
use super::rng::mix;
use super::witness::Witness;
use rnic::engine::PartnerSetup;
use rnic::sim::{DeviceSetup, Net};
use rnic::{
    Access, CompletionQueue, Device, MemoryRegion, Mtu, ProtectionDomain, QpInit, SharedReceiveQueue,
    SrqInit, XrcDomain,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

/// Bytes between two parts of the memory that nobody may access.
const GUARD: usize = 64;
/// Words that several connections add to; each is used until too many additions to it are uncertain.
pub(crate) const CELLS: usize = 64;

/// Programs of a host that follow one another at an address.
const SLOTS: u64 = 3;

/// All access rights that a peer may have.
pub(crate) fn all_rights() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::MW_BIND
        | Access::FLUSH_GLOBAL
}

/// An addition to a shared word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addition {
    pub(crate) id: u64,
    pub(crate) add: u64,
    /// The previous value, once it is known.
    pub(crate) before: Option<u64>,
    /// Its connection failed: the addition may or may not have taken effect.
    pub(crate) uncertain: bool,
}

/// A shared receive queue, and the receives posted to it.
pub(crate) struct Shared {
    pub(crate) queue: SharedReceiveQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) pool: Range<usize>,
    pub(crate) posted: BTreeMap<u64, Posted>,
    pub(crate) size: u32,
    /// Receives that queue pairs consumed and that ended without a completion.
    pub(crate) lost: u32,
}

/// The layout of the memory.
pub(crate) struct Layout {
    pub(crate) cells: Range<usize>,
    /// For receives of the shared receive queue and of the XRC one.
    pub(crate) shared: [Range<usize>; 2],
    /// By connection and side: for sends, for receives, and the part that its peer may access.
    pub(crate) ends: BTreeMap<(usize, usize), [Range<usize>; 3]>,
    pub(crate) len: usize,
}

impl Layout {
    fn new(plan: &Plan, number: usize) -> Self {
        let mut at = GUARD;
        let mut part = |len: usize| {
            let start = at;
            at = (start + len + GUARD).next_multiple_of(8);
            start..start + len
        };
        let here = |side: usize| plan.conns.iter().filter(move |conn| conn.hosts[side] == number);
        let longest = here(0).chain(here(1)).map(|conn| conn.longest).max().unwrap_or(0);
        let cells = part(CELLS * 8);
        let shared = [part(longest * 8 + 512), part(longest * 8 + 512)];
        let mut ends = BTreeMap::new();
        for (index, conn) in plan.conns.iter().enumerate() {
            for side in (0..2).filter(|side| conn.hosts[*side] == number) {
                ends.insert(
                    (index, side),
                    [part(conn.longest * 8 + 2048), part(conn.longest * 10 + 1024), part(conn.longest + 512)],
                );
            }
        }
        Self { cells, shared, ends, len: at }
    }
}

/// A device, its completion queues and its memory.
pub(crate) struct Host {
    pub(crate) plan: HostPlan,
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cqs: [CompletionQueue; 2],
    pub(crate) arena: Arena,
    pub(crate) layout: Layout,
    pub(crate) cells: Vec<Vec<Addition>>,
    pub(crate) cells_region: MemoryRegion,
    /// The shared words, in another protection domain.
    pub(crate) other_region: MemoryRegion,
    pub(crate) srq: Shared,
    pub(crate) xrcd: XrcDomain,
    pub(crate) xrc_srq: Shared,
    pub(crate) by_qpn: BTreeMap<u32, (usize, usize)>,
    pub(crate) failed: bool,
    /// The highest queue pair number of its device, without the upper byte.
    pub(crate) top: u32,
    /// The upper byte of its queue pair numbers.
    pub(crate) slot: u8,
}

/// The error of a call that should have succeeded.
pub(crate) fn refused(what: &str) -> impl Fn(rnic::Error) -> String {
    move |error| format!("{what}: {error}")
}

impl Host {
    /// Life number `life` of device `number`, at the address of the one `before`.
    pub(crate) fn new(
        net: &Net,
        plan: &Plan,
        number: usize,
        life: u64,
        before: Option<&Self>,
        witness: &Witness,
    ) -> Check<Self> {
        let of = &plan.hosts[number];
        let address = before.and_then(|host| match host.device.address() {
            IpAddr::V4(v4) => Some(v4),
            IpAddr::V6(_) => None,
        });
        // Sometimes another program of the same host takes its place.
        let slot = if address.is_some() { (life % SLOTS) as u8 } else { 0 };
        let setup = DeviceSetup {
            address,
            slot,
            name: Some(format!("host{number}.{life}")),
            mtu: Mtu::from_bytes(of.mtu).ok_or("no such MTU")?,
            peer_window: Some(of.window).filter(|window| *window > 0),
            partner: PartnerSetup { is_foreign: of.foreign, ..PartnerSetup::offering(of.selective) },
            link: of.link.parse().map_err(|e| format!("{}: {e}", of.link))?,
            cc: if of.cc.is_empty() { "off" } else { &of.cc }
                .parse()
                .map_err(|e| format!("{}: {e}", of.cc))?,
            ..DeviceSetup::default()
        };
        let device = net.device_with(&setup).map_err(refused("a device"))?;
        device.observe(witness.at(device.address())).map_err(refused("an observer"))?;
        net.set_latency_of(&device, std::time::Duration::from_nanos(of.latency));
        for rule in &of.faults {
            device.add_fault(rule).map_err(refused(rule))?;
        }
        let pd = device.alloc_pd().map_err(refused("a protection domain"))?;
        let other = device.alloc_pd().map_err(refused("a protection domain"))?;
        let layout = Layout::new(plan, number);
        let mut arena = Arena::new(layout.len, mix(plan.seed ^ number as u64 ^ (life << 32)))?;
        arena.write(layout.cells.start, &[0; CELLS * 8])?;
        for cell in 0..CELLS {
            arena.expect_any(u64::MAX - cell as u64, layout.cells.start + cell * 8, 8);
        }
        let region = |pd: &ProtectionDomain, range: &Range<usize>, rights| {
            let va = Some(0x10_0000 * (number as u64 + 1) + range.start as u64);
            pd.register_memory(arena.memory(range.clone()), va, rights).map_err(refused("a memory region"))
        };
        let cells_region = region(&pd, &layout.cells, all_rights())?;
        let other_region = region(&other, &layout.cells, all_rights())?;
        let regions = [0, 1].map(|which| region(&pd, &layout.shared[which], Access::LOCAL_WRITE));
        let [srq_region, xrc_region] = regions;
        let cqe = if of.cqe > 0 { of.cqe } else { needed(plan, number) };
        let cq = || device.create_cq(cqe).map_err(refused("a completion queue"));
        let cqs = [cq()?, cq()?];
        let top = before.map_or(0, |host| host.top);
        // Peers may still send to numbers of the last life: a new queue pair could not tell whether it is meant.
        while before.is_some()
            && pd.create_qp(&QpInit::ud(&cqs[0], &cqs[0])).map_err(refused("a number"))?.qpn().value()
                & 0xffff
                < top
        {}
        let init = SrqInit { max_wr: of.srq, max_sge: 4, limit: 0 };
        let queue = pd.create_srq(&init).map_err(refused("a shared receive queue"))?;
        let xrcd = device.open_xrcd().map_err(refused("an XRC domain"))?;
        let xrc_queue = pd.create_xrc_srq(&init, &xrcd, &cqs[1]).map_err(refused("an XRC queue"))?;
        let shared = |queue, region, which: usize| Shared {
            queue,
            region,
            pool: layout.shared[which].clone(),
            posted: BTreeMap::new(),
            size: of.srq,
            lost: 0,
        };
        Ok(Self {
            plan: of.clone(),
            srq: shared(queue, srq_region?, 0),
            xrc_srq: shared(xrc_queue, xrc_region?, 1),
            device,
            pd,
            cqs,
            arena,
            layout,
            cells: vec![Vec::new(); CELLS],
            cells_region,
            other_region,
            xrcd,
            by_qpn: BTreeMap::new(),
            failed: false,
            slot,
            top,
        })
    }

    /// Checks that each successful addition to a shared word took effect once, and each other one at most once: the
    /// value before one addition is the value after another.
    pub(crate) fn check_cells(&self) -> Check {
        for (cell, additions) in self.cells.iter().enumerate() {
            let at = self.layout.cells.start + cell * 8;
            let bytes = self.arena.actual(at..at + 8)?;
            let last = bytes.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
            chain(additions, last).map_err(|what| format!("shared word {cell}: {what}"))?;
        }
        Ok(())
    }
}

/// The number of completions that can wait at once.
fn needed(plan: &Plan, number: usize) -> u32 {
    let ends = plan.conns.iter().flat_map(|conn| conn.hosts.map(|host| (host, conn)));
    let queues: u32 = ends.filter(|(host, _)| *host == number).map(|(_, c)| c.sends + c.recvs + 8).sum();
    let xrc = u32::from(plan.conns.iter().any(|conn| conn.service == Service::Xrc));
    queues + plan.hosts[number].srq * (1 + xrc) * 2 + 8
}

fn chain(additions: &[Addition], last: u64) -> Check {
    let mut known: Vec<(u64, u64)> =
        additions.iter().filter_map(|a| a.before.map(|before| (before, a.add))).collect();
    known.sort_unstable();
    let mut open: Vec<u64> = additions.iter().filter(|a| a.before.is_none()).map(|a| a.add).collect();
    open.sort_unstable_by(|a, b| b.cmp(a));
    let mut now = 0;
    for (before, add) in known.into_iter().chain([(last, 0)]) {
        let gap = before
            .checked_sub(now)
            .ok_or_else(|| format!("{before} was there when {now} should have been"))?;
        let used = subset(&open, gap).ok_or_else(|| {
            format!(
                "{gap} between {now} and {before} is no sum of the {} additions that are open",
                open.len()
            )
        })?;
        for add in used {
            open.retain(|one| *one != add);
        }
        now = before + add;
    }
    Ok(())
}

/// A subset of the numbers, which are in falling order, whose sum is `sum`.
fn subset(numbers: &[u64], sum: u64) -> Option<Vec<u64>> {
    if sum == 0 {
        return Some(Vec::new());
    }
    if numbers.iter().sum::<u64>() < sum {
        return None;
    }
    let (first, rest) = numbers.split_first()?;
    if *first <= sum
        && let Some(mut found) = subset(rest, sum - first)
    {
        found.push(*first);
        return Some(found);
    }
    subset(rest, sum)
}
