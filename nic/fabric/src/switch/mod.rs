//! What switches consist of: buffer, queues, lanes with credit.

pub(crate) mod buffer;
mod config;
pub(crate) mod lanes;
mod presets;
pub(crate) mod queues;

pub use buffer::Full;
pub use config::{BufferConfig, Class, Forwarding, Model, SwitchConfig, Watch};
pub use presets::{PRESETS, Preset};
