//! Errors in the environment variables.

use super::Variable;
use crate::config::ConfigError;
use cc::SettingError;
use qp::ParseMtuError;
use rnic_core::link::LinkConfigError;
use rnic_core::link::faults::ParseError;
use std::net::IpAddr;

/// A variable whose value cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", variable.name())]
pub struct EnvError {
    /// The variable.
    pub variable: Variable,
    /// What is wrong with its value.
    #[source]
    pub fault: EnvFault,
}

/// What can be wrong with the value of a variable.
#[derive(Debug, thiserror::Error)]
pub enum EnvFault {
    /// It is not UTF-8.
    #[error("the value is not UTF-8")]
    NotUtf8,
    /// It is not valid for the variable.
    #[error("invalid value `{value}`: {why}")]
    Malformed {
        /// The value, or the part of it that is at fault.
        value: String,
        /// What to write instead.
        why: String,
    },
    /// It is not one of the path MTUs.
    #[error(transparent)]
    Mtu(ParseMtuError),
    /// A name that stands for no address.
    #[error(
        "`{name}` is neither an IP address, nor an interface of this host, nor a known host name: {reason}"
    )]
    UnknownHost {
        /// The name.
        name: String,
        /// What the resolver says.
        reason: String,
    },
    /// The name of another host.
    #[error("`{name}` is {}: not an address of this host", list(addresses))]
    Elsewhere {
        /// The name.
        name: String,
        /// Its addresses.
        addresses: Vec<IpAddr>,
    },
    /// An interface that cannot be used yet.
    #[error("the interface `{interface}` has no IP address")]
    NoAddress {
        /// The interface.
        interface: String,
    },
    /// There are more devices than addresses.
    #[error(
        "{devices} devices need {devices} addresses, but RNIC_ADDR or the configuration file has {addresses}"
    )]
    Addresses {
        /// The number of devices.
        devices: usize,
        /// The number of addresses given.
        addresses: usize,
    },
    /// The configuration file cannot be used.
    #[error(transparent)]
    File(Box<ConfigError>),
    /// The link cannot exist, or does not fit the rest.
    #[error(transparent)]
    Link(Box<LinkConfigError>),
    /// The congestion control cannot exist.
    #[error(transparent)]
    Cc(Box<SettingError>),
    /// A fault rule cannot be parsed.
    #[error("in `{rule}`: {error}")]
    Rule {
        /// The rule.
        rule: String,
        /// What is wrong with it.
        error: Box<ParseError>,
    },
}

impl EnvFault {
    pub(super) fn malformed(value: &str, why: impl Into<String>) -> Self {
        Self::Malformed { value: value.to_owned(), why: why.into() }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}
