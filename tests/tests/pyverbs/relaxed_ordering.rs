//! `test_relaxed_ordering.py` over reliable connections and datagrams (extended reliable connections are in
//! `xrc.rs`): the access right is accepted, and order is kept anyway.

use crate::players::{GRH, MESSAGE, everywhere, players, traffic, ud_traffic};
use rnic::{Access, Error, ProtectionDomain, WcStatus};

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::RELAXED_ORDERING);

#[test]
fn test_ro_rc_traffic() -> Result<(), Error> {
    everywhere(|a, b| {
        let (client, server) = players(a, b, &|pd| pd.register(MESSAGE, ACCESS))?;
        assert_eq!(traffic(&client, &server, 100)?, WcStatus::Success);
        Ok(())
    })
}

#[test]
fn test_ro_ud_traffic() -> Result<(), Error> {
    let memory = |pd: &ProtectionDomain| pd.register(GRH + MESSAGE, ACCESS);
    everywhere(|a, b| ud_traffic([a, b], [&memory, &memory], 100, |_| {}))
}
