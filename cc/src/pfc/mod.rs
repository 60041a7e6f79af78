//! Priority flow control: a port that runs out of buffer stops its peer, separately for each of eight priorities.
//!
//! * [`PauseFrame`]: the frame on the wire.
//! * [`Ingress`]: the receiving port: when its buffer passes XOFF it asks for a pause; below XON it ends the pause.
//! * [`Paused`]: the sending port: which priorities may not send, and until when.
//! * [`Headroom`]: how much may still arrive after XOFF.
//! * [`Watchdog`]: what to do about a pause that does not end.
//!
//! The format is that of IEEE 802.1Qbb and 802.3 annex 31B, taken from public implementations.

mod frame;
mod headroom;
mod ingress;
mod paused;
mod watchdog;

pub use frame::{MalformedPause, PauseFrame, Quanta};
pub use headroom::{Headroom, Span, mlx5_headroom, response_quanta};
pub use ingress::{Full, Ingress, Thresholds};
pub use paused::{PauseCounters, Paused};
pub use watchdog::{Action, Verdict, Watchdog, WatchdogConfig};

/// The number of priorities.
pub const PRIORITIES: usize = 8;
