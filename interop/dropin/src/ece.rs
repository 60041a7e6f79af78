//! Options that drivers negotiate beyond the standard, and ordering that they promise beyond it.

use crate::abi::ibv_ece;
use crate::call::{InOut, Out, Value, verbs};
use crate::errno::Errno;
use crate::qp::Qp;
use std::ffi::{c_int, c_uint};

verbs! {
    /// There are no options to negotiate. The libraries of devices without them, such as rxe, say so by this error, and programs
    /// go on without them; they would offer options of vendor 0 otherwise, which librdmacm refuses.
    fn ibv_query_ece(_qp: &Qp, _ece: Out<ibv_ece>) -> () {
        Err(Errno::UNSUPPORTED)
    }

    /// The same for the peer's options.
    fn ibv_set_ece(_qp: &Qp, _ece: InOut<'_, ibv_ece>) -> () {
        Err(Errno::UNSUPPORTED)
    }

    /// Whether the bytes of a message are written in order. They are not always: lost packets arrive later.
    fn ibv_query_qp_data_in_order(_qp: &Qp, _operation: c_uint, _flags: u32) -> Value<c_int> {
        Ok(Value(0))
    }
}
