//! Partitions: P_Key tables, and which members may communicate, in virtual time.

use rnic::link::{Direction, FrameRef, Now, Observer};
use rnic::sim::{DeviceSetup, Net};
use rnic::{
    Access, AddressVector, ConnectOptions, Device, DeviceConfig, Error, Mtu, PKey, PKeyTableError, Psn, QKey,
    QpAttr, QpInit, QpState, Qpn, RcEnd, WcStatus,
};
use rnic_tests::datagram::{QKEY, UdEnd};
use rnic_tests::{counter, fresh_address};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn device(net: &Net, keys: &[u16]) -> Result<Device, Error> {
    net.device_with(&DeviceSetup {
        pkeys: keys.iter().map(|key| PKey(*key)).collect(),
        ..DeviceSetup::default()
    })
}

/// Records the P_Keys of outgoing packets.
struct Keys(Arc<Mutex<Vec<u16>>>);

impl Observer for Keys {
    fn name(&self) -> &str {
        "keys"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        if frame.direction == Direction::Tx {
            // Bytes 2 and 3 of the BTH.
            let key = u16::from_be_bytes([frame.bytes[2], frame.bytes[3]]);
            self.0.lock().expect("no panic").push(key);
        }
    }
}

/// The P_Keys of the packets that a device sends from now on.
fn leaving(device: &Device) -> Result<Arc<Mutex<Vec<u16>>>, Error> {
    let keys = Arc::default();
    device.observe(Keys(Arc::clone(&keys)))?;
    Ok(keys)
}

/// A pair with a separate P_Key index for each side; retries end after 2 times 4 ms.
fn pair(a: &Device, b: &Device, indices: [u16; 2]) -> Result<(RcEnd, RcEnd), Error> {
    let (left, right) = (RcEnd::new(a)?, RcEnd::new(b)?);
    let options = indices.map(|pkey_index| ConnectOptions {
        timeout: 10,
        retry_cnt: 1,
        pkey_index,
        ..Default::default()
    });
    left.qp.connect(&right.qp.address(), &options[0])?;
    right.qp.connect(&left.qp.address(), &options[1])?;
    Ok((left, right))
}

/// One WRITE; returns its status.
fn write(left: &RcEnd, right: &RcEnd) -> Result<WcStatus, Error> {
    let source = left.register(b"partition")?;
    let target = right.register_remote(9)?;
    left.qp.write(1, source.all(), target.remote(0))?;
    let status = left.wait()?.status;
    assert_eq!(target.to_vec()? == b"partition", status == WcStatus::Success);
    Ok(status)
}

/// IBTA 10.9.3: the low 15 bits are equal, and at least one of the two is a full member.
#[test]
fn two_members_communicate_unless_both_are_limited() -> Result<(), Error> {
    for (ours, theirs, may) in [
        (0xffff, 0xffff, true),
        (0x8001, 0x8001, true),
        (0x8001, 0x0001, true),
        (0x0001, 0x8001, true),
        (0x0001, 0x0001, false), // two limited members
        (0x8001, 0x8002, false),
        (0x7fff, 0x7ffe, false),
        (0xffff, 0xfffe, false),
    ] {
        let net = Net::new();
        let (a, b) = (device(&net, &[ours])?, device(&net, &[theirs])?);
        let sent = leaving(&a)?;
        let (left, right) = pair(&a, &b, [0, 0])?;
        let expected = if may { WcStatus::Success } else { WcStatus::RetryExcErr };
        assert_eq!(write(&left, &right)?, expected, "{ours:#06x} to {theirs:#06x}");
        assert!(
            sent.lock().expect("no panic").iter().all(|key| *key == ours),
            "packets carry the sender's key"
        );
        // The packet and its one retransmission.
        let dropped = if may { 0 } else { 2 };
        assert_eq!(counter(&b, "dropped_bad_pkey"), dropped, "{ours:#06x} to {theirs:#06x}");
        assert_eq!(u64::from(b.port_attr().bad_pkey_cntr), dropped);
        assert_eq!(a.port_attr().bad_pkey_cntr, 0, "nobody answered");
    }
    Ok(())
}

#[test]
fn the_index_selects_the_key() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (device(&net, &[0xffff, 0x8001, 0x0002])?, device(&net, &[0x8002, 0x7fff])?);
    for (indices, may) in
        [([0, 0], false), ([0, 1], true), ([1, 0], false), ([1, 1], false), ([2, 0], true), ([2, 1], false)]
    {
        let (left, right) = pair(&a, &b, indices)?;
        let expected = if may { WcStatus::Success } else { WcStatus::RetryExcErr };
        assert_eq!(write(&left, &right)?, expected, "{indices:?}");
    }
    let (attr, port) = (a.attr(), a.port_attr());
    assert_eq!((attr.max_pkeys, port.pkey_tbl_len), (3, 3));
    assert_eq!(a.pkeys(), [PKey(0xffff), PKey(0x8001), PKey(0x0002)]);
    Ok(())
}

#[test]
fn the_index_may_change_in_init_and_in_sqd() -> Result<(), Error> {
    let net = Net::new();
    let (a, b) = (device(&net, &[0xffff, 0x8001])?, device(&net, &[0xffff, 0x8001])?);
    let sent = leaving(&a)?;
    let last = |sent: &Mutex<Vec<u16>>| sent.lock().expect("no panic").last().copied();
    let (left, right) = (RcEnd::new(&a)?, RcEnd::new(&b)?);
    for (end, peer, gid) in [(&left, &right, b.gid()), (&right, &left, a.gid())] {
        end.qp.modify(&QpAttr::to_init(1, 0, Access::REMOTE_WRITE))?;
        // Once in INIT, and once more on the way to RTR.
        end.qp.modify(&QpAttr::default().pkey_index(1))?;
        let peer = peer.qp.address();
        let way = AddressVector::new(gid, 0);
        let rtr = QpAttr::to_rtr(way, Mtu::B1024, Qpn::new(peer.qpn), Psn::new(peer.psn));
        end.qp.modify(&rtr.max_dest_rd_atomic(1).min_rnr_timer(12).pkey_index(0))?;
        let psn = Psn::new(end.qp.address().psn);
        let rts = QpAttr::to_rts(psn).timeout(10).retry_cnt(1).rnr_retry(0).max_rd_atomic(1);
        end.qp.modify(&rts)?;
    }
    assert_eq!(write(&left, &right)?, WcStatus::Success);
    assert_eq!(last(&sent), Some(0xffff));
    for end in [&left, &right] {
        end.qp.modify(&QpAttr::to_state(QpState::Sqd))?;
        end.qp.modify(&QpAttr::default().pkey_index(1))?;
        assert_eq!(end.qp.query().pkey_index, Some(1));
        end.qp.modify(&QpAttr::to_state(QpState::Rts))?;
    }
    assert_eq!(write(&left, &right)?, WcStatus::Success);
    assert_eq!(last(&sent), Some(0x8001));
    // Only one side is in another partition then.
    left.qp.modify(&QpAttr::to_state(QpState::Sqd))?;
    left.qp.modify(&QpAttr::to_state(QpState::Sqd).pkey_index(0))?;
    left.qp.modify(&QpAttr::to_state(QpState::Rts))?;
    assert_eq!(write(&left, &right)?, WcStatus::RetryExcErr);
    assert_eq!(counter(&b, "dropped_bad_pkey"), 2);
    // RTS itself does not accept an index.
    let refused = right.qp.modify(&QpAttr::default().pkey_index(0)).expect_err("in RTS");
    assert_eq!(refused.to_string(), "pkey_index does not apply to RTS -> RTS of an RC queue pair");
    Ok(())
}

#[test]
fn an_index_behind_the_table_is_refused() -> Result<(), Error> {
    let net = Net::new();
    let end = RcEnd::new(&device(&net, &[0xffff, 0x8001])?)?;
    let refused = end.qp.modify(&QpAttr::to_init(1, 2, Access::empty())).expect_err("two entries");
    assert_eq!(refused.to_string(), "pkey_index is 2; valid values are 0 to 1");
    assert_eq!(end.qp.state(), QpState::Reset);
    end.qp.modify(&QpAttr::to_init(1, 1, Access::empty()))?;
    Ok(())
}

#[test]
fn lists_that_are_no_table_are_refused() {
    let tables: [(&[u16], PKeyTableError); 4] = [
        (&[], PKeyTableError::Empty),
        (&[0x8000], PKeyTableError::Invalid { index: 0, key: 0x8000 }),
        (&[0xffff, 0], PKeyTableError::Invalid { index: 1, key: 0 }),
        (&[0xffff, 0xffff], PKeyTableError::Duplicate { first: 0, second: 1, key: 0xffff }),
    ];
    let is = |error: Error, expected| matches!(error, Error::PKeys(found) if found == expected);
    for (keys, expected) in tables {
        assert!(is(device(&Net::new(), keys).map(drop).expect_err("no table"), expected));
        let pkeys = keys.iter().map(|key| PKey(*key)).collect();
        let config = DeviceConfig { pkeys, ..DeviceConfig::at(fresh_address()) };
        assert!(is(config.open().map(drop).expect_err("no table"), expected));
    }
}

#[test]
fn devices_on_sockets_have_tables_too() {
    let pkeys = vec![PKey(0xffff), PKey(0x8005)];
    let open = || DeviceConfig { pkeys: pkeys.clone(), ..DeviceConfig::at(fresh_address()) }.open();
    let (a, b) = (open().expect("a device"), open().expect("a device"));
    assert_eq!((a.pkeys(), a.port_attr().pkey_tbl_len), (pkeys.clone(), 2));
    let (left, right) = pair(&a, &b, [1, 1]).expect("a pair");
    assert_eq!(write(&left, &right).expect("a completion"), WcStatus::Success);
    let (left, right) = pair(&a, &b, [1, 0]).expect("a pair");
    assert_eq!(write(&left, &right).expect("a completion"), WcStatus::RetryExcErr);
    assert_eq!(b.port_attr().bad_pkey_cntr, 2);
}

#[test]
fn datagrams_are_of_a_partition_too() -> Result<(), Error> {
    for (ours, theirs, may) in [(0x8001, 0x0001, true), (0x0001, 0x0001, false), (0xffff, 0x8001, false)] {
        let net = Net::new();
        let (a, b) = (device(&net, &[ours])?, device(&net, &[theirs])?);
        let (left, right) = (UdEnd::new(&a), UdEnd::new(&b));
        right.post(1);
        left.send_along(1, b"partition", &UdEnd::way(&b), right.qp.qpn(), QKEY);
        assert!(net.run_until_idle(Duration::from_secs(1)));
        assert_eq!(right.recv_cq.is_empty(), !may, "{ours:#06x} to {theirs:#06x}");
        assert_eq!(b.port_attr().bad_pkey_cntr, u32::from(!may));
    }
    Ok(())
}

/// C9-42: QP1 accepts packets from every partition of its port, and reports which it was.
#[test]
fn qp1_is_in_all_partitions_of_its_port() -> Result<(), Error> {
    let net = Net::new();
    let gsi = |device: &Device| {
        let cq = || device.create_cq(64).expect("a completion queue");
        UdEnd::of(device, &QpInit::gsi(&cq(), &cq()), QKEY)
    };
    let b = device(&net, &[0xffff, 0x8001, 0x0002])?;
    let right = gsi(&b);
    for (key, index) in
        [(0xffff, Some(0)), (0x0001, Some(1)), (0x8002, Some(2)), (0x0002, None), (0x8003, None)]
    {
        let left = gsi(&device(&net, &[key])?);
        right.post(1);
        left.send_along(1, b"a MAD", &UdEnd::way(&b), Qpn::GSI, QKey::GSI);
        assert!(net.run_until_idle(Duration::from_secs(1)));
        let got = right.recv_cq.poll_one().map(|wc| wc.pkey_index);
        assert_eq!(got, index, "{key:#06x}");
    }
    assert_eq!(b.port_attr().bad_pkey_cntr, 2);
    Ok(())
}
