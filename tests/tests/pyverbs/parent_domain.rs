//! `tests/test_parent_domain.py`. In verbs, a parent domain provides two things: a thread domain, whose objects
//! need no locks, and allocators for the memory of queues. Neither is supported. Any domain can be shared between
//! threads, and queues are memory of this process that the program never sees. The remaining parts of the tests are
//! the traffic, and the alignment that an allocator would be asked for.

use rnic::{Device, Error, RcEnd, WcStatus};
use rnic_tests::open;

/// The number of messages in a traffic test (`iters`).
const ITERS: u64 = 10;

/// `u.traffic`: messages in alternating directions.
fn traffic(client: &RcEnd, server: &RcEnd) -> Result<(), Error> {
    const LEN: usize = 1024;
    for (from, to) in [(client, server), (server, client)] {
        let (source, target) = (from.register(&[b'c'; LEN])?, to.register(&[0; LEN])?);
        for id in 0..ITERS {
            to.qp.recv(id, target.all())?;
            from.qp.send(id, source.all())?;
            for end in [from, to] {
                let wc = end.wait()?;
                assert_eq!((wc.wr_id, wc.status), (id, WcStatus::Success));
            }
            assert_eq!(target.to_vec()?, [b'c'; LEN]);
            target.write_at(0, &[0; LEN])?;
        }
    }
    Ok(())
}

/// Several threads at once, each with its own queue pairs on the same devices.
fn on_threads(a: &Device, b: &Device) {
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (client, server) = RcEnd::pair(a, b).expect("a pair");
                traffic(&client, &server).expect("traffic");
            });
        }
    });
}

#[test]
fn test_without_allocators_rc_traffic() {
    on_threads(&open(), &open());
}

/// The allocators are always the default ones.
#[test]
fn test_default_allocators_rc_traffic() -> Result<(), Error> {
    let (client, server) = RcEnd::pair(&open(), &open())?;
    traffic(&client, &server)
}

#[test]
fn test_mem_align_rc_traffic() -> Result<(), Error> {
    let (client, server) = RcEnd::pair(&open(), &open())?;
    for len in [1, 4096, 70_001] {
        assert!(client.register_remote(len)?.addr().is_multiple_of(4096), "memory begins with a page");
    }
    traffic(&client, &server)
}
