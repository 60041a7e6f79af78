//! Address handles.

use crate::abi::kernel::{AhAttr, GlobalRoute};
use crate::abi::*;
use crate::call::{Handle, InOut, Object, Out, Owned, verbs};
use crate::context::Context;
use crate::errno::Errno;
use crate::pd::Pd;
use rnic::{AddressHandle, AddressVector, Gid, WcFlags, WorkCompletion};
use std::cell::UnsafeCell;
use std::ffi::c_void;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    c: UnsafeCell<ibv_ah>,
    pub(crate) inner: AddressHandle,
}

impl Object for Ah {
    type C = ibv_ah;

    fn device(&self) -> Option<rnic::Device> {
        // SAFETY: the field never changes.
        crate::context::device_of(unsafe { (*self.c.get()).context })
    }

    fn handles(&self) -> (u32, u32) {
        // SAFETY: the program does not change the structure during a call.
        (0, unsafe { (*self.c.get()).handle })
    }
}

/// Mask of the bits of a flow label (RFC 8200, section 3).
const FLOW_LABEL: u32 = 0xf_ffff;

/// Converts the address vector that a program gives. As in other drivers, only the lower 20 bits of a flow label count:
/// UCX sets all 32.
pub(crate) fn vector(attr: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        // SAFETY: both union fields are the same 16 bytes.
        dgid: Gid(unsafe { attr.grh.dgid.raw }),
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label & FLOW_LABEL,
        sl: attr.sl,
        port_num: attr.port_num,
        is_global: attr.is_global != 0,
    }
}

fn create(pd: &Pd, way: &AddressVector) -> Result<Handle<ibv_ah>, Errno> {
    let inner = pd.inner.get()?.create_ah(way)?;
    let c = ibv_ah { context: pd.context()?.as_c(), pd: pd.as_c(), handle: 0 };
    Ok(Box::new(Ah { c: UnsafeCell::new(c), inner }).give())
}

/// The address vector back to the sender of a datagram, through the GID table entry that is the port's address. The GRH
/// in front of a datagram may be unaligned, so this takes a pointer: a reference would have to be aligned.
fn back(context: &Context, port: u8, wc: &ibv_wc, grh: *const ibv_grh) -> Result<AddressVector, Errno> {
    if grh.is_null() {
        return Err(Errno::INVALID.because("grh is NULL"));
    }
    let bytes = grh.cast::<[u8; size_of::<ibv_grh>()]>();
    // SAFETY: the program lends the bytes of the GRH, and any bit pattern is valid for bytes.
    let bytes = unsafe { bytes.read_unaligned() };
    let flags = WcFlags::from_bits_truncate(wc.wc_flags);
    // Ignore the `sl` of `wc`, which holds the type of the network header: see `network_type`.
    let completion = WorkCompletion { flags, ..WorkCompletion::default() };
    if port != 1 {
        return Err(Errno::INVALID.because(format_args!("port {port}: the device has one port, 1")));
    }
    let way = context.hub.device.way_back(&completion, &bytes)?;
    let index = u8::try_from(context.hub.address_index()).map_err(|_| Errno::INVALID)?;
    Ok(AddressVector { sgid_index: index, ..way })
}

verbs! {
    fn ibv_create_ah(pd: &Pd, attr: InOut<'_, ibv_ah_attr>) -> Handle<ibv_ah> {
        create(pd, &pd.hub.way(vector(&attr))?)
    }

    fn ibv_init_ah_from_wc(
        context: &Context,
        port: u8,
        wc: InOut<'_, ibv_wc>,
        grh: *mut ibv_grh,
        attr: Out<ibv_ah_attr>,
    ) -> () {
        attr.put(attributes(&back(context, port, &wc, grh)?));
        Ok(())
    }

    fn ibv_create_ah_from_wc(pd: &Pd, wc: InOut<'_, ibv_wc>, grh: *mut ibv_grh, port: u8) -> Handle<ibv_ah> {
        let way = pd.hub.way(back(pd.context()?, port, &wc, grh)?)?;
        create(pd, &way)
    }

    /// Programs need no Ethernet addresses here.
    fn ibv_resolve_eth_l2_from_gid(
        _context: &Context,
        _attr: InOut<'_, ibv_ah_attr>,
        _mac: *mut c_void,
        _vid: *mut c_void,
    ) -> () {
        Err(Errno::UNSUPPORTED)
    }

    fn ibv_destroy_ah(ah: Owned<Ah>) -> () {
        ah.free();
        Ok(())
    }
}

/// Converts an address vector to that of the kernel's interface.
pub(crate) fn kernel_attributes(way: &AddressVector) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: way.dgid.0,
            flow_label: way.flow_label,
            sgid_index: way.sgid_index,
            hop_limit: way.hop_limit,
            traffic_class: way.traffic_class,
            reserved: 0,
        },
        sl: way.sl,
        is_global: u8::from(way.is_global),
        port_num: way.port_num,
        ..AhAttr::default()
    }
}

/// Converts the device's address vector to the attributes of verbs.
pub(crate) fn attributes(way: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: way.dgid.0 },
            flow_label: way.flow_label,
            sgid_index: way.sgid_index,
            hop_limit: way.hop_limit,
            traffic_class: way.traffic_class,
        },
        dlid: 0,
        sl: way.sl,
        src_path_bits: 0,
        static_rate: 0,
        is_global: u8::from(way.is_global),
        port_num: way.port_num,
    }
}
