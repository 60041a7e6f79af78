//! `tests/test_device.py`. Device memory (`DMTest`) is not supported: a software device has no memory that is
//! closer than the program's own.

use rnic::engine::ResourceError;
use rnic::net::{BindError, interfaces};
use rnic::sim::Net;
use rnic::{
    Access, AddressVector, Device, DeviceAttr, DeviceConfig, Error, Gid, GidType, Mtu, PKey, PortAttr, Psn,
    QpAttr, Qpn, RcEnd,
};
use rnic_tests::{fresh_address, open};
use std::net::IpAddr;

/// A device on sockets, and one in virtual time.
fn devices() -> [Device; 2] {
    [open(), Net::new().device()]
}

/// A device is an address of the host here, so the list of devices is the list of addresses.
#[test]
fn test_dev_list() {
    let all = interfaces().expect("the kernel's list");
    assert!(all.iter().any(|interface| interface.has(IpAddr::from([127, 0, 0, 1]))), "{all:?}");
}

#[test]
fn test_open_dev() {
    let first = open();
    let again = DeviceConfig::at(first.address()).open();
    assert!(matches!(again, Err(Error::Open(BindError::AddressInUse(_)))), "one address is one device");
    let foreign = DeviceConfig::at(IpAddr::from([203, 0, 113, 7])).open();
    assert!(matches!(foreign, Err(Error::Open(BindError::NotLocal(_)))));
}

/// As `verify_device_attr`, without the identity of hardware.
fn verify_device_attr(attr: &DeviceAttr) {
    const PAGE_SIZE: u64 = 4096;
    assert!(attr.max_mr_size > PAGE_SIZE);
    for count in
        [attr.max_qp, attr.max_qp_wr, attr.max_sge, attr.max_cq, attr.max_cqe, attr.max_mr, attr.max_pd]
    {
        assert!(count > 0, "{attr:?}");
    }
    assert!(attr.max_pkeys > 0 && attr.phys_port_cnt == 1);
}

#[test]
fn test_query_device() {
    for device in devices() {
        verify_device_attr(&device.attr());
    }
}

/// One structure also holds the attributes of `ibv_query_device_ex`.
#[test]
fn test_query_device_ex() {
    for device in devices() {
        let attr = device.attr();
        verify_device_attr(&attr);
        assert!(attr.max_inline_data > 0 && attr.max_qp_rd_atom > 0 && attr.max_qp_init_rd_atom > 0);
    }
}

#[test]
fn test_query_pkey() {
    for device in devices() {
        let keys = device.pkeys();
        assert_eq!(keys, [PKey::DEFAULT]);
        assert_eq!(usize::from(device.port_attr().pkey_tbl_len), keys.len());
    }
}

#[test]
fn test_query_gid() {
    for device in devices() {
        let entry = device.query_gid(0).expect("the port's own");
        assert_eq!((entry.gid, entry.gid.ip()), (device.gid(), device.address()));
    }
}

#[test]
fn test_query_gid_table() {
    for device in devices() {
        let table = device.gid_table();
        assert_eq!(table.len(), device.port_attr().gid_tbl_len as usize);
        assert!(table.iter().enumerate().all(|(at, entry)| entry.index as usize == at), "{table:?}");
    }
}

#[test]
fn test_query_gid_table_bad_flow() {
    for device in devices() {
        for index in [1, 255, u32::MAX] {
            let refused = device.query_gid(index).expect_err("behind the table");
            assert!(matches!(
                refused,
                Error::Resource(ResourceError::Index { what: "GID", index: at, entries: 1 }) if at == index
            ));
        }
    }
}

#[test]
fn test_query_gid_ex() {
    let [real, simulated] = devices().map(|device| device.query_gid(0).expect("the port's own"));
    for entry in [&real, &simulated] {
        assert_eq!((entry.index, entry.port_num, entry.gid_type), (0, 1, GidType::RoceV2));
    }
    let interface = real.interface.expect("the loopback interface");
    assert_eq!((interface.name.as_str(), interface.index > 0), ("lo", true));
    assert_eq!(simulated.interface, None, "a simulation has none");
}

#[test]
fn test_query_gid_ex_bad_flow() {
    for device in devices() {
        let end = RcEnd::new(&device).expect("an end");
        end.qp.modify(&QpAttr::to_init(1, 0, Access::empty())).expect("INIT");
        // An index is checked where it is used.
        let way = AddressVector::new(Gid::from(fresh_address()), 1);
        assert!(end.pd().create_ah(&way).expect_err("index 1").to_string().contains("sgid_index"));
        let rtr = QpAttr::to_rtr(way, Mtu::B1024, Qpn::new(5), Psn::new(0));
        let refused = end.qp.modify(&rtr.max_dest_rd_atomic(1).min_rnr_timer(12)).expect_err("index 1");
        assert_eq!(refused.to_string(), "ah_attr.sgid_index is 1; valid values are 0 to 0");
    }
}

fn verify_port_attr(attr: &PortAttr) {
    assert!(attr.active);
    assert!(attr.max_mtu >= attr.active_mtu);
    assert!(attr.max_msg_sz > 0x1000);
    assert_eq!((attr.bad_pkey_cntr, attr.qkey_viol_cntr), (0, 0), "nothing arrived yet");
}

#[test]
fn test_query_port() {
    for device in devices() {
        verify_port_attr(&device.port_attr());
    }
}

/// There is one port and one function to query it; port numbers only occur in attributes, and are checked there.
#[test]
fn test_query_port_bad_flow() {
    for device in devices() {
        let end = RcEnd::new(&device).expect("an end");
        for port in [0, 2, 11, 255] {
            let refused =
                end.qp.modify(&QpAttr::to_init(port, 0, Access::empty())).expect_err("no such port");
            assert_eq!(refused.to_string(), format!("port_num is {port}; valid values are 1 to 1"));
            let way = AddressVector { port_num: port, ..AddressVector::new(device.gid(), 0) };
            assert!(end.pd().create_ah(&way).expect_err("no such port").to_string().contains("port_num"));
        }
    }
}
