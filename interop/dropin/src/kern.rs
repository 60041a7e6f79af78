//! Copies between the structures of the kernel's interface and those of verbs. Programs do not
//! call these functions; the original librdmacm does.

use crate::errno::Errno;

/// Does nothing: this library does not talk to the kernel driver.
pub(crate) extern "C" fn nothing() {
    Errno::UNSUPPORTED.set();
}
