//! The table of valid state transitions, and the check of a modify against it.

use super::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use crate::ids::Mtu;
use std::fmt;
use thiserror::Error;

/// The attributes of one state transition. `qp_state` itself is always allowed and appears in neither mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// Attributes that must be set.
    pub required: AttrMask,
    /// Attributes that may be set.
    pub optional: AttrMask,
}

/// The rule for a state transition, or for a modify that stays in a state; `None` if the transition is invalid.
///
/// Three properties of the type decide. A connected queue pair has a peer and access rights; a datagram queue pair
/// has a `qkey` instead. The requester of a reliable connection has retry counters. The responder of a reliable
/// connection answers READs and sends RNR NAKs.
#[must_use]
pub fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    use AttrMask as M;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

    let connected = qp_type.is_connected();
    let reliable = qp_type.is_reliable();
    let requester = matches!(qp_type, QpType::Rc | QpType::XrcSend);
    let responder = matches!(qp_type, QpType::Rc | QpType::XrcRecv);

    // Access control: the rights of the single peer, or the Q_Key that every datagram must carry.
    let admission = if connected { M::ACCESS_FLAGS } else { M::QKEY };
    // QP1 is bound to its port from creation.
    let place = M::PKEY_INDEX | M::PORT.when(qp_type != QpType::Gsi);
    let retries = (M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC).when(requester);
    let answers = (M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER).when(responder);
    let running = M::CUR_STATE
        | admission
        | (M::ALT_PATH | M::PATH_MIG_STATE).when(connected)
        | M::MIN_RNR_TIMER.when(responder);

    let none = M::empty();
    let (required, optional) = match (from, to) {
        // The standard allows it from any state. Linux has nothing to flush in RESET, and refuses it on every device.
        (Reset, Err) => return None,
        (_, Reset | Err) => (none, none),
        (Reset, Init) => (place | admission, none),
        (Init, Init) => (none, place | admission),
        (Init, Rtr) => (
            (M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN).when(connected) | answers,
            M::PKEY_INDEX | admission | M::ALT_PATH.when(connected),
        ),
        (Rtr, Rts) => (M::SQ_PSN | M::TIMEOUT.when(reliable) | retries, running),
        (Rts | Sqd, Rts) => (none, running),
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            none,
            M::PKEY_INDEX
                | admission
                | (M::AV | M::ALT_PATH | M::PATH_MIG_STATE).when(connected)
                | (M::PORT | M::TIMEOUT).when(reliable)
                | retries
                | answers,
        ),
        // Reliable queue pairs never enter SQE (IBTA 10.3.1.7), yet the transition out of it is valid for them too.
        (Sqe, Rts) => (none, (M::CUR_STATE | admission).when(!reliable)),
        _ => return None,
    };
    Some(Rule { required, optional })
}

/// The device's limits on attribute values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Number of ports; ports are numbered from 1.
    pub ports: u8,
    /// Entries of the partition key table.
    pub pkeys: u16,
    /// Entries of the GID table.
    pub gids: u16,
    /// Largest path MTU that the port's interface carries.
    pub path_mtu: Mtu,
    /// READs and atomics that a queue pair may have outstanding as a requester.
    pub max_rd_atomic: u8,
    /// READs and atomics that a queue pair may have outstanding as a responder.
    pub max_dest_rd_atomic: u8,
}

impl Default for Limits {
    /// One port, one partition, one GID, every path MTU, and the limit of 128 outstanding READs of Linux rxe.
    fn default() -> Self {
        Self {
            ports: 1,
            pkeys: 1,
            gids: 1,
            path_mtu: Mtu::B4096,
            max_rd_atomic: 128,
            max_dest_rd_atomic: 128,
        }
    }
}

/// A state transition of a queue pair type, displayed as in `INIT -> RTR of an RC queue pair`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// Type of the queue pair.
    pub qp_type: QpType,
    /// The current state.
    pub from: QpState,
    /// The requested state.
    pub to: QpState,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} of {}", self.from, self.to, self.qp_type.described())
    }
}

impl Transition {
    /// Explains why the transition is invalid, and which transitions are valid.
    fn refusal(&self) -> String {
        let Self { qp_type, from, to } = *self;
        let described = qp_type.described();
        if from == to {
            return format!("{described} in {from} accepts no attributes without a change of state");
        }
        let way = match (from, to) {
            (_, QpState::Sqe) => "only a failed send enters SQE",
            (QpState::Err, _) => "the only way out of ERR is RESET",
            (QpState::Sqe, _) => "SQE can only change to RTS, ERR or RESET",
            (_, QpState::Sqd) => "SQD can only be entered from RTS",
            _ => {
                return format!(
                    "cannot go from {from} to {to}: {described} goes RESET -> INIT -> RTR -> RTS"
                );
            }
        };
        format!("{described} cannot go from {from} to {to}: {way}")
    }
}

/// Why a modify is refused. The queue pair is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ModifyError {
    /// `cur_qp_state` does not match the current state of the queue pair.
    #[error("cur_qp_state is {claimed}, but the queue pair is in {actual}")]
    CurrentState {
        /// The state that the caller gave.
        claimed: QpState,
        /// The actual state.
        actual: QpState,
    },
    /// The transition is invalid.
    #[error("{}", .0.refusal())]
    NoTransition(Transition),
    /// An alternate path was set.
    #[error("alt_ah_attr is not supported: RoCE has no automatic path migration")]
    AlternatePath,
    /// Attributes that the transition requires are missing.
    #[error("{transition} needs {missing}")]
    Missing {
        /// The transition.
        transition: Transition,
        /// The missing attributes.
        missing: AttrMask,
    },
    /// Attributes are set that the transition does not accept.
    #[error("{excess} {} not apply to {transition}", if .excess.iter().count() == 1 { "does" } else { "do" })]
    NotApplicable {
        /// The transition.
        transition: Transition,
        /// The attributes that must not be set.
        excess: AttrMask,
    },
    /// A value is outside its range.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// An invalid attribute value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ValueError {
    /// A number outside its range.
    #[error("{field} is {value}; valid values are {min} to {max}")]
    Range {
        /// The field of `ibv_qp_attr`.
        field: &'static str,
        /// The value given.
        value: u32,
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
    },
    /// The path MTU is larger than the port supports.
    #[error("path_mtu is {} bytes; the port supports at most {}", .asked.bytes(), .largest.bytes())]
    PathMtu {
        /// The path MTU given.
        asked: Mtu,
        /// The largest path MTU that the port supports.
        largest: Mtu,
    },
    /// The address vector has no GID.
    #[error("ah_attr has no GID (is_global is 0, or dgid is all zero): RoCE addresses are GIDs")]
    NotGlobal,
}

/// Checks a modify of a queue pair in state `from` and returns the resulting state. Without `qp_state` that is
/// `from`, as in the kernel; `from` must then be a state in which attributes may change.
///
/// # Errors
///
/// The first rule that `attr` breaks, in this order: the claimed state, the transition, the alternate path, missing
/// attributes, attributes that do not apply, values.
pub fn check(qp_type: QpType, from: QpState, attr: &QpAttr, limits: &Limits) -> Result<QpState, ModifyError> {
    if let Some(claimed) = attr.cur_qp_state
        && claimed != from
    {
        return Err(ModifyError::CurrentState { claimed, actual: from });
    }
    let to = attr.qp_state.unwrap_or(from);
    let transition = Transition { qp_type, from, to };
    let Rule { required, optional } = rule(qp_type, from, to).ok_or(ModifyError::NoTransition(transition))?;
    let given = attr.mask();
    if given.contains(AttrMask::ALT_PATH) {
        return Err(ModifyError::AlternatePath);
    }
    let missing = required - given;
    if !missing.is_empty() {
        return Err(ModifyError::Missing { transition, missing });
    }
    let excess = given - required - optional - AttrMask::STATE;
    if !excess.is_empty() {
        return Err(ModifyError::NotApplicable { transition, excess });
    }
    check_values(attr, limits)?;
    Ok(to)
}

fn check_values(attr: &QpAttr, limits: &Limits) -> Result<(), ValueError> {
    let ports = u32::from(limits.ports);
    in_range("pkey_index", attr.pkey_index, 0, u32::from(limits.pkeys).saturating_sub(1))?;
    in_range("port_num", attr.port_num, 1, ports)?;
    // Field widths: 5 bits for the timeout, 3 for each retry counter, 5 for the RNR timer.
    in_range("timeout", attr.timeout, 0, 31)?;
    in_range("retry_cnt", attr.retry_cnt, 0, 7)?;
    in_range("rnr_retry", attr.rnr_retry, 0, 7)?;
    in_range("min_rnr_timer", attr.min_rnr_timer, 0, 31)?;
    in_range("max_rd_atomic", attr.max_rd_atomic, 0, u32::from(limits.max_rd_atomic))?;
    in_range("max_dest_rd_atomic", attr.max_dest_rd_atomic, 0, u32::from(limits.max_dest_rd_atomic))?;
    if let Some(asked) = attr.path_mtu
        && asked > limits.path_mtu
    {
        return Err(ValueError::PathMtu { asked, largest: limits.path_mtu });
    }
    attr.ah_attr.map_or(Ok(()), |av| check_address(&av, limits))
}

fn check_address(av: &AddressVector, limits: &Limits) -> Result<(), ValueError> {
    if !av.is_global || av.dgid.is_zero() {
        return Err(ValueError::NotGlobal);
    }
    in_range("ah_attr.port_num", Some(av.port_num), 1, u32::from(limits.ports))?;
    in_range("ah_attr.sgid_index", Some(av.sgid_index), 0, u32::from(limits.gids).saturating_sub(1))?;
    // The service level has four bits.
    in_range("ah_attr.sl", Some(av.sl), 0, 15)
}

fn in_range(
    field: &'static str,
    value: Option<impl Into<u32>>,
    min: u32,
    max: u32,
) -> Result<(), ValueError> {
    match value.map(Into::into) {
        Some(value) if !(min..=max).contains(&value) => Err(ValueError::Range { field, value, min, max }),
        _ => Ok(()),
    }
}
