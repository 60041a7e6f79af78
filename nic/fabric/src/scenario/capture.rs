//! Captures of ports of a scenario.

use super::{Scenario, ScenarioError};
use crate::network::Fabric;
use rnic_core::link::capture::{Capture, CaptureOptions, CaptureStatus};
use std::path::PathBuf;
use std::sync::Arc;

/// A port whose packets are written to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCapture {
    /// The port by its name, such as `leaf3>spine1`: what `leaf3` sends there, and what it receives from there.
    pub port: String,
    /// The pcapng file. Those of variants have the name of the variant behind their stem: `port-ecmp.pcapng`.
    pub path: PathBuf,
}

impl PortCapture {
    fn of_variant(&self, variant: &str) -> Self {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let mut name = format!("{stem}-{variant}");
        if let Some(extension) = self.path.extension() {
            name = format!("{name}.{}", extension.to_string_lossy());
        }
        Self { port: self.port.clone(), path: self.path.with_file_name(name) }
    }
}

/// A capture that goes on.
pub(super) struct Going {
    path: PathBuf,
    status: Arc<CaptureStatus>,
}

impl Scenario {
    /// Has ports captured when the scenario runs; if it is repeated, in the first run.
    pub fn capture(&mut self, captures: &[PortCapture]) {
        self.captures = captures.to_vec();
        for (name, variant) in &mut self.variants {
            variant.captures = captures.iter().map(|capture| capture.of_variant(name)).collect();
        }
    }

    /// Begins the captures.
    pub(super) fn begin_captures(&self, fabric: &mut Fabric) -> Result<Vec<Going>, ScenarioError> {
        if self.captures.is_empty() {
            return Ok(Vec::new());
        }
        let names = fabric.topology().port_names();
        let place = |name: &str| {
            let mut all = names.iter().enumerate();
            all.find_map(|(node, ports)| Some((node, ports.iter().position(|port| port == name)?)))
        };
        let mut going = Vec::new();
        for PortCapture { port, path } in &self.captures {
            let unknown = || {
                let all: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
                ScenarioError::Unknown {
                    setting: format!("capture of {port}"),
                    advice: cc::unknown(port, &all),
                }
            };
            let (node, number) = place(port).ok_or_else(unknown)?;
            let failed = |why: String| ScenarioError::Capture { path: path.clone(), why };
            let options = CaptureOptions { interface: port.clone(), max_bytes: None };
            let file = std::fs::File::create(path).map_err(|why| failed(why.to_string()))?;
            let status = fabric.capture(node, number, Capture::new(file, options)).ok_or_else(unknown)?;
            going.push(Going { path: path.clone(), status });
        }
        Ok(going)
    }
}

impl Going {
    /// Whether the file is complete.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let missed = self.status.missed();
        let why = match self.status.error() {
            Some(why) => why,
            None if missed > 0 => format!("{missed} packets are not in it"),
            None => return Ok(()),
        };
        Err(ScenarioError::Capture { path: self.path.clone(), why })
    }
}
