//! Marks, notifications and rates between ports on real sockets.

use super::{device, moved, until};
use rnic::cc::Rate;
use rnic::{ConnectOptions, Device, MemoryRegion, RcEnd, Remote, WcStatus};
use rnic_tests::{counter, fresh_address};

/// The server's port: slower than any host, behind a switch that marks from about 10 full packets on.
const LINK: &str = "ethernet:rate=1Gb/s";
const LINE: Rate = Rate::from_gbps(1);
const DCQCN: &str = "dcqcn:preset=laptop";

/// Length of a message in bytes, and the number outstanding.
const LEN: usize = 1 << 18;
const DEPTH: u64 = 4;

/// A client that writes to a server without end.
struct Client {
    end: RcEnd,
    /// Kept connected and registered.
    _server: (RcEnd, MemoryRegion),
    source: MemoryRegion,
    remote: Remote,
    outstanding: u64,
}

impl Client {
    fn new(device: &Device, server: &Device, traffic_class: u8) -> Self {
        // 17 s: a long queueing delay is not a loss.
        let options = ConnectOptions { traffic_class, timeout: 22, ..ConnectOptions::default() };
        let (end, other) = RcEnd::pair_with(device, server, &options).expect("connected");
        let source = end.register(&vec![3; LEN]).expect("memory");
        let target = other.register_remote(LEN).expect("memory");
        let remote = target.remote(0);
        Self { end, _server: (other, target), source, remote, outstanding: 0 }
    }

    fn turn(&mut self) {
        while self.outstanding < DEPTH {
            self.end.qp.write(1, self.source.all(), self.remote).expect("room");
            self.outstanding += 1;
        }
        self.take();
    }

    fn take(&mut self) {
        while let Some(wc) = self.end.cq().poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            self.outstanding -= 1;
        }
    }

    fn finish(&mut self) {
        until("everything is done", || {
            self.take();
            self.outstanding == 0
        });
    }
}

#[test]
fn senders_that_are_told_of_congestion_slow_down() {
    let server = device(fresh_address(), LINK, DCQCN);
    let clients = [(); 2].map(|()| device(fresh_address(), "", DCQCN));
    let mut ends = clients.each_ref().map(|client| Client::new(client, &server, 0));
    // Each client's share is half of the line rate.
    let mut below = [false; 2];
    until("both fall below the line", || {
        for (end, below) in ends.iter_mut().zip(&mut below) {
            end.turn();
            *below |= end.end.qp.rate().is_some_and(|rate| rate < LINE);
        }
        below == [true; 2]
    });
    ends.iter_mut().for_each(Client::finish);
    let sum = |name: &str| clients.iter().map(|client| counter(client, name)).sum::<u64>();
    until("all notifications arrived", || {
        counter(&server, "np_cnp_sent") == sum("rp_cnp_handled") + sum("rp_cnp_ignored")
    });
    assert_eq!(sum("rp_cnp_ignored"), 0);
    assert!(sum("rp_cnp_handled") >= 2);
    let marked = counter(&server, "np_ecn_marked_roce_packets");
    assert!(marked >= counter(&server, "np_cnp_sent"), "{:?}", moved(&server));
    assert_eq!(marked, counter(&server, "link_rx_marked"));
}

/// Its packets are marked, because its program enabled marking, but it would not obey notifications.
#[test]
fn senders_that_do_not_obey_cnps_get_none() {
    const ECT: u8 = 0b10;
    let server = device(fresh_address(), LINK, DCQCN);
    let client = device(fresh_address(), "", "off");
    let mut end = Client::new(&client, &server, ECT);
    until("packets are marked", || {
        end.turn();
        counter(&server, "np_ecn_marked_roce_packets") > 100
    });
    end.finish();
    assert_eq!(end.end.qp.rate(), None);
    assert_eq!((counter(&server, "np_cnp_sent"), counter(&client, "rp_cnp_ignored")), (0, 0));
}
