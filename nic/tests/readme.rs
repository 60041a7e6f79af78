//! The Rust and the configuration that README.md shows, compiled and run as they stand there.

const README: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md"));

/// This file: what stands in it between the two markers is compiled, and must be what the README shows.
const HERE: &str = include_str!("readme.rs");
const BEGIN: &str = "// README begins";
const MORE: &str = "// README goes on";
const END: &str = "// README ends";

/// The blocks of the README in one language.
fn blocks(language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    README.split(&fence).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())).collect()
}

/// The compiled snippets, without the indentation of their functions.
fn snippets() -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut inside = false;
    for line in HERE.lines() {
        match line.trim() {
            BEGIN => {
                found.push(String::new());
                inside = true;
            }
            MORE => inside = true,
            END => inside = false,
            _ if inside => {
                if let Some(snippet) = found.last_mut() {
                    snippet.push_str(line.strip_prefix("    ").unwrap_or(line));
                    snippet.push('\n');
                }
            }
            _ => {}
        }
    }
    found
}

#[rustfmt::skip]
#[test]
fn a_first_write() -> Result<(), rnic::Error> {
    // README begins
    use rnic::{RcEnd, WcStatus};

    let net = rnic::sim::Net::new();                          // virtual time
    let (a, b) = (net.device(), net.device());
    let (left, right) = RcEnd::pair(&a, &b)?;                 // PD, CQ and QP of each end, connected
    let source = left.register(b"hello rdma")?;
    let target = right.register_remote(10)?;
    left.qp.write(7, source.all(), target.remote(0))?;
    let wc = left.wait()?;
    assert_eq!((wc.wr_id, wc.status), (7, WcStatus::Success));
    assert_eq!(target.to_vec()?, b"hello rdma");
    // README ends
    Ok(())
}

#[rustfmt::skip]
#[test]
fn a_test_with_a_fault() -> Result<(), rnic::Error> {
    let net = rnic::sim::Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = rnic::RcEnd::pair(&a, &b)?;
    let (source, target) = (left.register(&[7; 40_000])?, right.register_remote(40_000)?);
    let traffic = || {
        left.qp.write(1, source.all(), target.remote(0))?;
        left.wait()
    };
    // README begins
    let fault = a.add_fault("tx data psn=#3 drop")?;          // the fourth packet of each connection is lost, once
    // ... traffic ...
    // README ends
    assert_eq!(traffic()?.status, rnic::WcStatus::Success);
    // README goes on
    assert_eq!(a.faults()[0].hits, 1);
    assert_eq!(left.qp.counters().rcvd_seq_err, 1);           // and one NAK told of it
    // README ends
    let _ = fault;
    Ok(())
}

#[rustfmt::skip]
#[test]
fn a_connection() -> Result<(), rnic::Error> {
    // README begins
    use rnic::RcEnd;

    let net = rnic::sim::Net::new();                          // virtual time; on the network, each opens its own device
    let (server, client) = (net.device(), net.device());
    let listener = server.listen(7471)?;
    let dialling = RcEnd::dial(&client, (server.address(), 7471))?;
    let right = listener.accept()?.accept_end()?;             // the server's end
    let left = dialling.wait()?;                              // the client's

    let (inbox, message) = (right.register(&[0; 5])?, left.register(b"hello")?);
    right.qp.recv(1, inbox.all())?;
    left.qp.send(2, message.all())?;
    right.wait()?;
    assert_eq!(inbox.to_vec()?, b"hello");
    // README ends
    Ok(())
}

#[test]
fn the_rust_of_the_readme_is_what_is_compiled_here() {
    let compiled = snippets();
    let shown = blocks("rust");
    assert_eq!(shown.len(), 3, "each block of the README needs a test here that compiles it");
    assert_eq!(compiled, shown);
}

#[test]
fn the_configuration_of_the_readme_is_read() {
    let shown = blocks("toml");
    assert!(!shown.is_empty());
    for text in shown {
        rnic::DeviceConfig::from_toml(&text).expect("the README shows a configuration that works");
    }
}
