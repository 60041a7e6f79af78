//! What a stranger must not be able to guess: keys, queue pair numbers and first PSNs of devices on sockets.
//!
//! A generator with a fixed secret looks random on one device, and gives the same to every device. So what several
//! devices hand out, of one process and of others, is compared place by place.

use rnic::{Access, Device, MwType, RcEnd};
use rnic_tests::{Peer, open};
use std::collections::HashSet;

/// How many of each kind a device hands out.
const COUNT: usize = 16;

/// What a device hands out, in order.
#[derive(Debug)]
struct Handed {
    /// The upper 24 bits of the keys of regions; the rest is a tag.
    keys: Vec<u32>,
    /// Numbers of queue pairs without the slot, which is that of the process.
    numbers: Vec<u32>,
    psns: Vec<u32>,
}

fn by_device(device: &Device) -> Handed {
    let pd = device.alloc_pd().expect("a domain");
    let regions: Vec<_> = (0..COUNT).map(|_| pd.register(1, Access::LOCAL_WRITE).expect("memory")).collect();
    let ends: Vec<_> = (0..COUNT).map(|_| RcEnd::new(device).expect("an end")).collect();
    let addresses: Vec<_> = ends.iter().map(|end| end.qp.address()).collect();
    Handed {
        keys: regions.iter().map(|region| region.lkey() >> 8).collect(),
        numbers: addresses.iter().map(|address| address.qpn & 0xffff).collect(),
        psns: addresses.iter().map(|address| address.psn).collect(),
    }
}

fn by_process(peer: &mut Peer) -> Handed {
    let keys = (0..COUNT).map(|_| peer.register_zeroes(1).place.rkey >> 8).collect();
    let addresses: Vec<_> = (0..COUNT).map(|_| peer.qp().1).collect();
    Handed {
        keys,
        numbers: addresses.iter().map(|address| address.qpn & 0xffff).collect(),
        psns: addresses.iter().map(|address| address.psn).collect(),
    }
}

/// At how many places two devices handed out the same.
fn agree(some: &[u32], others: &[u32]) -> usize {
    some.iter().zip(others).filter(|(a, b)| a == b).count()
}

/// The number of different steps from one to the next.
fn steps(numbers: &[u32]) -> usize {
    numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect::<HashSet<_>>().len()
}

#[test]
fn keys_numbers_and_psns_of_one_device_say_nothing_of_another() {
    let (a, b) = (open(), open());
    let (mut c, mut d) = (Peer::start(), Peer::start());
    let all = [by_device(&a), by_device(&b), by_process(&mut c), by_process(&mut d)];
    for (index, one) in all.iter().enumerate() {
        for other in &all[index + 1..] {
            // One in 2^24 agrees by chance, and one number in 2^16: two out of 16 in one of a million runs.
            assert!(agree(&one.keys, &other.keys) <= 1, "{one:?}\n{other:?}");
            assert!(agree(&one.psns, &other.psns) <= 1, "{one:?}\n{other:?}");
            assert!(agree(&one.numbers, &other.numbers) <= 2, "{one:?}\n{other:?}");
        }
        // Nor does one say what the next will be, as if it counted.
        for handed in [&one.keys, &one.numbers, &one.psns] {
            assert!(steps(handed) > COUNT / 2, "{handed:x?}");
        }
    }
}

/// The keys of memory windows come from the same table, those of shared receive queues from another.
#[test]
fn keys_of_windows_and_numbers_of_shared_receive_queues_differ_too() {
    let hand = |device: &Device| {
        let pd = device.alloc_pd().expect("a domain");
        let (cq, xrcd) = (device.create_cq(1).expect("a queue"), device.open_xrcd().expect("an XRC domain"));
        let windows: Vec<_> = (0..COUNT).map(|_| pd.alloc_mw(MwType::Type2).expect("a window")).collect();
        let init = rnic::SrqInit::default();
        let queues: Vec<_> = (0..COUNT)
            .map(|_| pd.create_xrc_srq(&init, &xrcd, &cq).expect("a shared receive queue"))
            .collect();
        let numbers = queues.iter().map(|srq| srq.srqn() & 0xffff);
        (windows.iter().map(|window| window.rkey() >> 8).collect::<Vec<_>>(), numbers.collect::<Vec<_>>())
    };
    let ((keys, numbers), (other_keys, other_numbers)) = (hand(&open()), hand(&open()));
    assert!(agree(&keys, &other_keys) <= 1, "{keys:x?} {other_keys:x?}");
    assert!(agree(&numbers, &other_numbers) <= 2, "{numbers:x?} {other_numbers:x?}");
    assert!(steps(&keys) > COUNT / 2 && steps(&numbers) > COUNT / 2, "{keys:x?} {numbers:x?}");
}
