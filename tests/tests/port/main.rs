//! The life of a port: events, links and addresses that disappear and come back, partitions.

mod events;
mod host;
mod life;
mod partitions;

use rnic::{AsyncEvent, Device};

/// All pending events by name, oldest first.
fn events(device: &Device) -> Vec<&'static str> {
    std::iter::from_fn(|| device.poll_event().expect("not forked")).map(AsyncEvent::name).collect()
}
