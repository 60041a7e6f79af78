//! Options that drivers negotiate beyond the standard, and ordering that they promise beyond it.

use crate::abi::ibv_ece;
use crate::call::{InOut, Out, Value, verbs};
use crate::qp::Qp;
use std::ffi::{c_int, c_uint};

verbs! {
    /// Reports no options to negotiate: all are 0.
    fn ibv_query_ece(_qp: &Qp, ece: Out<ibv_ece>) -> () {
        ece.put(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
        Ok(())
    }

    /// Accepts none of the peer's options: they mean nothing to this device.
    fn ibv_set_ece(_qp: &Qp, ece: InOut<'_, ibv_ece>) -> () {
        if ece.comp_mask != 0 {
            return Err(crate::errno::Errno::INVALID);
        }
        let mut ece = ece;
        ece.options = 0;
        Ok(())
    }

    /// Whether the bytes of a message are written in order. They are not always: lost packets arrive later.
    fn ibv_query_qp_data_in_order(_qp: &Qp, _operation: c_uint, _flags: u32) -> Value<c_int> {
        Ok(Value(0))
    }
}
