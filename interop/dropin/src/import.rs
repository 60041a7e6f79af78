//! Objects of other contexts of this process.

use crate::abi::{ibv_dm, ibv_mr};
use crate::call::{Handle, Value, verbs};
use crate::errno::Errno;
use std::ffi::c_void;

verbs! {
    fn ibv_import_mr(_pd: &crate::pd::Pd, _handle: u32) -> Handle<ibv_mr> {
        Err(Errno::UNSUPPORTED)
    }

    fn ibv_unimport_mr(_mr: *mut c_void) -> Value<()> {
        Ok(Value(()))
    }

    fn ibv_import_dm(_context: &crate::context::Context, _handle: u32) -> Handle<ibv_dm> {
        Err(Errno::UNSUPPORTED)
    }

    fn ibv_unimport_dm(_dm: *mut c_void) -> Value<()> {
        Ok(Value(()))
    }
}
