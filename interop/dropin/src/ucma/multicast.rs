//! Multicast groups. Joining one only tells the program its GID: the queue pair joins by `ibv_attach_mcast`.

use super::Ucma;
use super::abi::{self, Ece, event};
use super::name::Name;
use super::pipe::PipeId;
use super::state::{Group, Stage, Waiting, answer, ud_param};
use crate::ah::kernel_attributes;
use crate::errno::Errno;
use crate::hub::locked;
use rnic::cm::protocol::UDP_QKEY;
use rnic::{AddressVector, Gid};
use zerocopy::IntoBytes;

/// `RDMA_MC_JOIN_FLAG_FULLMEMBER` and `RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER`.
const FLAGS: [u16; 2] = [0, 1];

/// `ENOTSUPP` of Linux, which user programs do not have a name for: RoCE v2 has no multicast over IPv6 there.
const NOT_SUPPORTED: Errno = Errno(524);

/// The queue pair number of all members (IBTA 10.5.1).
const MULTICAST_QPN: u32 = 0xff_ffff;

/// As the kernel: `IPV6_DEFAULT_HOPLIMIT`.
const HOP_LIMIT: u8 = 64;

impl Ucma {
    pub(super) fn join_ip(&self, channel: PipeId, command: &abi::JoinIpMcast) -> Result<u32, Errno> {
        self.join(channel, command.id, command.uid, Name::read(&command.addr))
    }

    pub(super) fn join_any_family(&self, channel: PipeId, command: &abi::JoinMcast) -> Result<u32, Errno> {
        if !FLAGS.contains(&command.join_flags) {
            return Err(Errno::INVALID);
        }
        let name = Name::read(&command.addr);
        self.join(
            channel,
            command.id,
            command.uid,
            name.filter(|name| name.len() == usize::from(command.addr_size)),
        )
    }

    fn join(&self, channel: PipeId, id: u32, uid: u64, name: Option<Name>) -> Result<u32, Errno> {
        let device = {
            let mut state = locked(&self.state);
            let own = state.id(channel, id)?;
            if !matches!(own.stage, Stage::Bound | Stage::AddressResolved) {
                return Err(Errno::INVALID);
            }
            own.device.ok_or(Errno::INVALID)?
        };
        let group = match name.ok_or(Errno::INVALID)? {
            Name::V4(name) => Gid::from(*name.ip()),
            Name::Ib(name) => Gid(name.addr),
            Name::V6(_) => return Err(NOT_SUPPORTED.because("RoCE v2 has no multicast over IPv6 in Linux")),
        };
        let nic = self.nics.get(device)?;
        let mut param = ud_param(&[]);
        (param.qp_num, param.qkey) = (MULTICAST_QPN, UDP_QKEY.0);
        param.ah_attr = kernel_attributes(&AddressVector {
            dgid: group,
            sgid_index: nic.hub.address_index() as u8,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
            port_num: 1,
            is_global: true,
        });
        let mut state = locked(&self.state);
        state.id(channel, id)?;
        let group = state.add_group(Group { id, reported: 0 });
        let answer = answer(uid, group, event::MULTICAST_JOIN, 0, param.as_bytes(), Ece::default());
        state.queue(id, Waiting { group: Some(group), ..Waiting::new(id, answer) });
        Ok(group)
    }

    pub(super) fn leave(&self, channel: PipeId, command: &abi::DestroyId) -> Result<u32, Errno> {
        let mut state = locked(&self.state);
        let id = state.groups.get(&command.id).ok_or(Errno(libc::ENOENT))?.id;
        state.id(channel, id)?;
        state.leave(channel, command.id).ok_or(Errno(libc::ENOENT))
    }
}
