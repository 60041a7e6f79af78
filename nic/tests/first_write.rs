//! The first WRITE, in virtual time and over sockets, with the same statements.

use rnic::{Device, Error, RcEnd, WcStatus};

fn first_write(a: &Device, b: &Device) -> Result<(), Error> {
    let (left, right) = RcEnd::pair(a, b)?;
    let source = left.register(b"hello rdma")?;
    let target = right.register_remote(10)?;
    left.qp.write(7, source.all(), target.remote(0))?;
    let wc = left.wait()?;
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Success));
    assert_eq!(target.to_vec()?, b"hello rdma");
    Ok(())
}

#[test]
fn in_virtual_time() -> Result<(), Error> {
    let net = rnic::sim::Net::new();
    first_write(&net.device(), &net.device())
}

#[test]
fn over_sockets() -> Result<(), Error> {
    first_write(&rnic::open()?, &rnic::open()?)
}

#[test]
fn to_itself() -> Result<(), Error> {
    let device = rnic::open()?;
    first_write(&device, &device)
}

#[test]
fn large_transfers_both_ways() -> Result<(), Error> {
    let (a, b) = (rnic::open()?, rnic::open()?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let source = left.register(&bytes)?;
    let target = right.register_remote(bytes.len())?;
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert_eq!(target.to_vec()?, bytes);
    let back = left.register(&vec![0; bytes.len()])?;
    left.qp.read(2, back.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert_eq!(back.to_vec()?, bytes);
    right.qp.recv(3, target.all())?;
    left.qp.send(4, source.all())?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert_eq!(right.wait()?.byte_len as usize, bytes.len());
    Ok(())
}

/// A slot of the send queue is free before its completion appears: a program that counts completions posts as soon as
/// it sees one, while another thread drives the engine.
#[test]
fn a_completion_seen_is_a_place_free() -> Result<(), Error> {
    let (a, b) = (rnic::open()?, rnic::open()?);
    let (left, right) = RcEnd::pair(&a, &b)?;
    let source = left.register(&[7; 64])?;
    let target = right.register_remote(64)?;
    let depth = 128; // the size of the send queue of an RcEnd
    let mut outstanding = 0;
    let mut completions = [rnic::WorkCompletion::default(); 16];
    for wr_id in 0..20_000 {
        while outstanding == depth {
            let taken = left.cq().poll(&mut completions);
            assert!(completions[..taken].iter().all(|wc| wc.status == WcStatus::Success));
            outstanding -= taken;
        }
        left.qp.write(wr_id, source.all(), target.remote(0))?;
        outstanding += 1;
    }
    Ok(())
}
