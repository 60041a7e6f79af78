//! Datagrams, multicast groups and the pacing of unacknowledged traffic, in virtual time and over sockets.

mod groups;
mod headers;
mod pace;
mod services;
mod sockets;
