//! Fuzz targets: whatever reads bytes that a guest, a client or a file has brought.
//!
//! A target is a file in `targets` with a function `run`, which takes any bytes and panics when what should hold doesn't.
//! Two things call it: `tests/replay.rs`, on any toolchain, with the corpus and a fixed number of mutations of it, and the
//! program `kvmprof-fuzz`, by which libFuzzer looks for inputs that reach more code (`tests/fuzz`). CONTRIBUTING.md says how
//! to add one.
#![cfg(feature = "targets")]
#![expect(clippy::unwrap_used, reason = "a target fails by a panic")]

pub mod corpus;
#[path = "../../devices/tests/virtio/driver.rs"]
#[expect(
    dead_code,
    reason = "the driver of the devices' own tests, of which targets use a part"
)]
mod driver;
mod driver_steps;
mod input;
pub mod mutator;
mod targets;

pub use targets::TARGETS;

/// A target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is that of its folder in `corpus` too.
    pub name: &'static str,
    /// How many mutations the replay tries: about half a second of them.
    pub cases: u32,
    /// Does with the bytes what it is for.
    pub run: fn(&[u8]),
    /// Inputs to begin with, by name.
    pub seeds: fn() -> Vec<(&'static str, Vec<u8>)>,
}

/// Calls the macro that is named with all targets: `NAME CASES, NAME CASES, ...`.
#[macro_export]
macro_rules! for_each_target {
    ($action:ident) => {
        $action! {
            wire 400_000,
            endpoint 40_000,
            console 2_000,
            block 4_000,
            net 4_000,
            vsock 4_000,
            small_devices 6_000,
            kernel_code 400,
            kernel_image 1_500,
            elf 6_000,
            unwind 300,
            guest_memory 200,
            generated_code 3_000,
            initrd 30_000,
            recording 300,
            runtimes 3_000,
            symbols 500,
            streams 15_000,
            options 3_000,
            profiler 300,
            profil 200_000,
            pmc 200_000,
            qcow2 100,
            loader 10_000,
            vhost_user 6_000,
            symbol_server 50_000,
            merge 150,
            tracer 2_000,
            helpers 1_000_000,
        }
    };
}
