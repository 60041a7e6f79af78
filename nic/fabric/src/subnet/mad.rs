//! Management datagrams: their header, their fields, and the words for what can be wrong with one.
//!
//! Every management class shares the header (IBTA volume 1, section 13.4.3). Subnet management packets that are routed by the
//! path in them have two fields and two paths more (section 14.2.1.2). For the rest of this room.

/// Bytes of a datagram.
pub const MAD_LEN: usize = 256;

/// Where the attribute begins, in the classes that the fabric answers.
pub(super) const DATA: usize = 64;

/// Bytes of an attribute of subnet management.
pub(super) const SMP_DATA_LEN: usize = 64;

/// The LID of packets that are routed by the path in them.
pub(super) const PERMISSIVE_LID: u16 = 0xFFFF;

/// The first LID of groups.
pub(super) const FIRST_GROUP_LID: u16 = 0xC000;

/// The most cables of a path in a packet.
pub(super) const MOST_HOPS: usize = 63;

/// The slot in the transactions of agents: no program has it.
pub(super) const AGENT: usize = 0xFFFF;

/// The slot in what hosts ask of subnet administration by themselves.
pub(super) const HOSTS: usize = 0xFFFE;

/// Where a record of subnet administration begins: its header is longer by RMPP, and shorter by reserved bytes.
pub(super) const SA_DATA: usize = 56;

/// Management classes.
pub(super) mod class {
    pub(in crate::subnet) const SUBNET_BY_LID: u8 = 0x01;
    pub(in crate::subnet) const SUBNET_ADMINISTRATION: u8 = 0x03;
    pub(in crate::subnet) const PERFORMANCE: u8 = 0x04;
    pub(in crate::subnet) const CONGESTION_CONTROL: u8 = 0x21;
    pub(in crate::subnet) const SUBNET_BY_PATH: u8 = 0x81;
}

/// Methods, and the bit of answers.
pub(super) mod method {
    pub(in crate::subnet) const GET: u8 = 0x01;
    pub(in crate::subnet) const SET: u8 = 0x02;
    pub(in crate::subnet) const SEND: u8 = 0x03;
    pub(in crate::subnet) const TRAP: u8 = 0x05;
    pub(in crate::subnet) const TRAP_REPRESS: u8 = 0x07;
    pub(in crate::subnet) const RESPONSE: u8 = 0x80;
    pub(in crate::subnet) const GET_RESPONSE: u8 = GET | RESPONSE;
}

/// Why an agent refuses a request: bits 2 to 4 of the status (IBTA volume 1, section 13.4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No such class, or no such version of it.
    Class,
    /// No such method.
    Method,
    /// The attribute does not exist, or not with this method.
    Attribute,
    /// A field of the attribute or its modifier has a value that it cannot have.
    Field,
}

impl Refusal {
    pub(super) const fn status(self) -> u16 {
        let code = match self {
            Self::Class => 1,
            Self::Method => 2,
            Self::Attribute => 3,
            Self::Field => 7,
        };
        code << 2
    }
}

/// A field of an attribute: the number of its first bit, where bit 0 is the highest of byte 0, and how many bits it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field(pub(super) usize, pub(super) usize);

impl Field {
    /// Its value; bits beyond the end are 0.
    pub(super) fn get(self, data: &[u8]) -> u64 {
        let bit = |at: usize| data.get(at / 8).map_or(0, |byte| u64::from(byte >> (7 - at % 8) & 1));
        (self.0..self.0 + self.1).fold(0, |value, at| value << 1 | bit(at))
    }

    /// Sets it to the lower bits of a value.
    pub(super) fn set(self, data: &mut [u8], value: u64) {
        for (place, at) in (self.0..self.0 + self.1).rev().enumerate() {
            if let Some(byte) = data.get_mut(at / 8) {
                let mask = 1 << (7 - at % 8);
                *byte = if value >> place & 1 == 1 { *byte | mask } else { *byte & !mask };
            }
        }
    }

    /// Sets it to a value, or to all ones if the value is larger: counters stop at their highest.
    pub(super) fn saturate(self, data: &mut [u8], value: u64) {
        let most = if self.1 >= 64 { u64::MAX } else { (1 << self.1) - 1 };
        self.set(data, value.min(most));
    }

    /// Takes over its value from another attribute.
    pub(super) fn copy(self, from: &[u8], to: &mut [u8]) {
        self.set(to, self.get(from));
    }
}

/// The bytes of a datagram.
#[derive(Clone, PartialEq, Eq)]
pub struct Mad(pub(super) [u8; MAD_LEN]);

impl std::fmt::Debug for Mad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (class, method, attribute) = (self.class(), self.method(), self.attribute());
        let modifier = self.modifier();
        write!(
            f,
            "Mad(class {class:#x}, method {method:#x}, attribute {attribute:#x}, modifier {modifier:#x})"
        )
    }
}

impl Mad {
    /// A datagram of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; MAD_LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; MAD_LEN] {
        &self.0
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    pub(super) fn set_half(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    pub(super) const fn base_version(&self) -> u8 {
        self.0[0]
    }

    pub(super) const fn class(&self) -> u8 {
        self.0[1]
    }

    pub(super) const fn class_version(&self) -> u8 {
        self.0[2]
    }

    pub(super) const fn method(&self) -> u8 {
        self.0[3]
    }

    pub(super) const fn is_response(&self) -> bool {
        self.0[3] & method::RESPONSE != 0
    }

    /// Whether it answers another one: that of a trap has no bit for it.
    pub(super) const fn is_answer(&self) -> bool {
        self.is_response() || self.method() == method::TRAP_REPRESS
    }

    /// Whether it is to be answered: all but answers are, and what is only sent (IBTA volume 1, section 13.4.5).
    pub(super) const fn wants_answer(&self) -> bool {
        !self.is_answer() && self.method() != method::SEND
    }

    pub(super) const fn is_by_path(&self) -> bool {
        self.class() == class::SUBNET_BY_PATH
    }

    /// Whether it is of subnet management: it uses VL15, and ports that are not active yet carry it.
    pub(super) const fn is_smp(&self) -> bool {
        matches!(self.class(), class::SUBNET_BY_LID | class::SUBNET_BY_PATH)
    }

    /// Whether it is on its way back, by its path.
    pub(super) const fn is_returning(&self) -> bool {
        self.0[4] & 0x80 != 0
    }

    pub(super) const fn hop_pointer(&self) -> u8 {
        self.0[6]
    }

    pub(super) const fn hop_count(&self) -> u8 {
        self.0[7]
    }

    pub(super) fn transaction(&self) -> u64 {
        Field(64, 64).get(&self.0)
    }

    pub(super) fn set_transaction(&mut self, id: u64) {
        Field(64, 64).set(&mut self.0, id);
    }

    /// The slot of the program that asks: the upper 16 bits of the transaction.
    pub(super) fn slot(&self) -> usize {
        self.half(8).into()
    }

    pub(super) fn set_slot(&mut self, slot: usize) {
        self.set_half(8, slot as u16);
    }

    pub(super) fn status(&self) -> u16 {
        self.half(4)
    }

    pub(super) fn attribute(&self) -> u16 {
        self.half(16)
    }

    pub(super) fn modifier(&self) -> u32 {
        u32::from_be_bytes([self.0[20], self.0[21], self.0[22], self.0[23]])
    }

    /// The management key that the sender knows.
    pub(super) fn key(&self) -> u64 {
        Field(192, 64).get(&self.0)
    }

    /// The LIDs at both ends of a path in the packet: where it is routed by LID before and after.
    pub(super) fn path_lids(&self) -> [u16; 2] {
        [self.half(32), self.half(34)]
    }

    /// The port through which a path leaves its `hop`-th node, from 1.
    pub(super) fn way_out(&self, hop: usize) -> u8 {
        self.0.get(128 + hop.min(MOST_HOPS)).copied().unwrap_or(0)
    }

    /// The port through which a path has come into the node after its `hop`-th cable, from 1.
    pub(super) fn way_back(&self, hop: usize) -> u8 {
        self.0.get(192 + hop.min(MOST_HOPS)).copied().unwrap_or(0)
    }

    pub(super) fn set_way_back(&mut self, hop: usize, port: u8) {
        if let Some(byte) = self.0.get_mut(192 + hop.min(MOST_HOPS)) {
            *byte = port;
        }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.0[DATA..]
    }

    pub(super) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.0[DATA..]
    }

    /// Makes the answer of a request.
    pub(super) fn answer(&mut self, status: u16) {
        self.0[3] = method::GET_RESPONSE;
        let returns = if self.is_by_path() { 0x8000 } else { 0 };
        self.set_half(4, returns | status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_begin_at_the_highest_bit() {
        let mut data = [0; 8];
        Field(4, 4).set(&mut data, 0xA);
        Field(12, 8).set(&mut data, 0x1FF);
        assert_eq!(data[..3], [0x0A, 0x0F, 0xF0]);
        assert_eq!((Field(12, 8).get(&data), Field(0, 16).get(&data)), (0xFF, 0x0A0F));
        Field(61, 3).set(&mut data, 5);
        assert_eq!((data[7], Field(61, 3).get(&data)), (5, 5));
        Field(0, 8).saturate(&mut data, 300);
        assert_eq!(data[0], 255);
        Field(62, 8).set(&mut data, 0xFF);
        assert_eq!((data[7], Field(62, 8).get(&data)), (7, 0b1100_0000), "bits beyond the end are 0");
    }

    #[test]
    fn the_status_of_an_answer_has_the_direction_of_a_path() {
        let mut mad = Mad([0; MAD_LEN]);
        mad.0[..4].copy_from_slice(&[1, class::SUBNET_BY_PATH, 1, method::SET]);
        mad.answer(Refusal::Field.status());
        assert_eq!(mad.0[3..6], [0x81, 0x80, 7 << 2]);
        mad.0[1] = class::PERFORMANCE;
        mad.answer(Refusal::Attribute.status());
        assert_eq!(mad.0[4..6], [0, 3 << 2]);
    }
}
