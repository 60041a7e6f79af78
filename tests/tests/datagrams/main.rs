//! Datagrams, multicast groups and the pace of what nobody acknowledges, in virtual time and over sockets.

mod groups;
mod headers;
mod pace;
mod services;
mod sockets;
