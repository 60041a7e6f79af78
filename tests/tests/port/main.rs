//! The life of a port: events, links and addresses that come and go, partitions.

mod events;
mod host;
mod life;
mod partitions;

use rnic::{AsyncEvent, Device};

/// All events that wait, by name, oldest first.
fn events(device: &Device) -> Vec<&'static str> {
    std::iter::from_fn(|| device.poll_event().expect("not forked")).map(AsyncEvent::name).collect()
}
