//! The number of credit blocks that a packet takes. Both ends must compute the same number.

use crate::datagram::LARGEST_DATAGRAM;
use cc::Charge;
use qp::wire::mad::hello::Counting;

/// Bytes around a packet on an InfiniBand link: LRH 8, VCRC 2 (IBTA 7.7, 7.8). That the VCRC counts is from memory.
const LINK_BYTES: usize = 8 + 2;

/// What a block measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocks {
    pub(crate) block: u16,
    pub(crate) counting: Counting,
}

impl Blocks {
    /// The number of blocks of packets that travel together: `len` bytes of UDP payload in packets of `segment` bytes;
    /// the last packet may be shorter.
    pub(crate) fn of(self, len: usize, segment: usize) -> u32 {
        let segment = segment.clamp(1, len.max(1));
        let packets = narrow(len.div_ceil(segment)).max(1);
        let last = len - (len.saturating_sub(1)) / segment * segment;
        match self.counting {
            Counting::TrainCharge => self.round(Charge::in_train(narrow(segment), packets), packets),
            _ => (packets - 1) * self.of_one(segment) + self.of_one(last),
        }
    }

    /// Lower bound of their charge, in the counted unit. Packets that the network merged occupy less than their charge,
    /// but not less than their own bytes.
    pub(crate) fn at_least(self, len: usize, segment: usize) -> u32 {
        match self.counting {
            Counting::DatagramCharge | Counting::TrainCharge if len <= segment => {
                Charge::datagram(narrow(len))
            }
            _ => narrow(len),
        }
    }

    /// The number of blocks of one packet of `len` bytes.
    pub(crate) fn of_one(self, len: usize) -> u32 {
        match self.counting {
            Counting::PacketBytes | Counting::Other(_) => self.round(narrow(len + LINK_BYTES), 1),
            Counting::DatagramCharge | Counting::TrainCharge => self.round(Charge::datagram(narrow(len)), 1),
        }
    }

    /// The packets of up to `len` bytes that it is best to send together: as many as a datagram holds, if they occupy less
    /// together than one by one.
    pub(crate) fn train(self, len: usize) -> u32 {
        match self.counting {
            Counting::TrainCharge => narrow(LARGEST_DATAGRAM / len.max(1)),
            _ => 1,
        }
    }

    /// How many packets of up to `len` bytes can travel together on this many blocks, at most `most`.
    pub(crate) fn packets(self, blocks: u32, len: usize, most: u32) -> u32 {
        match self.counting {
            Counting::TrainCharge => {
                let room = u64::from(blocks) * u64::from(self.block);
                // The charge of each packet falls as their number grows, so the search for the sum starts from the
                // estimate that ignores this effect.
                let each = Charge::in_train(narrow(len), u32::MAX);
                let estimate = u32::try_from(room / u64::from(each.max(1))).unwrap_or(u32::MAX).min(most);
                (0..=estimate)
                    .rev()
                    .find(|n| *n == 0 || self.of(len * *n as usize, len) <= blocks)
                    .unwrap_or(0)
            }
            _ => (blocks / self.of_one(len).max(1)).min(most),
        }
    }

    fn round(self, each: u32, packets: u32) -> u32 {
        let bytes = u64::from(each) * u64::from(packets);
        u32::try_from(bytes.div_ceil(u64::from(self.block.max(1)))).unwrap_or(u32::MAX)
    }
}

fn narrow(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CABLE: Blocks = Blocks { block: 64, counting: Counting::PacketBytes };
    const APART: Blocks = Blocks { block: 256, counting: Counting::DatagramCharge };
    const TRAINS: Blocks = Blocks { block: 256, counting: Counting::TrainCharge };

    #[test]
    fn a_cable_counts_bytes() {
        // 20 bytes of an acknowledgement and 10 around it fit one block; 4 KiB take 65.
        assert_eq!([CABLE.of_one(20), CABLE.of_one(54), CABLE.of_one(55), CABLE.of_one(4112)], [1, 1, 2, 65]);
        assert_eq!(CABLE.of(3 * 4112, 4112), 3 * 65);
        assert_eq!(CABLE.of(2 * 4112 + 20, 4112), 2 * 65 + 1);
        assert_eq!(CABLE.packets(130, 4112, 9), 2);
    }

    #[test]
    fn a_socket_buffer_is_charged_for_memory() {
        // 832 bytes for the smallest packet, 8,448 for 4 KiB.
        assert_eq!([APART.of_one(20), APART.of_one(4116)], [4, 33]);
        assert_eq!(APART.of(2 * 4116, 4116), 66);
        assert_eq!(TRAINS.of(4116, 4116), 33, "a train of one");
        assert_eq!(TRAINS.of(15 * 4116, 4116), (15 * (4116 + 55 + 55_u32)).div_ceil(256));
    }

    #[test]
    fn what_is_occupied_at_least_is_no_more_than_what_is_counted() {
        for unit in [CABLE, APART, TRAINS] {
            for (len, segment) in
                [(20, 20), (20, 4116), (4116, 4116), (15 * 4116, 4116), (4117, 4116), (0, 0)]
            {
                let counted = unit.of(len, segment) * u32::from(unit.block);
                assert!(unit.at_least(len, segment) <= counted, "{unit:?} {len} {segment}");
            }
        }
        assert_eq!(TRAINS.at_least(20, 20), 832);
        assert_eq!(TRAINS.at_least(2 * 4116, 4116), 2 * 4116);
    }

    #[test]
    fn what_fits_fits_and_one_more_does_not() {
        for unit in [CABLE, APART, TRAINS] {
            for len in [20, 116, 1056, 4116] {
                for blocks in 0..400 {
                    let n = unit.packets(blocks, len, 64);
                    assert!(n == 0 || unit.of(n as usize * len, len) <= blocks, "{unit:?} {len} {blocks}");
                    assert!(
                        n == 64 || unit.of((n as usize + 1) * len, len) > blocks,
                        "{unit:?} {len} {blocks}"
                    );
                }
            }
        }
    }

    #[test]
    fn only_what_travels_together_is_better_sent_together() {
        assert_eq!([CABLE.train(4116), APART.train(4116), TRAINS.train(4116)], [1, 1, 15]);
        assert_eq!([TRAINS.train(65_507), TRAINS.train(70_000), TRAINS.train(0)], [1, 0, 65_507]);
    }

    /// A train that becomes shorter or smaller than the room requested for it takes no more credit.
    #[test]
    fn less_takes_no_more() {
        for unit in [CABLE, APART, TRAINS] {
            for n in 1..20_usize {
                let whole = unit.of(n * 4116, 4116);
                assert!((1..=n).all(|m| unit.of(m * 4116, 4116) <= whole), "{unit:?} {n}");
                assert!((20..4116).step_by(64).all(|len| unit.of(n * len, len) <= whole), "{unit:?} {n}");
                assert!(unit.of((n - 1) * 4116 + 20, 4116) <= whole, "{unit:?} {n}");
            }
        }
    }
}
