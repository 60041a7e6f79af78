//! Support for interoperability tests: software from elsewhere judges what rnic puts on the wire.

pub mod pcap;
pub mod tshark;
