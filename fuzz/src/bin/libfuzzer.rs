//! The targets for libFuzzer: `KVMPROF_FUZZ_TARGET` names the one that runs.
#![no_main]
#![expect(clippy::panic, reason = "libFuzzer knows no other end")]

use std::sync::OnceLock;

use kvmprof_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    let name = std::env::var("KVMPROF_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!("KVMPROF_FUZZ_TARGET has to be one of {}", names.join(", "))
    })
}

fuzz_target!(|data: &[u8]| (CHOSEN.get_or_init(chosen).run)(data));
