//! The scenarios that come with rnic.

/// A scenario that comes with rnic: its name, and its file.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    /// The text of its file.
    pub text: &'static str,
}

macro_rules! builtin {
    ($($name:literal)*) => {
        /// All of them, by name.
        pub const BUILTIN: &[Builtin] = &[
            $(Builtin { name: $name, text: include_str!(concat!("../../scenarios/", $name, ".toml")) },)*
        ];
    };
}

builtin! {
    "incast" "late-joiner" "dcqcn-stability" "congestion-control" "hpcc" "pfc-deadlock" "pfc-deadlock-ring"
    "credit-deadlock" "pfc-storm" "victim-flow" "misconfigured-pfc" "ecmp-collision"
    "ecmp-vs-flowlet-vs-spray" "permutation" "permutation-spray" "incast-htsim" "loss-sweep"
    "go-back-n-vs-selective-repeat" "credit-bdp" "ib-vs-roce" "link-failure" "mixed-storage" "all-reduce"
}

/// The scenario of this name that comes with rnic.
#[must_use]
pub fn builtin(name: &str) -> Option<Builtin> {
    BUILTIN.iter().copied().find(|builtin| builtin.name == name)
}
