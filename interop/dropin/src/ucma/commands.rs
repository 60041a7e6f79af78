//! Commands: their numbers, and what each of them does.

use super::memory::store;
use super::pipe::PipeId;
use super::service::Space;
use super::state::{Id, Remains, SETTLES, read};
use super::{Ucma, abi, comes_back};
use crate::errno::Errno;
use crate::hub::locked;
use rnic::QpType;
use zerocopy::IntoBytes;

/// How often the end of an identifier looks whether its latest event was taken.
const STEPS: u32 = 100;

macro_rules! commands {
    ($($number:literal $name:ident $call:literal;)*) => {
        $(pub(super) const $name: u32 = $number;)*

        /// The call of librdmacm that users know a command by; `None` if there is no such command.
        pub(super) const fn call_of(number: u32) -> Option<&'static str> {
            match number {
                $($name => Some($call),)*
                _ => None,
            }
        }
    };
}

// `enum` in `rdma_user_cm.h`.
commands! {
    0 CREATE_ID "rdma_create_id";
    1 DESTROY_ID "rdma_destroy_id";
    2 BIND_IP "rdma_bind_addr";
    3 RESOLVE_IP "rdma_resolve_addr";
    4 RESOLVE_ROUTE "rdma_resolve_route";
    5 QUERY_ROUTE "rdma_query_route";
    6 CONNECT "rdma_connect";
    7 LISTEN "rdma_listen";
    8 ACCEPT "rdma_accept";
    9 REJECT "rdma_reject";
    10 DISCONNECT "rdma_disconnect";
    11 INIT_QP_ATTR "rdma_init_qp_attr";
    12 GET_EVENT "rdma_get_cm_event";
    13 GET_OPTION "rdma_get_option";
    14 SET_OPTION "rdma_set_option";
    15 NOTIFY "rdma_notify";
    16 JOIN_IP_MCAST "rdma_join_multicast";
    17 LEAVE_MCAST "rdma_leave_multicast";
    18 MIGRATE_ID "rdma_migrate_id";
    19 QUERY "rdma_query";
    20 BIND "rdma_bind_addr";
    21 RESOLVE_ADDR "rdma_resolve_addr";
    22 JOIN_MCAST "rdma_join_multicast";
    23 RESOLVE_IB_SERVICE "rdma_resolve_ib_service";
    24 WRITE_CM_EVENT "rdma_write_cm_event";
}

/// A command that was written.
pub(super) struct Command<'a> {
    pub(super) number: u32,
    /// What follows the header: the kernel reads most commands in full, whatever length the header gives.
    pub(super) input: &'a [u8],
    /// The length that the header gives.
    pub(super) len: usize,
    /// Room for the answer.
    pub(super) room: usize,
}

impl Ucma {
    pub(super) fn execute(&'static self, channel: PipeId, command: &Command<'_>) -> Result<(), Errno> {
        let input = command.input;
        match command.number {
            CREATE_ID => self.create_id(channel, command),
            DESTROY_ID => self.destroy_id(channel, command),
            BIND_IP => self.bind_ip(channel, &read(input)),
            RESOLVE_IP => self.resolve_ip(channel, &read(input)),
            RESOLVE_ROUTE => self.resolve_route(channel, &read(input)),
            QUERY_ROUTE => {
                let query: abi::Query = read(input);
                let answer = self.query_route(channel, &query, command.room)?;
                command.reply(query.response, &answer)
            }
            CONNECT => self.connect(channel, &read(command.exact())),
            LISTEN => self.listen(channel, &read(input)),
            ACCEPT => self.accept(channel, &read(command.exact())),
            REJECT => self.reject(channel, &read(input)),
            DISCONNECT => self.disconnect(channel, &read(input)),
            INIT_QP_ATTR => {
                let query: abi::InitQpAttr = read(input);
                command.reserve(size_of::<crate::abi::kernel::QpAttr>())?;
                let attr = self.init_qp_attr(channel, &query)?;
                command.reply(query.response, attr.as_bytes())
            }
            SET_OPTION => self.set_option(channel, &read(input)),
            NOTIFY => self.notify(channel, &read(input)),
            JOIN_IP_MCAST => {
                let join: abi::JoinIpMcast = read(input);
                command.answer(join.response, || self.join_ip(channel, &join))
            }
            LEAVE_MCAST => {
                let leave: abi::DestroyId = read(input);
                command.answer(leave.response, || self.leave(channel, &leave))
            }
            MIGRATE_ID => {
                let migrate: abi::MigrateId = read(input);
                command.answer(migrate.response, || self.migrate_id(channel, &migrate))
            }
            QUERY => {
                let query: abi::Query = read(input);
                let answer = self.query(channel, &query, command.room)?;
                command.reply(query.response, &answer)
            }
            BIND => self.bind_any_family(channel, &read(input)),
            RESOLVE_ADDR => self.resolve_address(channel, &read(input)),
            JOIN_MCAST => {
                let join: abi::JoinMcast = read(input);
                command.answer(join.response, || self.join_any_family(channel, &join))
            }
            WRITE_CM_EVENT => self.write_event(channel, &read(input)),
            // GET_OPTION is in no kernel, and RESOLVE_IB_SERVICE asks a subnet administrator, which Ethernet has not.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn create_id(&self, channel: PipeId, command: &Command<'_>) -> Result<(), Errno> {
        command.reserve(4)?;
        let create: abi::CreateId = read(command.input);
        let space = Space::from_code(create.ps).ok_or(Errno::INVALID)?;
        // `ucma_get_qp_type`.
        let qp_type = match space {
            Space::Tcp => QpType::Rc,
            Space::Udp | Space::IpOverIb => QpType::Ud,
            Space::Ib => QpType::from_code(create.qp_type.into()).ok_or(Errno::INVALID)?,
        };
        let id = locked(&self.state).add_id(Id::new(channel, create.uid, space, qp_type));
        let told = command.reply(create.response, id.as_bytes());
        if told.is_err() {
            locked(&self.state).remove(id, &mut Remains::default());
        }
        told
    }

    /// An event of it that has just come may still be taken by the thread that was told of it.
    fn destroy_id(&self, channel: PipeId, command: &Command<'_>) -> Result<(), Errno> {
        command.reserve(4)?;
        let destroy: abi::DestroyId = read(command.input);
        let mut remains = Remains::default();
        // Bounded, because requests for a listener may go on arriving.
        for _ in 0..STEPS {
            let taker = locked(&self.state).taker(channel, destroy.id);
            if !taker.is_some_and(comes_back) {
                break;
            }
            std::thread::sleep(SETTLES / STEPS);
        }
        let reported = {
            let mut state = locked(&self.state);
            state.id(channel, destroy.id)?;
            let gone = state.remove(destroy.id, &mut remains);
            gone.map_or(0, |id| id.reported)
        };
        self.close(&remains);
        command.reply(destroy.response, reported.as_bytes())
    }

    fn migrate_id(&self, to: PipeId, command: &abi::MigrateId) -> Result<u32, Errno> {
        let fd = command.fd.cast_signed();
        // SAFETY: `fcntl` accepts any number.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(Errno(libc::ENOENT));
        }
        let from = self.find(fd).ok_or(Errno::INVALID)?;
        locked(&self.state).migrate(command.id, from, to)
    }
}

impl Command<'_> {
    /// The input as far as the header says that it goes: CONNECT and ACCEPT of older programs end before the options of
    /// vendors.
    fn exact(&self) -> &[u8] {
        &self.input[..self.len.min(self.input.len())]
    }

    fn reserve(&self, room: usize) -> Result<(), Errno> {
        if self.room < room { Err(Errno(libc::ENOSPC)) } else { Ok(()) }
    }

    /// Carries out a command whose answer is a number, unless the program has no room for it.
    fn answer(&self, at: u64, act: impl FnOnce() -> Result<u32, Errno>) -> Result<(), Errno> {
        self.reserve(4)?;
        self.reply(at, act()?.as_bytes())
    }

    /// Stores as much of the answer as the program has room for.
    pub(super) fn reply(&self, at: u64, answer: &[u8]) -> Result<(), Errno> {
        let len = answer.len().min(self.room);
        // SAFETY: the program provides the space.
        unsafe { store(&answer[..len], at) }
    }
}
