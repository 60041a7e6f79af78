//! Fault injection, a port that goes down, and captures: the instruments of a device for tests and labs.

use crate::engine::{Engine, PortState};
use crate::error::{Error, Result};
use crate::link::Observer;
use crate::link::capture::{Capture, CaptureOptions, CaptureStatus};
use crate::link::faults::{FaultLayer, FaultRule};
use crate::verbs::device::Device;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

/// A fault rule and its effect so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultReport {
    /// Its name.
    pub name: Arc<str>,
    /// The rule, as text.
    pub rule: String,
    /// The number of packets on which it acted.
    pub hits: u64,
}

impl Device {
    /// Adds a fault rule to the link, in the language of [`crate::link::faults`]: `"tx data psn=#3 drop"`. Returns
    /// its name. Rules combine; their randomness follows from the device's fault seed.
    ///
    /// # Errors
    /// [`Error::FaultRule`] points at the word that does not fit.
    pub fn add_fault(&self, rule: &str) -> Result<Arc<str>> {
        let host = |name: &str| -> Option<IpAddr> { self.inner.port.sim()?.world().address_of(name) };
        let rule = FaultRule::parse(rule, &host).map_err(|e| Error::FaultRule(e.to_string()))?;
        self.add_fault_rule(rule)
    }

    /// Adds a fault rule to the link. Returns its name.
    ///
    /// # Errors
    /// [`Error::FaultRule`] if a value is invalid or the name is taken.
    pub fn add_fault_rule(&self, rule: FaultRule) -> Result<Arc<str>> {
        let port = self.inner.port()?;
        let now = port.now();
        let seed = self.inner.fault_seed;
        port.with_datapath(|datapath| {
            let layer = datapath.link.faults.get_or_insert_with(|| FaultLayer::new(seed));
            layer.add(now, rule).map_err(|e| Error::FaultRule(e.to_string()))
        })
    }

    /// Removes the fault rule of this name; false if the rule does not exist.
    pub fn remove_fault(&self, name: &str) -> bool {
        self.with_faults(|layer| layer.remove(name)).unwrap_or(false)
    }

    /// Removes all fault rules.
    pub fn clear_faults(&self) {
        self.with_faults(FaultLayer::clear);
    }

    /// The fault rules, in the order in which they were added.
    #[must_use]
    pub fn faults(&self) -> Vec<FaultReport> {
        let report = |layer: &mut FaultLayer| {
            let rules = layer.rules();
            rules
                .map(|r| FaultReport { name: r.name.into(), rule: r.rule.to_string(), hits: r.hits })
                .collect()
        };
        self.with_faults(report).unwrap_or_default()
    }

    fn with_faults<R>(&self, act: impl FnOnce(&mut FaultLayer) -> R) -> Option<R> {
        let port = self.inner.port().ok()?;
        port.with_datapath(|datapath| datapath.link.faults.as_mut().map(act))
    }

    /// Pulls the cable, or plugs it in again: a tool for tests and labs, in virtual time and on the network.
    ///
    /// While the port is down no packet leaves or arrives; both are counted (`tx_port_down`, `dropped_port_down`).
    /// Queue pairs keep their states and retransmit until their retries are exhausted. The program receives PORT_ERR
    /// and PORT_ACTIVE, unless the port is down for other reasons as well.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn inject_port_state(&self, up: bool) -> Result<()> {
        self.inject(|state| state.link = up)
    }

    /// Takes the address off the host, or puts it back, from the point of view of this device: as
    /// [`inject_port_state`](Self::inject_port_state), with an empty GID table meanwhile, which GID_CHANGE announces.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn inject_gid_state(&self, present: bool) -> Result<()> {
        self.inject(|state| state.address = present)
    }

    fn inject(&self, change: impl FnOnce(&mut PortState)) -> Result<()> {
        self.inner.port()?.control(|engine| {
            let mut state = engine.injected_port_state();
            change(&mut state);
            engine.inject_port_state(state);
        });
        Ok(())
    }

    /// Makes the device fail for good: a tool for tests, in virtual time and on the network.
    ///
    /// All queue pairs go to ERR, where their work requests are flushed, the program receives DEVICE_FATAL, and
    /// nothing can be created or modified any more
    /// ([`ResourceError::DeviceFailed`](crate::engine::ResourceError::DeviceFailed)). Completions can be polled, and
    /// objects destroyed. The same happens without injection when the sockets of a device on the network become
    /// unusable.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn inject_device_fatal(&self) -> Result<()> {
        self.inner.port()?.control(Engine::fail);
        Ok(())
    }

    /// Captures all packets of the device into a pcapng file, with comments on what the link did to them. It ends
    /// with [`stop_captures`](Self::stop_captures), or with the device. The file can be read at any time. If the
    /// process ends earlier, for whatever reason, the file holds all packets up to the last one.
    ///
    /// # Errors
    /// [`Error::Os`] if the file cannot be created. The status reports later errors.
    pub fn capture(&self, path: impl AsRef<Path>) -> Result<Arc<CaptureStatus>> {
        let capture = Capture::create(path.as_ref(), self.capture_options())
            .map_err(|source| Error::Os { what: "cannot create the capture file", source })?;
        self.start(capture)
    }

    /// Captures all packets of the device, as pcapng, into a writer.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn capture_to(&self, writer: impl Write + Send + 'static) -> Result<Arc<CaptureStatus>> {
        self.start(Capture::new(writer, self.capture_options()))
    }

    fn capture_options(&self) -> CaptureOptions {
        CaptureOptions { interface: self.name().to_owned(), max_bytes: None }
    }

    fn start(&self, capture: Capture) -> Result<Arc<CaptureStatus>> {
        let status = capture.status();
        self.observe(capture)?;
        Ok(status)
    }

    /// Ends all captures; their files are then complete.
    pub fn stop_captures(&self) {
        self.remove_observers(CAPTURE);
    }

    /// Shows every packet of the device to an observer, with its fate.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn observe(&self, observer: impl Observer) -> Result<()> {
        self.inner.port()?.with_datapath(|datapath| datapath.link.push_observer(observer));
        Ok(())
    }

    /// Removes the observers with this name, and returns how many it removed.
    pub fn remove_observers(&self, name: &str) -> usize {
        self.inner
            .port()
            .map_or(0, |port| port.with_datapath(|datapath| datapath.link.remove_observers(name)))
    }
}

/// The name of captures among observers.
pub const CAPTURE: &str = "capture";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RcEnd, WcStatus};

    #[test]
    fn captures_go_by_the_name_that_they_are_removed_by() {
        let options = CaptureOptions { interface: "x".into(), max_bytes: None };
        assert_eq!(Capture::new(std::io::sink(), options).name(), CAPTURE);
    }

    #[test]
    fn a_lost_packet_is_sent_again_in_virtual_time() -> Result<()> {
        let net = crate::sim::Net::new();
        let (a, b) = (net.device(), net.device());
        let (left, right) = RcEnd::pair(&a, &b)?;
        let fault = a.add_fault("tx data psn=#3 drop")?;
        let status = a.capture_to(std::io::sink())?;
        let source = left.register(&vec![7; 40_000])?;
        let target = right.register_remote(40_000)?;
        left.qp.write(1, source.all(), target.remote(0))?;
        assert_eq!(left.wait()?.status, WcStatus::Success);
        assert_eq!(target.to_vec()?, vec![7; 40_000]);
        let report = &a.faults()[0];
        assert_eq!((&report.name, report.hits), (&fault, 1));
        assert_eq!(left.qp.counters().rcvd_seq_err, 1, "one NAK for the gap");
        assert_eq!(right.qp.counters().out_of_seq_request as u32, 6, "packets 4 to 9 came behind the gap");
        assert!(
            status.packets() > 17,
            "ten packets, seven of them again, and the answers: {}",
            status.packets()
        );
        assert!(net.elapsed() < std::time::Duration::from_millis(1), "the NAK saves the timeout");
        Ok(())
    }

    #[test]
    fn a_rule_that_is_not_understood_is_named() {
        let net = crate::sim::Net::new();
        let error = net.device().add_fault("tx data dorp").expect_err("no such action");
        assert!(error.to_string().contains("drop"), "{error}");
    }
}
