//! DCQCN, the congestion control of RoCEv2 networks (Zhu et al., SIGCOMM 2015).
//!
//! The longer a queue is, the more often it marks departing packets ([`CongestionPoint`]). The receiver of marked
//! packets notifies their sender with congestion notification packets (CNPs), but not too often
//! ([`NotificationPoint`]). The sender cuts its rate and lets it grow again ([`ReactionPoint`]).
//!
//! Settings have NVIDIA's names where NVIDIA has one ([`Settings`]); where published implementations differ, the
//! variant has a name of its own. [`Preset`] holds the published sets. [`Options`] is a preset with changes, as in a
//! configuration file or on a command line. [`fluid`] computes what theory predicts for a set.

mod congestion;
pub mod fluid;
mod notification;
mod preset;
mod reaction;
mod settings;
#[cfg(test)]
mod tests;

pub use congestion::CongestionPoint;
pub use notification::NotificationPoint;
pub use preset::{Options, Preset};
pub use reaction::ReactionPoint;
pub use settings::{
    AlphaOrder, AlphaUpdate, BYTE_RESET_UNIT, FirstIncrease, Notification, Reaction, Red, Settings,
};
