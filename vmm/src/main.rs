//! The program `kvmprof`.
fn main() {}
