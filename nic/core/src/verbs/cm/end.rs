//! Ends of connections by address and port in a few lines: for tests, labs and first steps.

use super::connection::Connection;
use crate::error::Result;
use crate::verbs::connection::RcEnd;
use crate::verbs::device::Device;
use std::net::SocketAddr;
use std::ops::Deref;

/// One end of a reliable connection that was made by address and port: an [`RcEnd`] and its [`Connection`]. Dropping it closes
/// the connection.
#[derive(Debug)]
pub struct End {
    // Dropped first: the peer is told before the queue pair goes.
    pub(super) connection: Connection,
    pub(super) end: RcEnd,
}

impl End {
    /// An end whose queue pair has this connection.
    #[must_use]
    pub const fn new(end: RcEnd, connection: Connection) -> Self {
        Self { connection, end }
    }

    /// The connection.
    #[must_use]
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Closes the connection, as [`Connection::disconnect`].
    ///
    /// # Errors
    /// As [`Connection::disconnect`].
    pub fn disconnect(&self) -> Result<()> {
        self.connection.disconnect()
    }
}

impl Deref for End {
    type Target = RcEnd;

    fn deref(&self) -> &RcEnd {
        &self.end
    }
}

/// An end whose connection is being made: see [`RcEnd::dial`].
#[derive(Debug)]
pub struct Dialling(End);

impl Dialling {
    /// Waits until both sides may send.
    ///
    /// # Errors
    /// As [`Connection::wait`].
    pub fn wait(self) -> Result<End> {
        self.0.connection.wait()?;
        Ok(self.0)
    }

    /// Awaits that both sides may send.
    ///
    /// # Errors
    /// As [`Connection::wait`].
    pub async fn established(self) -> Result<End> {
        self.0.connection.established().await?;
        Ok(self.0)
    }
}

impl RcEnd {
    /// Begins to connect a new end to whoever listens at an address and port. It is not [made](Dialling::wait) before the peer
    /// accepts, so that one thread can be both.
    ///
    /// ```
    /// # use rnic_core as rnic;
    /// use rnic::RcEnd;
    ///
    /// let net = rnic::sim::Net::new(); // or `(rnic::open()?, rnic::open()?)`, on the network
    /// let (a, b) = (net.device(), net.device());
    /// let refused = RcEnd::dial(&a, (b.address(), 7471))?.wait().expect_err("nobody listens");
    /// assert_eq!(
    ///     refused.to_string(),
    ///     "nobody listens on 10.0.0.2:7471 (reject reason 8): start the server first, or check the port",
    /// );
    /// # Ok::<(), rnic::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::connect`], and those of creating its parts.
    pub fn dial(device: &Device, to: impl Into<SocketAddr>) -> Result<Dialling> {
        let end = Self::new(device)?;
        let connection = device.connect(&end.qp, to)?;
        Ok(Dialling(End { connection, end }))
    }
}
