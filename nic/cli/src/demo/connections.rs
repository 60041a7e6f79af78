//! Connections by address and port: one that is made, used and closed, and one that is refused.

use super::client::Client;
use super::{Failure, Outcome, expect};
use rnic::cm::ConnectionEvent;
use rnic::{RcEnd, WcStatus};
use std::time::Duration;

/// Size of the message in bytes: one packet.
const LEN: usize = 100;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection that is made and closed.
pub(super) fn made(client: &mut Client<'_>) -> Outcome {
    client.page.operation(
        "A connection by address and port: SEND, 100 bytes",
        "The server listens at a port. Management datagrams between the QPs 1 tell each side the other's QP number and PSN, and close the connection.",
    );
    let server = client.listen()?;
    let dialling = RcEnd::dial(&client.device, server)?;
    client.accept()?;
    let end = dialling.wait()?;
    let (pattern, bytes) = client.fresh(LEN);
    let message = end.register(&bytes)?;
    end.qp.send(1, message.all())?;
    let wc = end.wait()?;
    expect(wc.status == WcStatus::Success, || format!("{}: {}", wc.status, wc.status.explain()))?;
    client.caller_said(LEN, pattern)?;
    end.disconnect()?;
    loop {
        match end.connection().wait_event(PATIENCE)? {
            Some(ConnectionEvent::Disconnected(_)) => break,
            Some(_) => {}
            None => return Err(Failure::new("the server does not confirm the end of the connection")),
        }
    }
    client.draw();
    client.page.proved("the server received and verified 100 bytes, and both sides closed");
    Ok(())
}

/// A connection that the server's program refuses.
pub(super) fn refused(client: &mut Client<'_>) -> Outcome {
    client.page.operation(
        "A connection that is refused",
        "The server's program does not want this connection. The client is told why.",
    );
    let server = client.listen()?;
    let dialling = RcEnd::dial(&client.device, server)?;
    client.refuse()?;
    let Err(error) = dialling.wait() else { return Err(Failure::new("the connection was not refused")) };
    client.draw();
    let text = error.to_string();
    expect(text.contains("(reject reason 28)"), || text.clone())?;
    client.page.proved("the client's error has the reason: 28, the program refuses");
    Ok(())
}
