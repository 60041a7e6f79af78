//! `test_mr.py`, class `MWTest`, with the cases that the suite had before its present form.

use crate::players::{MESSAGE, Player, everywhere, players, rdma_traffic, send_with_invalidate, write};
use rnic::sim::Net;
use rnic::{Access, Device, Error, Gather, MemoryWindow, MwType, Operation, WcOpcode, WcStatus};

const ITERS: u64 = 10;
const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
/// As in the suite: the right to write locally is not a window right, and has no effect.
const RIGHTS: Access = Access::REMOTE_WRITE.union(Access::LOCAL_WRITE);

struct Scene {
    client: Player,
    server: Player,
    windows: [MemoryWindow; 2],
}

impl Scene {
    fn new(a: &Device, b: &Device, mw_type: MwType) -> Result<Self, Error> {
        let (client, server) = players(a, b, &|pd| pd.register(MESSAGE, BINDABLE))?;
        let windows = [client.pd.alloc_mw(mw_type)?, server.pd.alloc_mw(mw_type)?];
        Ok(Self { client, server, windows })
    }

    fn sides(&self) -> [(&Player, &MemoryWindow); 2] {
        [(&self.client, &self.windows[0]), (&self.server, &self.windows[1])]
    }

    /// Tells each player about the other's window.
    fn exchange(&mut self) {
        self.client.remote = self.windows[1].remote(&self.server.mr, 0);
        self.server.remote = self.windows[0].remote(&self.client.mr, 0);
    }

    fn traffic(&self) -> Result<WcStatus, Error> {
        rdma_traffic(&self.client, &self.server, ITERS, write)
    }

    /// `bind_mw_type_1`, then traffic.
    fn bound_type_1(a: &Device, b: &Device) -> Result<Self, Error> {
        let mut scene = Self::new(a, b, MwType::Type1)?;
        for (player, window) in scene.sides() {
            let old = window.rkey();
            player.qp.bind_mw(5, window, &player.mr, 0..MESSAGE, RIGHTS)?;
            assert_ne!(window.rkey(), old, "known when it is posted");
            let wc = player.succeed()?;
            assert_eq!((wc.wr_id, wc.opcode), (5, WcOpcode::BindMw));
        }
        scene.exchange();
        assert_eq!(scene.traffic()?, WcStatus::Success);
        Ok(scene)
    }

    /// `bind_mw_type_2`, then traffic.
    fn bound_type_2(a: &Device, b: &Device) -> Result<Self, Error> {
        let mut scene = Self::new(a, b, MwType::Type2)?;
        for (player, window) in scene.sides() {
            let bind = window.bind_to(&player.mr, 0..MESSAGE, RIGHTS)?;
            player.qp.post(6, Operation::BindWindow(bind), Gather::Empty)?;
            let wc = player.succeed()?;
            assert_eq!((wc.wr_id, wc.opcode), (6, WcOpcode::BindMw));
            assert_eq!(window.query_rkey()?, bind.key);
        }
        scene.exchange();
        assert_eq!(scene.traffic()?, WcStatus::Success);
        Ok(scene)
    }
}

#[test]
fn test_reg_mw_type1() -> Result<(), Error> {
    let pd = Net::new().device().alloc_pd()?;
    let window = pd.alloc_mw(MwType::Type1)?;
    assert_eq!(window.mw_type(), MwType::Type1);
    assert_ne!(window.rkey(), 0);
    Ok(())
}

#[test]
fn test_reg_mw_type2() -> Result<(), Error> {
    let pd = Net::new().device().alloc_pd()?;
    let windows = [pd.alloc_mw(MwType::Type2)?, pd.alloc_mw(MwType::Type2)?];
    assert_ne!(windows[0].rkey() >> 8, windows[1].rkey() >> 8);
    Ok(())
}

#[test]
fn test_dereg_mw_type1() -> Result<(), Error> {
    let pd = Net::new().device().alloc_pd()?;
    Ok(pd.alloc_mw(MwType::Type1)?.dealloc()?)
}

#[test]
fn test_dereg_mw_type2() -> Result<(), Error> {
    let pd = Net::new().device().alloc_pd()?;
    Ok(pd.alloc_mw(MwType::Type2)?.dealloc()?)
}

#[test]
fn test_reg_mw_wrong_type() {
    assert_eq!(MwType::from_number(1), Some(MwType::Type1));
    assert_eq!(MwType::from_number(2), Some(MwType::Type2));
    for number in [0, 3, 100, u32::MAX] {
        assert_eq!(MwType::from_number(number), None);
    }
}

#[test]
fn test_mw_type1() -> Result<(), Error> {
    everywhere(|a, b| Scene::bound_type_1(a, b).map(drop))
}

#[test]
fn test_invalidate_mw_type1() -> Result<(), Error> {
    everywhere(|a, b| {
        let scene = Scene::bound_type_1(a, b)?;
        for (player, window) in scene.sides() {
            player.qp.unbind_mw(7, window)?;
            assert_eq!(player.succeed()?.opcode, WcOpcode::BindMw);
        }
        assert_eq!(scene.traffic()?, WcStatus::RemAccessErr);
        Ok(())
    })
}

#[test]
fn test_mw_type2() -> Result<(), Error> {
    everywhere(|a, b| Scene::bound_type_2(a, b).map(drop))
}

#[test]
fn test_mw_type2_invalidate_local() -> Result<(), Error> {
    everywhere(|a, b| {
        let scene = Scene::bound_type_2(a, b)?;
        for (player, window) in scene.sides() {
            player.qp.post(8, Operation::LocalInvalidate { key: window.rkey() }, Gather::Empty)?;
            let wc = player.succeed()?;
            assert_eq!((wc.wr_id, wc.opcode), (8, WcOpcode::LocalInv));
        }
        assert_eq!(scene.traffic()?, WcStatus::RemAccessErr);
        Ok(())
    })
}

#[test]
fn test_mw_type2_invalidate_remote() -> Result<(), Error> {
    everywhere(|a, b| {
        let scene = Scene::bound_type_2(a, b)?;
        let (client, server) = (&scene.client, &scene.server);
        send_with_invalidate(client, server, client.remote.rkey)?;
        send_with_invalidate(server, client, server.remote.rkey)?;
        assert_eq!(scene.traffic()?, WcStatus::RemAccessErr);
        Ok(())
    })
}

#[test]
fn test_mw_type2_invalidate_dealloc() -> Result<(), Error> {
    everywhere(|a, b| {
        let Scene { client, server, windows } = Scene::bound_type_2(a, b)?;
        for window in windows {
            window.dealloc()?;
        }
        assert_eq!(rdma_traffic(&client, &server, ITERS, write)?, WcStatus::RemAccessErr);
        Ok(())
    })
}
