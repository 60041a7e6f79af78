//! Options of an identifier, and events that a program makes itself.

use super::Ucma;
use super::abi::{self, event};
use super::memory::load;
use super::pipe::PipeId;
use super::state::{Stage, Waiting, answer};
use crate::errno::Errno;
use crate::hub::locked;
use path_record::Record;
use rnic::Mtu;
use rnic::cm::protocol::{CmTimeout, Destination, Path};

/// `RDMA_OPTION_ID` and its names.
const ID: u32 = 0;
const TOS: u32 = 0;
const REUSE: u32 = 1;
const ONLY_FAMILY: u32 = 2;
const ACK_TIMEOUT: u32 = 3;
/// `RDMA_OPTION_IB` and its name.
const IB: u32 = 1;
const PATH: u32 = 1;

/// The longest value of an option that the kernel reads (`KMALLOC_MAX_SIZE` bounds it much higher).
const LONGEST: usize = 72 * 64;

impl Ucma {
    pub(super) fn set_option(&self, channel: PipeId, command: &abi::SetOption) -> Result<(), Errno> {
        let len = command.optlen as usize;
        // The kernel looks for the identifier first.
        locked(&self.state).id(channel, command.id)?;
        if len > LONGEST {
            return Err(Errno::INVALID);
        }
        let mut value = vec![0; len];
        // SAFETY: the program lends the memory for the call.
        unsafe { load(command.optval, &mut value) }?;
        match (command.level, command.optname) {
            (ID, name @ TOS..=ACK_TIMEOUT) => self.set_id_option(channel, command.id, name, &value),
            (IB, PATH) => self.set_path(channel, command.id, &value),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn set_id_option(&self, channel: PipeId, id: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        let byte = || if let [byte] = value { Ok(*byte) } else { Err(Errno::INVALID) };
        let flag = || match value.try_into() {
            Ok(number) => Ok(i32::from_ne_bytes(number) != 0),
            Err(_) => Err(Errno::INVALID),
        };
        let mut state = locked(&self.state);
        let id = state.id(channel, id)?;
        let may_change = |id: &super::state::Id| {
            // Only before the identifier has a port (`rdma_set_reuseaddr` and `rdma_set_afonly` of Linux).
            if matches!(id.stage, Stage::Idle | Stage::Bound) { Ok(()) } else { Err(Errno::INVALID) }
        };
        match name {
            TOS => id.options.tos = byte()?,
            REUSE => {
                let on = flag()?;
                // It may be switched off only while there is no port.
                if on || id.stage == Stage::Idle {
                    id.options.reuse = on
                } else {
                    return Err(Errno::INVALID);
                }
            }
            ONLY_FAMILY => {
                let on = flag()?;
                may_change(id)?;
                id.options.only_family = Some(on);
            }
            _ => {
                let timeout = byte()?;
                if timeout == 0 || timeout > CmTimeout::MAX.code() {
                    return Err(Errno::INVALID);
                }
                id.options.ack_timeout = Some(timeout);
            }
        }
        Ok(())
    }

    /// Sets the route, in place of resolving it: one path among those that are given.
    fn set_path(&self, channel: PipeId, id: u32, value: &[u8]) -> Result<(), Errno> {
        if !value.len().is_multiple_of(Record::LEN) {
            return Err(Errno::INVALID);
        }
        let record = value.chunks(Record::LEN).map(Record).find(Record::is_primary).ok_or(Errno::INVALID)?;
        let device = locked(&self.state).id(channel, id)?.device.ok_or(Errno::INVALID)?;
        let nic = self.nics.get(device)?;
        let most = nic.hub.device.port_attr().active_mtu;
        let mut state = locked(&self.state);
        let own = state.id(channel, id)?;
        if own.stage != Stage::AddressResolved {
            return Err(Errno::INVALID);
        }
        own.path = Some(record.path(nic.gid(), most));
        own.stage = Stage::RouteResolved;
        state.tell(id, event::ROUTE_RESOLVED, 0);
        Ok(())
    }

    /// A program of rdma-core 61 queues an event for itself.
    pub(super) fn write_event(&self, channel: PipeId, command: &abi::WriteCmEvent) -> Result<(), Errno> {
        if !matches!(command.event, event::USER | event::INTERNAL) {
            return Err(Errno::INVALID);
        }
        let mut state = locked(&self.state);
        let uid = state.id(channel, command.id)?.uid;
        let (status, arg) = (command.status.cast_signed(), command.arg.to_ne_bytes());
        let answer = answer(uid, command.id, command.event, status, &arg, abi::Ece::default());
        state.queue(command.id, Waiting::new(command.id, answer));
        Ok(())
    }
}

/// `struct ib_path_rec_data`: flags, and a path as the subnet administrator sends it.
mod path_record {
    use super::{CmTimeout, Destination, Mtu, Path};
    use rnic::{Gid, PKey};

    /// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL`.
    const PRIMARY: u32 = 0x2b;

    pub(super) struct Record<'a>(pub(super) &'a [u8]);

    impl Record<'_> {
        pub(super) const LEN: usize = 72;

        fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
            self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
        }

        pub(super) fn is_primary(&self) -> bool {
            u32::from_ne_bytes(self.bytes(0)) == PRIMARY
        }

        /// The path, from this device, with an MTU that it carries.
        pub(super) fn path(&self, local: Gid, most: Mtu) -> Path {
            // After eight bytes of flags and eight of the service.
            let at = 8;
            let remote = Gid(self.bytes(at + 8));
            let flow = u32::from_be_bytes(self.bytes(at + 44));
            let [mtu] = self.bytes(at + 54);
            let [lifetime] = self.bytes(at + 56);
            let [traffic_class] = self.bytes(at + 48);
            let mtu = Mtu::from_code(mtu & 0x3f).unwrap_or(most).min(most);
            let path = Path::new(local, remote, mtu);
            let to = Destination {
                flow_label: flow >> 8 & 0xf_ffff,
                hop_limit: if flow as u8 == 0 { path.to.hop_limit } else { flow as u8 },
                traffic_class,
                ..path.to
            };
            let lifetime = CmTimeout::new(lifetime & 0x1f);
            Path { to, lifetime, pkey: PKey(u16::from_be_bytes(self.bytes(at + 50))), ..path }
        }
    }
}
