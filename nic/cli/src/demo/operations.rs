//! Every operation of a reliable connection.

use super::client::{Client, Connection};
use super::messages::{Piece, Setup};
use super::{Outcome, expect};
use rnic::{FlushKind, Gather, Gid, Operation, Remote, Sge};

/// The size of a message in bytes: three packets, the last of them not full.
const LEN: usize = 2500;

/// The setup of connections with ladders: the path MTU of an Ethernet with 1500-byte frames, and an RNR wait of 10.24 ms
/// (code 20), which is longer than the server takes to post a receive.
pub(super) const DRAWN: Setup = Setup { mtu: Some(1024), min_rnr_timer: 20, buffer: 8192 };

/// Makes the first connection.
pub(super) fn introduce(client: &mut Client<'_>) -> Outcome<Connection> {
    client.page.section(
        "1. Connecting two queue pairs",
        "To communicate, two queue pairs (QPs) need each other's address (GID), QP number and initial packet sequence \
         number (PSN). These are exchanged outside RDMA: here as JSON over a pipe between the two processes.",
    );
    let connection = client.connect(DRAWN)?;
    let here = connection.end.qp.address();
    for (name, process, end) in
        [("client", std::process::id(), here), ("server", client.server_process, connection.server)]
    {
        client.page.row(
            &format!("{name}  "),
            &format!(
                "process {process}, GID {}, QP {:#08x}, initial PSN {}, path MTU up to {}",
                Gid(end.gid),
                end.qpn,
                end.psn,
                end.mtu
            ),
        );
    }
    Ok(connection)
}

/// Performs all operations. The side that receives the data verifies it.
pub(super) fn all(client: &mut Client<'_>, connection: &mut Connection) -> Outcome {
    client.page.section(
        "2. Every operation",
        "Each ladder shows the packets between the two NICs as the client's port sees them. #0 is the initial PSN of the \
         queue pair. The path MTU is 1024 bytes, so longer messages take several packets. The ICRC at the end of each \
         packet protects every field that routers do not change.",
    );
    write(client, connection)?;
    write_with_immediate(client, connection)?;
    read(client, connection)?;
    send(client, connection)?;
    send_with_immediate(client, connection)?;
    compare_and_swap(client, connection)?;
    fetch_and_add(client, connection)?;
    atomic_write(client, connection)?;
    flush(client, connection)?;
    window(client, connection)?;
    nothing(client, connection)?;
    inline(client, connection)?;
    scatter_gather(client, connection)
}

/// A message at the start of the server's buffer.
const fn whole(len: usize) -> Piece {
    Piece { at: 0, len }
}

fn write(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "RDMA WRITE, 2500 bytes",
        "The client names the target in the server's memory by address and rkey. The server's program takes no part.",
    );
    let pattern = client.load(c, LEN)?;
    c.end.qp.write(1, c.buffer.slice(0..LEN)?, c.remote)?;
    client.succeed(c, 1)?;
    client.compare(c, whole(LEN), pattern, 0)?;
    client.draw();
    client.page.proved("the server verified 2500 bytes");
    Ok(())
}

fn write_with_immediate(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "RDMA WRITE WITH IMMEDIATE, 300 bytes",
        "The same, but the server's program is notified: 4 bytes of immediate data arrive with a receive completion.",
    );
    let pattern = client.load(c, 300)?;
    client.post_receive(c, &[])?;
    let imm = Some(0x2a);
    c.end.qp.post(2, Operation::Write { remote: c.remote, imm }, c.buffer.slice(0..300)?)?;
    client.succeed(c, 2)?;
    client.received(c, 300, imm)?;
    client.compare(c, whole(300), pattern, 0)?;
    client.draw();
    client.page.proved("the server verified 300 bytes and received the immediate data 0x2a");
    Ok(())
}

fn read(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "RDMA READ, 2500 bytes",
        "One request packet, three response packets. The responses use the next three PSNs of the client's sequence.",
    );
    let (_, wanted) = client.fill(c, LEN)?;
    c.end.qp.read(3, c.buffer.slice(0..LEN)?, c.remote)?;
    client.succeed(c, 3)?;
    client.compare_here(c, &wanted)?;
    client.draw();
    client.page.proved("the client verified 2500 bytes");
    Ok(())
}

fn send(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "SEND, 2500 bytes",
        "The message goes into a buffer that the server posted beforehand: the receiver chooses the target.",
    );
    let pattern = client.load(c, LEN)?;
    client.post_receive(c, &[whole(4096)])?;
    c.end.qp.send(4, c.buffer.slice(0..LEN)?)?;
    client.succeed(c, 4)?;
    client.received(c, LEN, None)?;
    client.compare(c, whole(LEN), pattern, 0)?;
    client.draw();
    client.page.proved("the server received and verified 2500 bytes");
    Ok(())
}

fn send_with_immediate(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "SEND WITH IMMEDIATE, 100 bytes",
        "A SEND whose completion at the server also carries 4 bytes of immediate data.",
    );
    let pattern = client.load(c, 100)?;
    client.post_receive(c, &[whole(4096)])?;
    let imm = Some(7);
    c.end.qp.post(5, Operation::Send { imm, invalidate: None }, c.buffer.slice(0..100)?)?;
    client.succeed(c, 5)?;
    client.received(c, 100, imm)?;
    client.compare(c, whole(100), pattern, 0)?;
    client.draw();
    client.page.proved("the server received and verified 100 bytes and the immediate data 7");
    Ok(())
}

/// The server's word: initially, after the swap, and after the addition.
const WORD: [u64; 3] = [1000, 2000, 2042];

fn compare_and_swap(client: &mut Client<'_>, c: &Connection) -> Outcome {
    let [before, after, _] = WORD;
    client.page.operation(
        "CMP_AND_SWP, 8 bytes",
        "If the server's word is 1000 (0x3e8), it becomes 2000 (0x7d0), atomically. The response returns the old value.",
    );
    client.store(c, before)?;
    let operation = Operation::CompareSwap { remote: c.remote, compare: before, swap: after };
    c.end.qp.post(6, operation, c.buffer.slice(0..8)?)?;
    client.succeed(c, 6)?;
    atomic_result(client, c, before, after)
}

fn fetch_and_add(client: &mut Client<'_>, c: &Connection) -> Outcome {
    let [_, before, after] = WORD;
    client.page.operation(
        "FETCH_ADD, 8 bytes",
        "Adds 42 (0x2a) to the server's word. The response returns the old value.",
    );
    c.end.qp.post(7, Operation::FetchAdd { remote: c.remote, add: after - before }, c.buffer.slice(0..8)?)?;
    client.succeed(c, 7)?;
    atomic_result(client, c, before, after)
}

fn atomic_result(client: &mut Client<'_>, c: &Connection, before: u64, after: u64) -> Outcome {
    let old = c.buffer.load_u64(0)?;
    expect(old == before, || format!("the response returned {old} instead of {before}"))?;
    let new = client.stored(c)?;
    expect(new == after, || format!("the server's word is {new} instead of {after}"))?;
    client.draw();
    client.page.proved(&format!("the client received {before}, and the server's word is {after}"));
    Ok(())
}

fn atomic_write(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "ATOMIC_WRITE, 8 bytes",
        "Stores 4711 (0x1267) in the server's word. A reader sees either the old value or the new one. The store takes \
         effect after all earlier operations.",
    );
    c.buffer.store_u64(0, 4711)?;
    c.end.qp.post(11, Operation::AtomicWrite { remote: c.remote }, c.buffer.slice(0..8)?)?;
    client.succeed(c, 11)?;
    let new = client.stored(c)?;
    expect(new == 4711, || format!("the server's word is {new} instead of 4711"))?;
    client.draw();
    client.page.proved("the server's word is 4711");
    Ok(())
}

fn flush(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "RDMA WRITE of 300 bytes, then FLUSH",
        "The acknowledgement of a WRITE means that it arrived. The response to FLUSH means that it is visible in memory \
         to everything at the server.",
    );
    let pattern = client.load(c, 300)?;
    let kind = FlushKind { global: true, ..FlushKind::default() };
    c.end.qp.write(12, c.buffer.slice(0..300)?, c.remote)?;
    c.end.qp.post(13, Operation::Flush { remote: c.remote, len: 300, flush: kind }, Gather::Empty)?;
    client.succeed(c, 12)?;
    client.succeed(c, 13)?;
    client.compare(c, whole(300), pattern, 0)?;
    client.draw();
    client.page.proved("both completed, and the server verified 300 bytes");
    Ok(())
}

fn window(client: &mut Client<'_>, c: &Connection) -> Outcome {
    /// The client's last message. Wireshark looks for RPC over RDMA in each SEND with invalidate and calls those of less
    /// than eight bytes malformed.
    const DONE: &[u8] = b"done: the window can be closed";
    /// The part of the server's buffer that the window covers.
    const SHOWN: Piece = Piece { at: 1000, len: 200 };
    client.page.operation(
        "Memory window: WRITE, then SEND WITH INVALIDATE",
        "The server bound a type 2 window to 200 bytes of its buffer (BIND_MW is local and sends no packet) and gave the \
         client the rkey. The client's last message invalidates it.",
    );
    let rkey = client.open_window(c, SHOWN)?;
    let pattern = client.load(c, SHOWN.len)?;
    let shown = Remote { addr: c.remote.addr + SHOWN.at as u64, rkey };
    client.post_receive(c, &[whole(64)])?;
    c.end.qp.write(14, c.buffer.slice(0..SHOWN.len)?, shown)?;
    let send = Operation::Send { imm: None, invalidate: Some(rkey) };
    c.end.qp.post(15, send, Gather::Inline(DONE.into()))?;
    client.succeed(c, 14)?;
    client.succeed(c, 15)?;
    client.received_and_closed(c, DONE.len(), rkey)?;
    client.compare(c, SHOWN, pattern, 0)?;
    client.draw();
    client.page.proved("the server verified 200 bytes, and its receive completion names the key");
    Ok(())
}

fn nothing(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "RDMA WRITE, 0 bytes",
        "One packet without payload, acknowledged like any other. It accesses no memory, so its rkey need not be valid.",
    );
    let before = client.stored(c)?;
    let nowhere = Remote { addr: 0, rkey: 0 };
    c.end.qp.write(8, Gather::Empty, nowhere)?;
    client.succeed(c, 8)?;
    let after = client.stored(c)?;
    expect(before == after, || "a WRITE of 0 bytes changed the server's memory".to_owned())?;
    client.draw();
    client.page.proved("it completed, and the server's memory is unchanged");
    Ok(())
}

fn inline(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "SEND, 64 bytes inline",
        "The data is copied into the work request. It needs no registered memory, and the buffer can be reused at once.",
    );
    let (pattern, bytes) = client.fresh(64);
    client.post_receive(c, &[whole(64)])?;
    c.end.qp.send(9, Gather::Inline(bytes.into()))?;
    client.succeed(c, 9)?;
    client.received(c, 64, None)?;
    client.compare(c, whole(64), pattern, 0)?;
    client.draw();
    client.page.proved("the server received and verified 64 bytes");
    Ok(())
}

fn scatter_gather(client: &mut Client<'_>, c: &Connection) -> Outcome {
    client.page.operation(
        "SEND, gathered from 3 buffers and scattered to 2",
        "One message on the wire: the client gathers it from three buffers, the server scatters it to two.",
    );
    let (pattern, bytes) = client.fresh(1500);
    let mut list: Vec<Sge> = Vec::new();
    let mut taken = 0;
    for (at, len) in [(4000, 700), (0, 1), (2000, 799)] {
        c.buffer.write_at(at, &bytes[taken..taken + len])?;
        list.push(c.buffer.slice(at..at + len)?);
        taken += len;
    }
    let (first, second) = (Piece { at: 100, len: 1000 }, Piece { at: 5000, len: 500 });
    client.post_receive(c, &[first, second])?;
    c.end.qp.send(10, Gather::from(&list[..]))?;
    client.succeed(c, 10)?;
    client.received(c, 1500, None)?;
    client.compare(c, first, pattern, 0)?;
    client.compare(c, second, pattern, first.len)?;
    client.draw();
    client.page.proved("the server verified 1000 bytes in one buffer and 500 in the other");
    Ok(())
}
