//! The pause frame.

use super::PRIORITIES;
use crate::rate::Rate;
use time::Duration;

/// A time in units of 512 bits at the rate of the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quanta(pub u16);

impl Quanta {
    /// The longest time: a port that will end the pause itself asks for it.
    pub const MAX: Self = Self(u16::MAX);

    /// The time at a port of rate `rate`.
    #[must_use]
    pub const fn time(self, rate: Rate) -> Duration {
        rate.time_for(self.0 as u64 * 64)
    }
}

/// A frame that stops a peer from sending, or lets it go on (a time of 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseFrame {
    /// All traffic (IEEE 802.3x).
    Link(Quanta),
    /// Single priorities (IEEE 802.1Qbb): those with a time.
    Priorities([Option<Quanta>; PRIORITIES]),
}

/// Why a frame is not a pause frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedPause {
    /// It ends before its fields do.
    #[error("a pause frame of {0} bytes is too short")]
    TooShort(usize),
    /// It is not sent to the address of pause frames.
    #[error("a pause frame is sent to 01:80:c2:00:00:01")]
    Destination,
    /// Its EtherType is not that of MAC control frames.
    #[error("EtherType {0:#06x} is not that of MAC control frames, 0x8808")]
    EtherType(u16),
    /// It is another MAC control frame.
    #[error("operation {0:#06x} of a MAC control frame is no pause")]
    Opcode(u16),
}

/// The group address that no bridge forwards.
const DESTINATION: [u8; 6] = [0x01, 0x80, 0xC2, 0x00, 0x00, 0x01];
const MAC_CONTROL: u16 = 0x8808;
const PAUSE: u16 = 0x0001;
const PRIORITY_PAUSE: u16 = 0x0101;

impl PauseFrame {
    /// Length of a frame without its FCS: the shortest that Ethernet has.
    pub const LEN: usize = 60;

    /// Bytes that a frame takes on the wire: with FCS, preamble and the gap to the next frame.
    pub const WIRE_LEN: u32 = 60 + 4 + 8 + 12;

    /// Encodes the frame for the wire, without FCS.
    #[must_use]
    pub fn encode(&self, source: [u8; 6]) -> [u8; Self::LEN] {
        let mut frame = [0; Self::LEN];
        let mut put = {
            let mut at = 0;
            move |frame: &mut [u8; Self::LEN], bytes: &[u8]| {
                for (to, from) in frame.iter_mut().skip(at).zip(bytes) {
                    *to = *from;
                }
                at += bytes.len();
            }
        };
        put(&mut frame, &DESTINATION);
        put(&mut frame, &source);
        put(&mut frame, &MAC_CONTROL.to_be_bytes());
        match self {
            Self::Link(time) => {
                put(&mut frame, &PAUSE.to_be_bytes());
                put(&mut frame, &time.0.to_be_bytes());
            }
            Self::Priorities(times) => {
                let named = |(priority, time): (usize, &Option<Quanta>)| u8::from(time.is_some()) << priority;
                let vector: u8 = times.iter().enumerate().map(named).sum();
                put(&mut frame, &PRIORITY_PAUSE.to_be_bytes());
                put(&mut frame, &[0, vector]);
                for time in times {
                    put(&mut frame, &time.unwrap_or_default().0.to_be_bytes());
                }
            }
        }
        frame
    }

    /// Decodes a frame, with or without FCS.
    ///
    /// # Errors
    ///
    /// It is not a pause frame, or it is too short.
    pub fn decode(frame: &[u8]) -> Result<Self, MalformedPause> {
        let too_short = || MalformedPause::TooShort(frame.len());
        let word = |at: usize| match frame.get(at..at + 2) {
            Some(&[high, low]) => Ok(u16::from_be_bytes([high, low])),
            _ => Err(too_short()),
        };
        if frame.get(..6).ok_or_else(too_short)? != DESTINATION {
            return Err(MalformedPause::Destination);
        }
        let ether_type = word(12)?;
        if ether_type != MAC_CONTROL {
            return Err(MalformedPause::EtherType(ether_type));
        }
        match word(14)? {
            PAUSE => word(16).map(|time| Self::Link(Quanta(time))),
            PRIORITY_PAUSE => {
                // The high byte of the vector is reserved.
                let vector = word(16)?;
                let mut times = [None; PRIORITIES];
                for (priority, time) in times.iter_mut().enumerate() {
                    let quanta = word(18 + 2 * priority)?;
                    *time = (vector >> priority & 1 == 1).then_some(Quanta(quanta));
                }
                Ok(Self::Priorities(times))
            }
            other => Err(MalformedPause::Opcode(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Priority 3 pauses for the longest time, priority 4 resumes.
    const FRAME: &str = "0180c2000001 020000000001 8808 0101 0018 0000 0000 0000 ffff 0000 0000 0000 0000";

    fn bytes(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        (0..digits.len() / 2)
            .map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).expect("hexadecimal"))
            .collect()
    }

    #[test]
    fn a_frame_is_laid_out_as_on_the_wire() {
        let mut times = [None; PRIORITIES];
        (times[3], times[4]) = (Some(Quanta::MAX), Some(Quanta(0)));
        let frame = PauseFrame::Priorities(times);
        let mut wanted = bytes(FRAME);
        wanted.resize(60, 0);
        assert_eq!(frame.encode([2, 0, 0, 0, 0, 1]).to_vec(), wanted);
        assert_eq!(PauseFrame::decode(&wanted), Ok(frame));
        let link = PauseFrame::Link(Quanta(0x1234)).encode([2, 0, 0, 0, 0, 1]);
        assert_eq!(link[12..18], [0x88, 0x08, 0x00, 0x01, 0x12, 0x34]);
        assert_eq!(PauseFrame::decode(&link), Ok(PauseFrame::Link(Quanta(0x1234))));
    }

    #[test]
    fn other_frames_are_refused_by_reason() {
        let good = bytes(FRAME);
        let with = |at: usize, byte: u8| {
            let mut frame = good.clone();
            frame[at] = byte;
            PauseFrame::decode(&frame)
        };
        assert_eq!(with(5, 2), Err(MalformedPause::Destination));
        assert_eq!(with(12, 8), Err(MalformedPause::EtherType(0x0808)));
        assert_eq!(with(14, 2), Err(MalformedPause::Opcode(0x0201)));
        assert!(with(16, 0xFF).is_ok(), "a reserved byte");
        for len in 0..good.len() {
            assert_eq!(PauseFrame::decode(&good[..len]), Err(MalformedPause::TooShort(len)));
        }
        assert!(PauseFrame::decode(&good).is_ok());
    }

    #[test]
    fn a_quantum_is_512_bits_long() {
        for (gbps, nanos, longest_us) in
            [(10, 51.2, 3355.4), (40, 12.8, 838.8), (100, 5.12, 335.5), (400, 1.28, 83.9)]
        {
            let rate = Rate::from_gbps(gbps);
            assert_eq!(Quanta(1).time(rate).as_nanos(), f64::ceil(nanos) as u128);
            let us = Quanta::MAX.time(rate).as_secs_f64() * 1e6;
            assert!((us - longest_us).abs() < 0.1, "{gbps} Gb/s: {us}");
            // Whatever the rate, as many bytes are withheld, but for what fits into the last nanosecond.
            let withheld = rate.bytes_in(Quanta::MAX.time(rate));
            assert!((4_194_240..4_194_240 + gbps).contains(&withheld), "{gbps} Gb/s: {withheld}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_can_be_read(times in any::<[Option<u16>; 8]>(), source in any::<[u8; 6]>()) {
            let frame = PauseFrame::Priorities(times.map(|t| t.map(Quanta)));
            prop_assert_eq!(PauseFrame::decode(&frame.encode(source)), Ok(frame));
        }

        #[test]
        fn no_input_causes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..70)) {
            let _ = PauseFrame::decode(&bytes);
        }
    }
}
