//! `test_relaxed_ordering.py` but for its XRC case, which is in `xrc.rs`: the right is taken, and order is
//! kept all the same.

use crate::base::{self, PATIENCE, datagram_players};
use crate::players::{MESSAGE, everywhere, players, traffic};
use rnic::{Access, Error, WcStatus};

#[test]
fn test_ro_rc_traffic() -> Result<(), Error> {
    everywhere(|a, b| {
        let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
        let (client, server) = players(a, b, &|pd| pd.register(MESSAGE, access))?;
        assert_eq!(traffic(&client, &server, 100)?, WcStatus::Success);
        Ok(())
    })
}

#[test]
fn test_ro_ud_traffic() -> Result<(), Error> {
    base::everywhere(|world| {
        let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
        let cqs = [world.a.create_cq(100)?, world.b.create_cq(100)?];
        let (client, server) = datagram_players(world, cqs, access)?;
        base::traffic(&client, &server, 100, &|cq| cq.wait(PATIENCE))
    })
}
