//! What an access to registered memory costs, next to memcpy and the CRC that goes with every packet.
//!
//! `write_at` and `read_at` are the copies of the data path behind a range check; `table_*` add the key lookup
//! and all checks, in a table of a million regions.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use qp::{Access, AtomicOp, Domain, Memory, PdId, Qpn};
use rnic::memory::{KeySource, MemoryBuffer, RegionTable};
use std::sync::Arc;

/// A flag, a small message, the payload at an Ethernet MTU of 1500, and at 4200.
const SIZES: [usize; 4] = [8, 64, 1024, 4096];
const PD: PdId = PdId(1);
const DOMAIN: Domain = Domain { pd: PD, qpn: Qpn::GSI };
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn main() {
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

#[divan::bench(sample_size = 1000)]
fn table_atomic(bencher: Bencher<'_, '_>) {
    let (mut table, key, va) = million(8);
    bencher.bench_local(|| table.atomic(DOMAIN, black_box(key), va, AtomicOp::FetchAdd { add: 1 }));
}

#[divan::bench(sample_size = 1000)]
fn fault(bencher: Bencher<'_, '_>) {
    let mut table = RegionTable::new(1, KeySource::System);
    // SAFETY: no program has memory in the first page; the accesses fail, which is what is measured.
    #[expect(unsafe_code, reason = "registers memory that does not exist")]
    let keys = unsafe { table.register(PD, 0, 8, 8, ALL, None) }.expect("a valid region");
    bencher.bench_local(|| table.read(DOMAIN, black_box(keys.lkey), 0, Access::empty(), &mut [0; 8]));
}

fn buffer(len: usize) -> MemoryBuffer {
    MemoryBuffer::new(len).expect("memory")
}

/// A table with a million regions of one buffer, and the key of one in the middle.
fn million(len: usize) -> (RegionTable, u32, u64) {
    let shared = Arc::new(buffer(len));
    let mut table = RegionTable::new(1 << 20, KeySource::System);
    let keys: Vec<u32> = (0..1_000_000)
        .map(|_| table.register_buffer(PD, Arc::clone(&shared), ALL).expect("room").lkey)
        .collect();
    (table, keys[keys.len() / 2], shared.addr() as u64)
}
