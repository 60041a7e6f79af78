//! rnic's Rust API as an end.

use crate::end::{Completion, End, Memory, Options, Part, Qp, To, pattern};
use crate::guest::Ip;
use rnic::{
    Access, AddressHandle, AddressVector, CompletionQueue, Device, DeviceConfig, Gather, Gid, MemoryRegion,
    MemoryWindow, Mtu, MwType, Operation, ProtectionDomain, Psn, QKey, QpAttr, QpInit, QpState, QpType, Qpn,
    QueuePair, RecvWr, Remote, SendFlags, SendWr, SharedReceiveQueue, SrqInit, WorkCompletion,
};
use std::time::{Duration, Instant};

/// A device with the objects that were created on it, numbered from 0.
pub(crate) struct Api {
    regions: Vec<Option<MemoryRegion>>,
    windows: Vec<MemoryWindow>,
    srqs: Vec<SharedReceiveQueue>,
    ahs: Vec<AddressHandle>,
    qps: Vec<Option<(QueuePair, CompletionQueue)>>,
    pd: ProtectionDomain,
    pub(crate) device: Device,
}

impl Api {
    pub(crate) fn new(ip: Ip) -> Self {
        Self::with(&DeviceConfig::at(ip.ours()))
    }

    pub(crate) fn with(config: &DeviceConfig) -> Self {
        let device = config.open().expect("a device at our address");
        let pd = device.alloc_pd().expect("a protection domain");
        Self { regions: vec![], windows: vec![], srqs: vec![], ahs: vec![], qps: vec![], pd, device }
    }

    pub(crate) fn qp_of(&self, qp: Qp) -> &QueuePair {
        &self.qps[qp.number].as_ref().expect("not destroyed").0
    }

    fn region(&self, memory: Memory) -> &MemoryRegion {
        self.regions[memory.number].as_ref().expect("still registered")
    }

    fn gather(&self, part: Option<Part>) -> Gather {
        part.filter(|part| part.length > 0).map_or(Gather::Empty, |part| {
            let (from, length) = (usize::try_from(part.offset).expect("an offset"), part.length as usize);
            self.region(part.memory).slice(from..from + length).expect("a part of it").into()
        })
    }

    fn bytes(&self, part: Part) -> Vec<u8> {
        let mut bytes = vec![0; part.length as usize];
        let offset = usize::try_from(part.offset).expect("an offset");
        self.region(part.memory).read_at(offset, &mut bytes).expect("a part of it");
        bytes
    }
}

fn completion(wc: &WorkCompletion) -> Completion {
    Completion {
        id: wc.wr_id,
        status: wc.status,
        opcode: wc.opcode as u32,
        length: wc.byte_len,
        flags: wc.flags.bits(),
        imm_or_rkey: wc.imm_or_rkey,
        src_qpn: wc.src_qpn.value(),
    }
}

impl End for Api {
    fn gid(&self) -> [u8; 16] {
        self.device.gid().0
    }

    fn register(&mut self, length: usize, access: Access) -> Memory {
        let region = self.pd.register(length, access).expect("a memory region");
        region.write_at(0, &vec![0xee; length]).expect("its own memory");
        let memory = Memory {
            number: self.regions.len(),
            remote: Remote { addr: region.addr(), rkey: region.rkey() },
        };
        self.regions.push(Some(region));
        memory
    }

    fn deregister(&mut self, memory: Memory) {
        let region = self.regions[memory.number].take().expect("still registered");
        region.deregister().expect("nothing is bound to it");
    }

    fn window(&mut self) -> usize {
        self.windows.push(self.pd.alloc_mw(MwType::Type2).expect("a memory window"));
        self.windows.len() - 1
    }

    fn fill(&mut self, part: Part, seed: u32) {
        let bytes: Vec<u8> = (0..part.length).map(|at| pattern(seed, at)).collect();
        let offset = usize::try_from(part.offset).expect("an offset");
        self.region(part.memory).write_at(offset, &bytes).expect("a part of it");
    }

    fn check(&mut self, part: Part, seed: u32) {
        let wrong = self.bytes(part).iter().zip(0..).position(|(&byte, at)| byte != pattern(seed, at));
        assert_eq!(wrong, None, "of {} bytes in rnic's memory, this one is wrong", part.length);
    }

    fn same(&mut self, part: Part, byte: u8) {
        let wrong = self.bytes(part).iter().position(|&found| found != byte);
        assert_eq!(wrong, None, "of {} bytes in rnic's memory, this one is not {byte:#x}", part.length);
    }

    fn put(&mut self, memory: Memory, offset: u64, value: u64) {
        let offset = usize::try_from(offset).expect("an offset");
        self.region(memory).write_at(offset, &value.to_ne_bytes()).expect("8 bytes");
    }

    fn get(&mut self, memory: Memory, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        let offset = usize::try_from(offset).expect("an offset");
        self.region(memory).read_at(offset, &mut bytes).expect("8 bytes");
        u64::from_ne_bytes(bytes)
    }

    fn srq(&mut self) -> usize {
        self.srqs.push(self.pd.create_srq(&SrqInit::default()).expect("a shared receive queue"));
        self.srqs.len() - 1
    }

    fn qp(&mut self, qp_type: QpType, srq: Option<usize>) -> Qp {
        let cq = self.device.create_cq(256).expect("a completion queue");
        let mut init = QpInit { qp_type, ..QpInit::rc(&cq, &cq) };
        if let Some(srq) = srq {
            init = init.with_srq(&self.srqs[srq]);
        }
        let qp = self.pd.create_qp(&init).expect("a queue pair");
        let made = Qp { number: self.qps.len(), qpn: qp.qpn().value(), qp_type };
        self.qps.push(Some((qp, cq)));
        made
    }

    fn connect(&mut self, qp: Qp, gid: [u8; 16], qpn: u32, o: &Options) {
        let way = AddressVector::new(Gid(gid), 0);
        let mtu = Mtu::from_bytes(o.mtu).expect("an MTU");
        let [psn, rpsn] = o.psns.map(Psn::new);
        let (mut rtr, mut rts) = (QpAttr::to_rtr(way, mtu, Qpn::new(qpn), rpsn), QpAttr::to_rts(psn));
        if qp.qp_type == QpType::Rc {
            rtr = rtr.max_dest_rd_atomic(16).min_rnr_timer(o.min_rnr_timer);
            rts = rts.timeout(o.timeout).retry_cnt(o.retry_cnt).rnr_retry(o.rnr_retry).max_rd_atomic(16);
        }
        for attr in [QpAttr::to_init(1, 0, o.access), rtr, rts] {
            self.qp_of(qp).modify(&attr).expect("the next state");
        }
    }

    fn activate(&mut self, qp: Qp, psn: u32, qkey: u32) {
        let init = QpAttr::to_init_datagram(1, 0, QKey(qkey));
        for attr in [init, QpAttr::to_state(QpState::Rtr), QpAttr::to_rts(Psn::new(psn))] {
            self.qp_of(qp).modify(&attr).expect("the next state");
        }
    }

    fn ah(&mut self, gid: [u8; 16]) -> usize {
        self.ahs.push(self.pd.create_ah(&AddressVector::new(Gid(gid), 0)).expect("an address handle"));
        self.ahs.len() - 1
    }

    fn post(&mut self, qp: Qp, id: u64, operation: Operation, part: Option<Part>, to: Option<To>) {
        let mut wr = SendWr::new(id, operation, self.gather(part)).flags(SendFlags::SIGNALED);
        if let Some(to) = to {
            wr = wr.to(self.ahs[to.ah].datagram(Qpn::new(to.qpn), QKey(to.qkey)));
        }
        self.qp_of(qp).post_send(wr).expect("a request is posted");
    }

    fn bind(&mut self, qp: Qp, id: u64, window: usize, part: Part, access: Access) -> u32 {
        let from = usize::try_from(part.offset).expect("an offset");
        let range = from..from + part.length as usize;
        let (window, region) = (&self.windows[window], self.region(part.memory));
        self.qp_of(qp).bind_mw(id, window, region, range, access).expect("a bind is posted");
        window.rkey()
    }

    fn recv(&mut self, qp: Qp, id: u64, part: Option<Part>) {
        let wr = RecvWr { wr_id: id, data: self.gather(part) };
        self.qp_of(qp).post_recv(wr).expect("a receive is posted");
    }

    fn srq_recv(&mut self, srq: usize, id: u64, part: Option<Part>) {
        let wr = RecvWr { wr_id: id, data: self.gather(part) };
        self.srqs[srq].post_recv(wr).expect("a receive is posted");
    }

    fn completions(&mut self, qp: Qp, count: usize, ms: u64) -> Vec<Completion> {
        let cq = &self.qps[qp.number].as_ref().expect("not destroyed").1;
        let deadline = Instant::now() + Duration::from_millis(ms);
        let mut all = Vec::new();
        while all.len() < count {
            match cq.wait(deadline.saturating_duration_since(Instant::now())) {
                Ok(wc) => all.push(completion(&wc)),
                Err(_) => break,
            }
        }
        all
    }

    fn has_failed(&mut self, qp: Qp) -> bool {
        self.qp_of(qp).state() == QpState::Err
    }

    fn destroy(&mut self, qp: Qp) {
        let (qp, _cq) = self.qps[qp.number].take().expect("not destroyed");
        qp.destroy().expect("nothing uses it");
    }
}
