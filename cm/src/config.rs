//! What an endpoint is told when it is made: its identity, its timing and its bounds.

use qp::Mtu;
use qp::wire::mad::cm::CmTimeout;
use time::Duration;

/// Configuration of an [`Endpoint`](crate::Endpoint).
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// GUID of the device, which REQ and REP carry.
    pub ca_guid: u64,
    /// The largest path MTU that the device carries. A REQ for more is refused with reason 26.
    pub max_mtu: Mtu,
    /// How long the device may take to acknowledge a packet: the target ACK delay of a REP.
    pub ack_delay: CmTimeout,
    /// What happens to a connection whose peer seems to have forgotten it.
    pub stale: StalePolicy,
    /// The service timeout of the MRA that answers a second REQ or REP while the program has not answered the first;
    /// `None` to send none.
    pub mra: Option<CmTimeout>,
    /// How long a REQ or SIDR_REQ for a service on which nobody listens is held, in case a listener comes; then it is
    /// refused (REJ with reason 8, SIDR_REP with status 1). Zero refuses at once.
    pub hold: Duration,
    /// The shortest and the longest time that the fields of a peer's message may set as a timeout.
    pub timeouts: (Duration, Duration),
    /// The top byte of all local communication IDs and of the request IDs of resolutions: by it, whoever receives the
    /// datagrams of an address that several endpoints share knows which of them an answer is for. `None` if nobody
    /// shares it: then the whole ID is random.
    pub slot: Option<u8>,
    /// The bounds of the tables.
    pub limits: Limits,
}

/// What happens to an established connection when a REQ names its remote queue pair again: the peer must have lost
/// the connection, or the REQ is forged. The REQ is rejected with reason 10 in any case (IBTA 12.9.8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StalePolicy {
    /// Tell the program by [`Event::StaleSuspected`](crate::Event::StaleSuspected), and keep the connection until
    /// [`Endpoint::confirm_stale`](crate::Endpoint::confirm_stale). The REQ proves nothing: its source address may
    /// be forged.
    #[default]
    Confirm,
    /// Believe it, and close the connection with a DREQ, as Linux does.
    Believe,
}

/// Bounds of an endpoint's tables. Nothing grows beyond them, whatever arrives.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all states, with those in TIMEWAIT.
    pub connections: usize,
    /// Connections that this side asks one peer for at a time, up to the RTU. The REQs of others wait for their turn.
    pub requests_per_peer: usize,
    /// Passive connections whose peer has not yet shown that it receives at its address.
    pub half_open: usize,
    /// Of those, the ones that only proven sources may take.
    pub half_open_proven: usize,
    /// Half-open connections of one source address.
    pub half_open_per_source: usize,
    /// Age from which a half-open connection of an unproven source makes room for a new one.
    pub half_open_grace: Duration,
    /// Longest life of a request that the program does not answer.
    pub half_open_life: Duration,
    /// How often a timer repeats the REP to a source that is not proven. Each repetition is one datagram that a
    /// forged REQ makes this host send to its victim, and so is the REJ at the end. A REQ that arrives again is always
    /// answered again.
    pub unproven_retries: u8,
    /// Connections in TIMEWAIT. If there are more, the oldest one leaves it early.
    pub time_wait: usize,
    /// Listeners.
    pub listeners: usize,
    /// The largest backlog of a listener.
    pub backlog: u32,
    /// Requests that are held for a listener to come.
    pub held: usize,
    /// Requests that are held for one source address.
    pub held_per_source: usize,
    /// Answers without a connection that wait to be sent.
    pub answers: usize,
    /// Answers without a connection that wait to be sent to one address.
    pub answers_per_source: usize,
    /// Resolutions (SIDR) that the program has started.
    pub resolutions: usize,
    /// Resolutions of peers that wait for an answer, or whose answer may have to be repeated.
    pub queries: usize,
    /// Resolutions of one source address that wait for an answer. Of this side's own, as many are sent to one peer at a
    /// time; the others wait for their turn.
    pub queries_per_source: usize,
    /// Events that wait for the program. A REQ that finds that many is dropped.
    pub events: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            // As many as Linux posts to queue pair 1 (IB_MAD_QP_SEND_SIZE), and fewer than a receive buffer of 208 KiB,
            // the default of Linux, has room for.
            requests_per_peer: 128,
            half_open: 4096,
            half_open_proven: 1024,
            half_open_per_source: 1024,
            half_open_grace: Duration::from_secs(1),
            half_open_life: Duration::from_secs(120),
            unproven_retries: 3,
            time_wait: 4096,
            listeners: 4096,
            // Linux cuts the backlog to this value.
            backlog: 1024,
            held: 64,
            held_per_source: 4,
            answers: 64,
            answers_per_source: 8,
            resolutions: 1024,
            queries: 256,
            queries_per_source: 16,
            events: 4096,
        }
    }
}

impl Config {
    /// The defaults for a device with this GUID. Times are those of Linux.
    #[must_use]
    pub fn new(ca_guid: u64) -> Self {
        Self {
            ca_guid,
            max_mtu: Mtu::B4096,
            // As rxe's `local_ca_ack_delay`.
            ack_delay: CmTimeout::new(15),
            stale: StalePolicy::default(),
            // As `CMA_CM_MRA_SETTING` of Linux: 69 s.
            mra: Some(CmTimeout::new(24)),
            hold: Duration::from_secs(1),
            timeouts: (Duration::from_millis(100), Duration::from_secs(120)),
            slot: None,
            limits: Limits::default(),
        }
    }

    /// A timeout that a peer's message sets, within the configured bounds.
    pub(crate) fn bounded(&self, timeout: Duration) -> Duration {
        let (least, most) = self.timeouts;
        timeout.max(least).min(most.max(least))
    }
}
