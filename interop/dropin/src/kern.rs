//! Copies between the structures of the kernel's interface and those of verbs. Programs have neither; the original
//! librdmacm does.

use crate::errno::Errno;

/// Nothing here speaks to the kernel.
pub(crate) extern "C" fn nothing() {
    Errno::UNSUPPORTED.set();
}
