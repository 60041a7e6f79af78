//! Which of several equal ports a packet takes.

/// Picoseconds since the fabric began.
pub type Picos = u64;

/// What a switch knows of its ports.
pub trait Loads {
    /// Bytes that wait at a port to leave, of all classes.
    fn queued(&self, port: u16) -> u64;
    /// Bytes that have left through it since the beginning.
    fn sent(&self, port: u16) -> u64;
    /// Its rate, in bits per second.
    fn rate(&self, port: u16) -> u64;
    /// Whether the port may not send the class now: it is paused, or has no credit.
    fn blocked(&self, port: u16, class: u8) -> bool;
}

/// A packet that comes to a switch with more than one way to its destination.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The time.
    pub now: Picos,
    /// A hash of addresses, protocol and ports, without a switch's seed.
    pub flow: u64,
    /// The number of the destination host.
    pub dst: usize,
    /// Bytes of the packet on the wire.
    pub bytes: u32,
    /// Its class.
    pub class: u8,
    /// The ports to choose from: at least two.
    pub ports: &'a [u16],
}
