//! The first WRITE. Lab of $(student).
//!
//! Two ends of one device are connected to each other, so that one program can be both sides.

use rnic::{Error, RcEnd};

const TEXT: &[u8] = "hello from $(student), number $(number)".as_bytes();
const OFFSET: u64 = $(offset);
const REGION: usize = $(region);

fn main() -> Result<(), Error> {
    let device = rnic::open()?;
    // `rnic lab run` says where it wants the packets.
    if let Some(file) = std::env::var_os("RNIC_CAPTURE") {
        device.capture(file)?;
    }
    let (left, right) = RcEnd::pair(&device, &device)?;
    let source = left.register(TEXT)?;
    let target = right.register_remote(REGION)?;
    println!("the remote region begins at {:#x}", target.remote(0).addr);

    left.qp.write(1, source.all(), target.remote(OFFSET))?;
    println!("first: {}", left.wait()?.status);
    println!("{}", String::from_utf8_lossy(&target.to_vec()?));
    let mut wrong = target.remote(OFFSET);
    wrong.rkey += 1;
    source.write_at(0, &[b'-'; TEXT.len()])?;
    left.qp.write(2, source.all(), wrong)?;
    println!("second: {}", left.wait()?.status);
    println!("{}", String::from_utf8_lossy(&target.to_vec()?));
    Ok(())
}
