//! Everything of rnic that meets software from elsewhere: other programs judge what it says on the wire.

pub mod pcap;
pub mod tshark;
