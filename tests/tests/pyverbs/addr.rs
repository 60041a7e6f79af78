//! test_addr.py: address handles.

use rnic::sim::Net;
use rnic::{AddressVector, Error};
use rnic_tests::UdEnd;

#[test]
fn test_create_ah() {
    let net = Net::new();
    let end = UdEnd::new(&net.device());
    // To every GID of the device, including its own.
    let ah = end.pd.create_ah(&AddressVector::new(end.device.gid(), 0)).expect("an address handle");
    assert_eq!((ah.attr().dgid, ah.ip()), (end.device.gid(), end.device.address()));
    assert!(end.device.attr().max_ah > 0);
}

/// RoCE has no addresses without a GRH.
#[test]
fn test_create_ah_roce() {
    let net = Net::new();
    let end = UdEnd::new(&net.device());
    let attr = AddressVector { is_global: false, ..AddressVector::new(end.device.gid(), 0) };
    match end.pd.create_ah(&attr) {
        Err(Error::Resource(error)) => assert!(error.to_string().contains("no GID"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_destroy_ah() {
    let net = Net::new();
    let end = UdEnd::new(&net.device());
    end.post(1);
    let ah = end.ah(end.device.gid());
    let last = ah.clone();
    drop(ah);
    // A clone is the same handle, and a posted send no longer needs it.
    end.qp.send_to(1, rnic::Gather::Empty, &last, end.qp.qpn(), rnic_tests::datagram::QKEY).expect("posted");
    drop(last);
    assert_eq!(end.receive().data, b"");
}
