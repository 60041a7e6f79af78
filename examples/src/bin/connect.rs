//! A server that answers whoever connects to its port, and a client that does.
//!
//! Run it with `cargo run -p rnic-examples --bin connect`: the server starts the client as a process of its own. Or start both
//! yourself, in two terminals or on two hosts, with `server` and `client ADDRESS:PORT` as arguments.

use rnic::cm::{ConnectionEvent, End};
use rnic::{Device, Error, RcEnd, WcStatus};
use std::net::SocketAddr;
use std::process::{Command, exit};
use std::time::Duration;

const SIZE: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server"] => serve(&rnic::open()?, 7471, |_| Ok(()))?,
        ["client", to] => ask(to.parse()?)?,
        _ => serve(&rnic::open()?, 0, |at| {
            let client = Command::new(std::env::current_exe()?).args(["client", &at.to_string()]).spawn();
            client.map(drop)
        })?,
    }
    Ok(())
}

/// Answers one client, after refusing one that says nothing. `ready` is called once clients may come.
fn serve(
    device: &Device,
    port: u16,
    ready: impl FnOnce(SocketAddr) -> std::io::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let listener = device.listen(port)?;
    println!("listening on {}", listener.local());
    ready(listener.local())?;

    let silent = listener.accept()?;
    assert_eq!(silent.private_data()[0], 0);
    silent.reject(b"say who you are")?;

    let request = listener.accept()?;
    let name = String::from_utf8_lossy(request.private_data()).trim_end_matches('\0').to_owned();
    println!("{name} connects from {}", request.peer().ip());
    let end = request.accept_end()?;
    let message = end.register(&[0; SIZE])?;
    end.qp.recv(1, message.all())?;
    check(&end)?;
    println!("{name} says {:?}", String::from_utf8_lossy(&message.to_vec()?).trim_end_matches('\0'));
    end.qp.send(2, message.all())?;
    check(&end)?;

    // The client exits without closing anything; its device does so for it.
    while let Some(event) = end.connection().wait_event(Duration::from_secs(10))? {
        if let ConnectionEvent::Disconnected(cause) = event {
            println!("{name} is gone: {cause}");
            return Ok(());
        }
    }
    Err("the client did not leave".into())
}

fn ask(server: SocketAddr) -> Result<(), Error> {
    let device = rnic::open()?;
    let nobody = SocketAddr::new(server.ip(), server.port() ^ 1);
    // Each of these names what went wrong, and what to do.
    for to in [nobody, server] {
        if let Err(error) = RcEnd::dial(&device, to)?.wait() {
            println!("{error}");
        }
    }
    let end = RcEnd::new(&device)?;
    let connection = device.connect_with(&end.qp, server, &Default::default(), b"ann")?;
    connection.wait()?;
    let mut text = b"hello".to_vec();
    text.resize(SIZE, 0);
    let (message, echo) = (end.register(&text)?, end.register(&[0; SIZE])?);
    end.qp.recv(1, echo.all())?;
    end.qp.send(2, message.all())?;
    end.wait()?;
    end.wait()?;
    assert_eq!(echo.to_vec()?, text);
    exit(0);
}

/// Waits for a completion and returns an error if the work request failed.
fn check(end: &End) -> Result<(), Error> {
    let wc = end.wait()?;
    assert_eq!(wc.status, WcStatus::Success, "{}", wc.status.explain());
    Ok(())
}
