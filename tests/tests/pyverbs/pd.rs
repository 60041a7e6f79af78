//! `tests/test_pd.py`. Dropping a domain deallocates it.

use rnic::sim::Net;
use rnic::{Access, Error};

#[test]
fn test_alloc_pd() -> Result<(), Error> {
    Net::new().device().alloc_pd().map(drop)
}

#[test]
fn test_dealloc_pd() -> Result<(), Error> {
    let device = Net::new().device();
    let pd = device.alloc_pd()?;
    let name = format!("{pd:?}");
    drop(pd);
    assert_eq!(format!("{:?}", device.alloc_pd()?), name, "its place is free again");
    Ok(())
}

#[test]
fn test_multiple_pd_creation() -> Result<(), Error> {
    let device = Net::new().device();
    for _ in 0..200 {
        drop(device.alloc_pd()?);
    }
    let together = (0..200).map(|_| device.alloc_pd()).collect::<Result<Vec<_>, _>>()?;
    let names: std::collections::HashSet<_> = together.iter().map(|pd| format!("{pd:?}")).collect();
    assert_eq!(names.len(), 200, "each is one of its own");
    Ok(())
}

/// A domain cannot be destroyed twice: it is destroyed with its last user.
#[test]
fn test_destroy_pd_twice() -> Result<(), Error> {
    let device = Net::new().device();
    let pd = device.alloc_pd()?;
    let name = format!("{pd:?}");
    let (clone, region) = (pd.clone(), pd.register(8, Access::LOCAL_WRITE)?);
    drop(pd);
    drop(clone);
    assert_ne!(format!("{:?}", device.alloc_pd()?), name, "the region still uses it");
    drop(region);
    assert_eq!(format!("{:?}", device.alloc_pd()?), name);
    Ok(())
}
