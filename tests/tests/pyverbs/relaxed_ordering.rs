//! `test_relaxed_ordering.py` over reliable connections: the right is taken, and order is kept all the same.

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
