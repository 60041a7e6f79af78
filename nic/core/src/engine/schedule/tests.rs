//! The scheduler, seen from queue pairs in virtual time.

use super::FLIGHT_LIFE;
use crate::sim::{DeviceSetup, Net};
use crate::{ConnectOptions, RcEnd, Result, WcStatus};
use time::Duration;

/// A queue pair without a timeout holds the window with a lost packet. The time after which that no longer counts passes
/// once while nobody waits, and has to be watched for again when somebody does.
#[test]
fn a_window_is_watched_again_after_nobody_waited() -> Result<()> {
    let net = Net::new();
    let setup = DeviceSetup { peer_window: Some(1), ..DeviceSetup::default() };
    let (a, b) = (net.device_with(&setup)?, net.device());
    let pair = || RcEnd::pair_with(&a, &b, &ConnectOptions { timeout: 0, ..ConnectOptions::default() });
    let lost = |end: &(RcEnd, RcEnd)| -> Result<()> {
        a.add_fault("tx data drop once")?;
        let (source, target) = (end.0.register(&[7; 64])?, end.1.register_remote(64)?);
        end.0.qp.write(1, source.all(), target.remote(0))?;
        Ok(())
    };
    let holds = pair()?;
    lost(&holds)?;
    net.run_for(FLIGHT_LIFE / 2);
    // Somebody waits, and goes away.
    let waits = pair()?;
    lost(&waits)?;
    net.run_for(Duration::from_micros(50));
    assert_eq!(a.counters().port.window_stalls, 1);
    drop(waits);
    net.run_for(FLIGHT_LIFE * 2);
    a.clear_faults();
    let third = pair()?;
    let (source, target) = (third.0.register(&[9; 64])?, third.1.register_remote(64)?);
    third.0.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(third.0.wait()?.status, WcStatus::Success);
    assert_eq!(target.to_vec()?, [9; 64]);
    Ok(())
}
