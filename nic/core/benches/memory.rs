//! The cost of accesses to registered memory, compared with memcpy and the CRC of every packet.
//!
//! `copy_crc` and `copy_then_crc` compare one pass over a payload with two; `train` builds whole trains, and `verify` checks
//! a packet. `write_at` and `read_at` are the copies of the data path after a range check. `table_*` add the key lookup and all
//! checks, in a table of a million regions. `window_*` access a region through a memory window. `random_key` uses a
//! different region each time: its extra cost among a million regions is a cache miss. `rebind` is the cost of closing
//! and reopening a memory window.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use qp::memory::Bind;
use qp::wire::{Flow, Headers, ICRC_LEN, IdentSolver, Opcode, RethFields, icrc};
use qp::{Access, AtomicOp, Domain, Memory, PdId, Psn, Qpn, Train};
use rnic_core::memory::{KeySource, MemoryBuffer, MwType, RegionTable, UserMemory};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// A flag, a small message, and the payloads at Ethernet MTUs of 1500 and 4200.
const SIZES: [usize; 4] = [8, 64, 1024, 4096];
/// A train of UDP segmentation offload.
const TRAIN_BYTES: usize = 65_507;
const TRAIN_PACKETS: usize = 64;
/// Payloads of packets: tiny, small, and those of the path MTUs.
const PAYLOADS: [usize; 6] = [0, 8, 64, 256, 1024, 4096];
/// Payloads, and the size of the memory that they come from: that of the caches of level 1, 2 and 3.
const COPIES: [(usize, usize); 12] = {
    const L1: usize = 16 << 10;
    const L2: usize = 512 << 10;
    const L3: usize = 8 << 20;
    [
        (64, L1),
        (64, L2),
        (64, L3),
        (256, L1),
        (256, L2),
        (256, L3),
        (1024, L1),
        (1024, L2),
        (1024, L3),
        (4096, L1),
        (4096, L2),
        (4096, L3),
    ]
};
const FLOW: Flow = Flow {
    src: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    dst: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    src_port: 49_152,
    dst_port: 4791,
};
const PD: PdId = PdId(1);
const DOMAIN: Domain = Domain { pd: PD, qpn: Qpn::GSI };
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

fn main() {
    let (table, ..) = regions(1_000_000, 8);
    println!("a table of a million regions takes {} bytes for each", table.footprint() / table.len());
    divan::main();
}

#[divan::bench(args = SIZES, sample_size = 1000)]
fn memcpy(bencher: Bencher<'_, '_>, len: usize) {
    let (from, mut to) = (vec![1u8; len], vec![0u8; len]);
    bencher.counter(BytesCount::new(len)).bench_local(|| {
        black_box(&mut to[..]).copy_from_slice(black_box(&from));
    });
}

#[divan::bench(args = SIZES, sample_size = 1000)]
fn crc32(bencher: Bencher<'_, '_>, len: usize) {
    let data = vec![1u8; len];
    bencher.counter(BytesCount::new(len)).bench_local(|| crc32fast::hash(black_box(&data)));
}

#[divan::bench(args = SIZES, sample_size = 1000)]
fn write_at(bencher: Bencher<'_, '_>, len: usize) {
    let (data, buffer) = (vec![1; len], buffer(len));
    bencher.counter(BytesCount::new(len)).bench_local(|| buffer.write_at(0, black_box(&data)));
}

#[divan::bench(args = SIZES, sample_size = 1000)]
fn read_at(bencher: Bencher<'_, '_>, len: usize) {
    let (mut data, buffer) = (vec![1; len], buffer(len));
    bencher.counter(BytesCount::new(len)).bench_local(|| buffer.read_at(0, black_box(&mut data)));
}

#[divan::bench(args = SIZES, sample_size = 1000)]
fn table_write(bencher: Bencher<'_, '_>, len: usize) {
    let (mut table, key, va) = million(len);
    let data = vec![1; len];
    bencher
        .counter(BytesCount::new(len))
        .bench_local(|| table.write(DOMAIN, black_box(key), va, Access::REMOTE_WRITE, black_box(&data)));
}

#[divan::bench(args = SIZES, sample_size = 1000)]
fn table_read(bencher: Bencher<'_, '_>, len: usize) {
    let (table, key, va) = million(len);
    let mut data = vec![1; len];
    bencher
        .counter(BytesCount::new(len))
        .bench_local(|| table.read(DOMAIN, black_box(key), va, Access::REMOTE_READ, black_box(&mut data)));
}

/// A copy into a train with its CRC in one pass, which is what packets of 512 bytes and more get.
#[divan::bench(args = COPIES, sample_size = 4096)]
fn copy_crc(bencher: Bencher<'_, '_>, (len, from): (usize, usize)) {
    copies(bencher, len, from, |table, key, va, out| {
        table.read_summed(DOMAIN, key, va, Access::REMOTE_READ, out, 7).expect("valid")
    });
}

/// The same in two passes.
#[divan::bench(args = COPIES, sample_size = 4096)]
fn copy_then_crc(bencher: Bencher<'_, '_>, (len, from): (usize, usize)) {
    copies(bencher, len, from, |table, key, va, out| {
        table.read(DOMAIN, key, va, Access::REMOTE_READ, out).expect("valid");
        icrc::extend(7, out)
    });
}

/// Copies payloads of `len` bytes, one after the other, from a region of `from` bytes to the places of payloads in a train.
fn copies(
    bencher: Bencher<'_, '_>,
    len: usize,
    from: usize,
    copy: impl Fn(&RegionTable, u32, u64, &mut [u8]) -> u32,
) {
    /// Headers and ICRC of a WRITE: the next payload has another alignment.
    const AROUND: usize = 28 + ICRC_LEN;
    let (mut table, keys, va) = regions(1, from);
    let mut bytes = vec![0; TRAIN_BYTES];
    // Pages that were never written are all the same one.
    for page in (0..from).step_by(4096) {
        table.write(DOMAIN, keys[0], va + page as u64, Access::REMOTE_WRITE, &[1]).expect("valid");
    }
    let (mut source, mut place) = (0, 0);
    bencher.counter(BytesCount::new(len)).bench_local(|| {
        let out = &mut bytes[place * (len + AROUND) + 28..][..len];
        let crc = copy(&table, black_box(keys[0]), va + source as u64, out);
        source = (source + len) % from;
        place = (place + 1) % (TRAIN_BYTES / (len + AROUND));
        crc
    });
}

/// A train of WRITEs that is as full as it gets: headers, payload from a region, ICRC.
#[divan::bench(args = PAYLOADS, sample_size = 100)]
fn train(bencher: Bencher<'_, '_>, len: usize) {
    let (table, keys, va) = regions(1, 4096);
    let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(17), Psn::new(0));
    headers.reth = RethFields { va, rkey: keys[0], length: len as u32 };
    let mut bytes = vec![0; TRAIN_BYTES];
    let packets = (TRAIN_BYTES / (headers.wire_len() + len + ICRC_LEN)).min(TRAIN_PACKETS);
    bencher.counter(ItemsCount::new(packets)).bench_local(|| {
        let mut train = Train::new(&mut bytes, black_box(FLOW), TRAIN_PACKETS as u32);
        while train.has_room(&headers, len) {
            headers.psn = headers.psn.plus(1);
            let key = black_box(keys[0]);
            let read = |out: &mut [u8], crc: Option<&mut u32>| match crc {
                None => table.read(DOMAIN, key, va, Access::REMOTE_READ, out),
                Some(crc) => {
                    *crc = table.read_summed(DOMAIN, key, va, Access::REMOTE_READ, out, *crc)?;
                    Ok(())
                }
            };
            train.push_summed(&headers, len, read).expect("valid");
        }
        black_box(train.bytes().len())
    });
}

/// Checks the ICRC of one packet.
#[divan::bench(args = PAYLOADS, sample_size = 1000)]
fn verify(bencher: Bencher<'_, '_>, len: usize) {
    let mut bytes = vec![0; len + 32];
    let mut train = Train::new(&mut bytes, FLOW, 1);
    let headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(17), Psn::new(0));
    let _: Result<(), Infallible> = train.push(&headers, len, |_| Ok(()));
    let mut solver = IdentSolver::new();
    bencher.bench_local(|| solver.verify(&FLOW, 0, black_box(train.bytes())));
}

#[divan::bench(sample_size = 1000)]
fn table_atomic(bencher: Bencher<'_, '_>) {
    let (mut table, key, va) = million(8);
    bencher.bench_local(|| table.atomic(DOMAIN, black_box(key), va, AtomicOp::FetchAdd { add: 1 }));
}

#[divan::bench(args = SIZES, sample_size = 1000)]
fn window_write(bencher: Bencher<'_, '_>, len: usize) {
    let (mut table, lkey, va) = million(len);
    let bind = open(&mut table, lkey, va, len);
    let data = vec![1; len];
    bencher
        .counter(BytesCount::new(len))
        .bench_local(|| table.write(DOMAIN, black_box(bind.key), va, Access::REMOTE_WRITE, black_box(&data)));
}

#[divan::bench(args = [10, 1000, 1_000_000], sample_size = 10_000)]
fn random_key(bencher: Bencher<'_, '_>, count: usize) {
    let (table, mut keys, va) = regions(count, 64);
    shuffle(&mut keys);
    let mut keys = keys.iter().cycle();
    let mut data = [0; 64];
    bencher.bench_local(|| {
        let key = keys.next().copied().unwrap_or_default();
        table.read(DOMAIN, key, va, Access::REMOTE_READ, black_box(&mut data))
    });
}

#[divan::bench(sample_size = 1000)]
fn rebind(bencher: Bencher<'_, '_>) {
    let (mut table, lkey, va) = million(64);
    let mut bind = open(&mut table, lkey, va, 64);
    bencher.bench_local(|| {
        table.invalidate(DOMAIN, bind.key).expect("it is bound");
        (bind.window, bind.key) = (bind.key, bind.key ^ 1);
        table.bind(DOMAIN, &bind)
    });
}

#[divan::bench(sample_size = 1000)]
fn fault(bencher: Bencher<'_, '_>) {
    let mut table = RegionTable::new(1, KeySource::System);
    // SAFETY: no program has memory in the first page; the accesses fail, and the benchmark measures that.
    #[expect(unsafe_code, reason = "registers memory that does not exist")]
    let nothing = unsafe { UserMemory::new(8, 8) };
    let keys = table.register(PD, nothing, Some(0), ALL).expect("a valid region");
    bencher.bench_local(|| table.read(DOMAIN, black_box(keys.lkey), 0, Access::empty(), &mut [0; 8]));
}

fn buffer(len: usize) -> MemoryBuffer {
    MemoryBuffer::new(len).expect("memory")
}

/// A table with a million regions of one buffer. Also returns the key of a region in the middle, and its address.
fn million(len: usize) -> (RegionTable, u32, u64) {
    let (table, keys, va) = regions(1_000_000, len);
    (table, keys[keys.len() / 2], va)
}

/// A table with regions of one buffer. Also returns their keys, and their common address.
fn regions(count: usize, len: usize) -> (RegionTable, Vec<u32>, u64) {
    let shared = Arc::new(buffer(len));
    let mut table = RegionTable::new(1 << 20, KeySource::System);
    let keys =
        (0..count).map(|_| table.register(PD, Arc::clone(&shared), None, ALL).expect("room").lkey).collect();
    (table, keys, shared.addr() as u64)
}

/// Binds a type 2 memory window.
fn open(table: &mut RegionTable, lkey: u32, addr: u64, len: usize) -> Bind {
    let window = table.alloc_mw(PD, MwType::Type2).expect("room");
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let bind = Bind { window, key: window ^ 1, lkey, access, addr, len: len as u64 };
    table.bind(DOMAIN, &bind).expect("it can be bound");
    bind
}

/// A Fisher-Yates shuffle with the same random numbers every time (xorshift).
fn shuffle(keys: &mut [u32]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for last in (1..keys.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        keys.swap(last, (state % (last as u64 + 1)) as usize);
    }
}
