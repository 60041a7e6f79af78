//! The `rnic` program.
fn main() {}
