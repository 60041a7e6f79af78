//! The window of a peer on the same host.

use super::{Log, done, write};
use crate::sim::{DeviceSetup, Net};
use crate::{ConnectOptions, Device, Mtu, QpAttr, QpState, RcEnd, Result};
use time::Duration;

/// A device with this address, on a host that grants large buffers.
fn granted_much(net: &Net, address: [u8; 4]) -> Result<Device> {
    let address = Some(address.into());
    net.device_with(&DeviceSetup { address, host_buffer: Some(8 << 20), ..DeviceSetup::default() })
}

/// Packets that leave before the first acknowledgement can arrive.
fn at_once((net, a): (&Net, &Device), pair: &(RcEnd, RcEnd)) -> Result<usize> {
    let log = Log::of(a);
    let _memory = write(pair, 2 << 20)?;
    net.run_for(Duration::from_micros(1900));
    let count = log.all().len();
    done(&pair.0)?;
    Ok(count)
}

/// What a window for a stock buffer holds of full packets, and what that of a peer on the same host does.
const STOCK: std::ops::RangeInclusive<usize> = 80..=100;
const WIDE: std::ops::RangeInclusive<usize> = 256..=300;

/// The buffer of a peer on the same host is known, but not who else sends to it.
#[test]
fn a_peer_on_the_same_host_has_a_larger_window_until_something_is_lost() -> Result<()> {
    let in_flight = |from: [u8; 4], fault: Option<&str>| -> Result<usize> {
        let net = Net::new();
        net.set_latency(Duration::from_millis(1));
        let (a, b) = (granted_much(&net, from)?, granted_much(&net, [127, 0, 0, 1])?);
        if let Some(rule) = fault {
            a.add_fault(rule)?;
        }
        let pair = RcEnd::pair(&a, &b)?;
        let _memory = write(&pair, 4096)?;
        done(&pair.0)?;
        at_once((&net, &a), &pair)
    };
    assert!(WIDE.contains(&in_flight([127, 0, 0, 2], None)?));
    assert!(STOCK.contains(&in_flight([127, 0, 0, 2], Some("tx data nth=1 drop"))?), "after a loss");
    assert!(STOCK.contains(&in_flight([10, 0, 0, 9], None)?), "on another host");
    Ok(())
}

/// A packet of 256 bytes is a small one.
#[test]
fn no_more_small_packets_are_in_flight_than_a_stock_buffer_holds() -> Result<()> {
    let sent = |host_buffer| -> Result<usize> {
        let net = Net::new();
        net.set_latency(Duration::from_millis(1));
        let setup = |last| DeviceSetup {
            address: Some([127, 0, 0, last].into()),
            mtu: Mtu::B256,
            host_buffer,
            ..DeviceSetup::default()
        };
        let (a, b) = (net.device_with(&setup(1))?, net.device_with(&setup(2))?);
        at_once((&net, &a), &RcEnd::pair(&a, &b)?)
    };
    let stock = sent(None)?;
    assert_eq!(sent(Some(8 << 20))?, stock);
    assert!((900..1200).contains(&stock), "{stock}");
    Ok(())
}

#[test]
fn a_receiver_that_is_not_ready_has_lost_nothing() -> Result<()> {
    let net = Net::new();
    net.set_latency(Duration::from_millis(1));
    let (a, b) = (granted_much(&net, [127, 0, 0, 1])?, granted_much(&net, [127, 0, 0, 2])?);
    let pair = RcEnd::pair(&a, &b)?;
    let (source, target) = (pair.0.register(&[7; 8])?, pair.1.register(&[0; 8])?);
    pair.0.qp.send(1, source.all())?;
    net.run_for(Duration::from_millis(5));
    assert!(pair.0.qp.counters().rcvd_rnr_err > 0, "{:?}", pair.0.qp.counters());
    pair.1.qp.recv(1, target.all())?;
    done(&pair.0)?;
    assert!(WIDE.contains(&at_once((&net, &a), &pair)?));
    Ok(())
}

/// With two of them in flight, the peer always has something to answer.
#[test]
fn reads_are_requested_in_larger_pieces_where_two_of_them_fit_in_the_window() -> Result<()> {
    let net = Net::new();
    let device = |address| granted_much(&net, address);
    let (a, near, far) = (device([127, 0, 0, 1])?, device([127, 0, 0, 2])?, device([10, 0, 0, 2])?);
    let ends = [RcEnd::new(&a)?, RcEnd::new(&near)?, RcEnd::new(&far)?];
    let target = ends[0].register(&[0; 1 << 20])?;
    let pieces = |peer: &RcEnd| -> Result<Vec<u32>> {
        let source = peer.register_remote(1 << 20)?;
        ends[0].qp.modify(&QpAttr::to_state(QpState::Reset))?;
        ends[0].qp.connect(&peer.qp.address(), &ConnectOptions::default())?;
        peer.qp.connect(&ends[0].qp.address(), &ConnectOptions::default())?;
        let log = Log::of(&a);
        ends[0].qp.read(1, target.all(), source.remote(0))?;
        done(&ends[0])?;
        Ok(log.all().iter().map(|sent| sent.length).collect())
    };
    assert_eq!(pieces(&ends[1])?, [512 << 10; 2], "on the same host");
    assert_eq!(pieces(&ends[2])?, [128 << 10; 8], "on another");
    Ok(())
}
