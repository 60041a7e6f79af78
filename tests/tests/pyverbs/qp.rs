//! `test_qp.py`, without raw packets, which this device does not support, and without `test_query_data_in_order`,
//! which does not apply here: it concerns applications that poll for bytes instead of completions.
//!
//! C creates queue pairs with and without extended attributes. Here there is one way; the extended cases use other
//! sizes. Sizes are random, well below the device's limits, as in the suite.

use crate::base::QKEY;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rnic::sim::Net;
use rnic::{
    Access, CompletionQueue, Device, Error, ProtectionDomain, Psn, QKey, QpAttr, QpCap, QpInit, QpState,
    QueuePair,
};

/// A device, and the resources that queue pairs need.
struct Scene {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    random: ChaCha8Rng,
}

/// How queue pairs are created: the range of their sizes.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain = 1,
    Extended = 2,
}

impl Scene {
    fn new(way: Way) -> Result<Self, Error> {
        println!("seed {}", way as u64);
        let device = Net::new().device();
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(100)?);
        Ok(Self { device, pd, cq, random: ChaCha8Rng::seed_from_u64(way as u64) })
    }

    /// From 1 to `most`.
    fn up_to(&mut self, most: u32) -> u32 {
        1 + self.random.next_u32() % most
    }

    /// `random_qp_cap`.
    fn cap(&mut self) -> QpCap {
        let attr = self.device.attr();
        QpCap {
            max_send_wr: self.up_to(attr.max_qp_wr / 8),
            max_recv_wr: self.up_to(attr.max_qp_wr / 8),
            max_send_sge: self.up_to(attr.max_sge / 2),
            max_recv_sge: self.up_to(attr.max_sge / 2),
            max_inline_data: self.up_to(17) - 1,
        }
    }
}

/// Creates the attributes of a queue pair type.
type Init = fn(&CompletionQueue, &CompletionQueue) -> QpInit;

/// Creates a queue pair in RESET.
fn create(scene: &mut Scene, init: Init) -> Result<(QueuePair, QpCap), Error> {
    let cap = scene.cap();
    let qp = scene.pd.create_qp(&QpInit { cap, ..init(&scene.cq, &scene.cq) })?;
    Ok((qp, cap))
}

/// Without attributes a new queue pair is in RESET.
fn no_attr(init: Init, way: Way) -> Result<(), Error> {
    let (qp, _) = create(&mut Scene::new(way)?, init)?;
    assert_eq!(qp.state(), QpState::Reset);
    Ok(())
}

/// With attributes, a connected one is in INIT.
fn with_attr_connected(init: Init, way: Way) -> Result<(), Error> {
    let (qp, _) = create(&mut Scene::new(way)?, init)?;
    qp.modify(&QpAttr::to_init(1, 0, Access::empty()))?;
    assert_eq!(qp.state(), QpState::Init);
    Ok(())
}

/// With attributes, one of datagrams is in RTS.
fn with_attr_datagram(init: Init, way: Way) -> Result<(), Error> {
    let (qp, _) = create(&mut Scene::new(way)?, init)?;
    qp.activate(QKEY)?;
    assert_eq!(qp.state(), QpState::Rts);
    Ok(())
}

/// A query returns what was requested.
fn query(init: Init) -> Result<(), Error> {
    for way in [Way::Plain, Way::Extended] {
        let (qp, asked) = create(&mut Scene::new(way)?, init)?;
        let attr = qp.query();
        let cap = attr.cap.expect("always there");
        assert_eq!((attr.qp_state, attr.cur_qp_state), (Some(QpState::Reset), Some(QpState::Reset)));
        assert!(asked.max_send_wr <= cap.max_send_wr && asked.max_recv_wr <= cap.max_recv_wr, "{cap:?}");
        assert!(asked.max_send_sge <= cap.max_send_sge && asked.max_recv_sge <= cap.max_recv_sge, "{cap:?}");
        assert!(asked.max_inline_data <= cap.max_inline_data, "{cap:?}");
    }
    Ok(())
}

#[test]
fn test_create_rc_qp_no_attr() -> Result<(), Error> {
    no_attr(QpInit::rc, Way::Plain)
}

#[test]
fn test_create_rc_qp_with_attr() -> Result<(), Error> {
    with_attr_connected(QpInit::rc, Way::Plain)
}

#[test]
fn test_create_rc_qp_ex_no_attr() -> Result<(), Error> {
    no_attr(QpInit::rc, Way::Extended)
}

#[test]
fn test_create_rc_qp_ex_with_attr() -> Result<(), Error> {
    with_attr_connected(QpInit::rc, Way::Extended)
}

#[test]
fn test_query_rc_qp() -> Result<(), Error> {
    query(QpInit::rc)
}

#[test]
fn test_create_uc_qp_no_attr() -> Result<(), Error> {
    no_attr(QpInit::uc, Way::Plain)
}

#[test]
fn test_create_uc_qp_with_attr() -> Result<(), Error> {
    with_attr_connected(QpInit::uc, Way::Plain)
}

#[test]
fn test_create_uc_qp_ex_no_attr() -> Result<(), Error> {
    no_attr(QpInit::uc, Way::Extended)
}

#[test]
fn test_create_uc_qp_ex_with_attr() -> Result<(), Error> {
    with_attr_connected(QpInit::uc, Way::Extended)
}

#[test]
fn test_query_uc_qp() -> Result<(), Error> {
    query(QpInit::uc)
}

#[test]
fn test_create_ud_qp_no_attr() -> Result<(), Error> {
    no_attr(QpInit::ud, Way::Plain)
}

#[test]
fn test_create_ud_qp_with_attr() -> Result<(), Error> {
    with_attr_datagram(QpInit::ud, Way::Plain)
}

#[test]
fn test_create_ud_qp_ex_no_attr() -> Result<(), Error> {
    no_attr(QpInit::ud, Way::Extended)
}

#[test]
fn test_create_ud_qp_ex_with_attr() -> Result<(), Error> {
    with_attr_datagram(QpInit::ud, Way::Extended)
}

#[test]
fn test_query_ud_qp() -> Result<(), Error> {
    query(QpInit::ud)
}

/// The Q_Key is set from INIT on, the PSN from RTS on, and nothing after RESET.
#[test]
fn test_modify_ud_qp() -> Result<(), Error> {
    for way in [Way::Plain, Way::Extended] {
        let (qp, _) = create(&mut Scene::new(way)?, QpInit::ud)?;
        qp.modify(&QpAttr::to_init_datagram(1, 0, QKey(0x123)))?;
        assert_eq!(qp.query().qkey, Some(QKey(0x123)));
        qp.modify(&QpAttr::to_state(QpState::Rtr))?;
        qp.modify(&QpAttr::to_rts(Psn::new(0x45)))?;
        assert_eq!(qp.query().sq_psn, Some(Psn::new(0x45)));
        qp.modify(&QpAttr::to_state(QpState::Reset))?;
        let attr = qp.query();
        assert_eq!((qp.state(), attr.qkey, attr.sq_psn), (QpState::Reset, None, None));
    }
    Ok(())
}

/// Not a case of the suite, which only creates the halves of an extended connection to use them (see `xrc.rs`).
#[test]
fn both_halves_of_xrc_are_created_modified_and_queried() -> Result<(), Error> {
    let mut scene = Scene::new(Way::Plain)?;
    let xrcd = scene.device.open_xrcd()?;
    let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..scene.cap() };
    let send = scene.pd.create_qp(&QpInit { cap, ..QpInit::xrc_send(&scene.cq) })?;
    let recv = scene.device.create_qp(&QpInit::xrc_recv(&xrcd))?;
    for (qp, asked) in [(&send, cap), (&recv, QpCap::default())] {
        assert_eq!((qp.state(), qp.query().cap), (QpState::Reset, Some(asked)));
        qp.modify(&QpAttr::to_init(1, 0, Access::empty()))?;
        assert_eq!((qp.state(), qp.query().port_num), (QpState::Init, Some(1)));
        qp.modify(&QpAttr::to_state(QpState::Reset))?;
        assert_eq!((qp.state(), qp.query().port_num), (QpState::Reset, None));
    }
    Ok(())
}
