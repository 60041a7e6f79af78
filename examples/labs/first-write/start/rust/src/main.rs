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

    // TODO 1: WRITE the text from `source` to `target`, at OFFSET: `left.qp.write(id, source.all(), target.remote(...))`. Wait for
    // the completion with `left.wait()`. Print its status (`{}`), and the text that is now in `target`.

    // TODO 2: Put another text of the same length into `source` (`write_at`), and WRITE it with a remote key that does not exist
    // (`rkey` of what `target.remote` gives). Print the status of that completion, and once more the text in `target`: which of the
    // two is it?

    println!("nothing was written yet: {} bytes for offset {OFFSET}", source.len().min(target.len()));
    Ok(())
}
