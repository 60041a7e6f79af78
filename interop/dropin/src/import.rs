//! Importing objects of other contexts of this process, by their handles.

use crate::abi::{ibv_dm, ibv_mr};
use crate::call::{Handle, Owned, Value, verbs};
use crate::context::Context;
use crate::dm::{self, Dm};
use crate::mr::{self, Mr};
use crate::pd::Pd;

verbs! {
    fn ibv_import_mr(pd: &Pd, handle: u32) -> Handle<ibv_mr> {
        mr::import(pd, handle)
    }

    fn ibv_unimport_mr(mr: Owned<Mr>) -> Value<()> {
        mr.free();
        Ok(Value(()))
    }

    fn ibv_import_dm(context: &Context, handle: u32) -> Handle<ibv_dm> {
        dm::import(context, handle)
    }

    fn ibv_unimport_dm(dm: Owned<Dm>) -> Value<()> {
        dm.free();
        Ok(Value(()))
    }
}
