//! DCQCN, the congestion control of RoCEv2 networks (Zhu et al., SIGCOMM 2015).
//!
//! A queue marks departing packets the more often the longer it is ([`CongestionPoint`]); the receiver of marked
//! packets tells their sender, by congestion notification packets (CNPs), but not too often ([`NotificationPoint`]);
//! the sender cuts its rate and lets it grow again ([`ReactionPoint`]).
//!
//! What can be set has NVIDIA's names where NVIDIA has one ([`Settings`]); where published implementations differ, the
//! variant has a name of its own. [`Preset`] holds the sets that were published, [`Options`] is a preset with changes,
//! as a configuration file or a command line has it. [`fluid`] says what theory expects of a set.

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
