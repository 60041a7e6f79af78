//! Names of codes and rates, as programs print and compare them.

use crate::call::{Handle, Value, verbs};
use std::ffi::{CStr, c_char, c_int};

/// The name of a code, worded as in rdma-core.
fn name(names: &[&'static CStr], code: c_int, other: &'static CStr) -> Handle<c_char> {
    let name = usize::try_from(code).ok().and_then(|code| names.get(code)).copied().unwrap_or(other);
    Handle(name.as_ptr().cast_mut())
}

const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// The node types, from 1 on.
const NODES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// Rates: the code of verbs, the multiple of 2.5 Gb/s if the rate is one, and Mb/s.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

verbs! {
    fn ibv_node_type_str(code: c_int) -> Handle<c_char> {
        Ok(name(&NODES, code.wrapping_sub(1), c"unknown"))
    }

    fn ibv_port_state_str(code: c_int) -> Handle<c_char> {
        Ok(name(&PORT_STATES, code, c"unknown"))
    }

    fn ibv_event_type_str(code: c_int) -> Handle<c_char> {
        Ok(name(&EVENTS, code, c"unknown"))
    }

    fn ibv_wc_status_str(code: c_int) -> Handle<c_char> {
        Ok(name(&STATUSES, code, c"unknown"))
    }

    fn ibv_rate_to_mult(code: c_int) -> Value<c_int> {
        let found = RATES.iter().find(|(of, ..)| *of == code);
        Ok(Value(found.and_then(|(_, mult, _)| *mult).unwrap_or(-1)))
    }

    fn mult_to_ibv_rate(mult: c_int) -> Value<c_int> {
        let found = RATES.iter().find(|(_, of, _)| *of == Some(mult));
        Ok(Value(found.map_or(0, |(code, ..)| *code)))
    }

    fn ibv_rate_to_mbps(code: c_int) -> Value<c_int> {
        let found = RATES.iter().find(|(of, ..)| *of == code);
        Ok(Value(found.map_or(-1, |(.., mbps)| *mbps)))
    }

    fn mbps_to_ibv_rate(mbps: c_int) -> Value<c_int> {
        let found = RATES.iter().find(|(.., of)| *of == mbps);
        Ok(Value(found.map_or(0, |(code, ..)| *code)))
    }
}
