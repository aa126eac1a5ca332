//! `cargo lab`: a machine with a complete KVM in emulation.
fn main() {}
