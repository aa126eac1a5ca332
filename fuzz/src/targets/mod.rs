//! The targets, a file each.

mod block;
mod console;
mod elf;
mod endpoint;
mod generated_code;
mod guest_memory;
mod helpers;
mod initrd;
mod kernel_code;
mod kernel_image;
mod loader;
mod merge;
mod net;
mod options;
mod pmc;
mod profil;
mod profiler;
mod qcow2;
mod recording;
mod runtimes;
mod small_devices;
mod streams;
mod symbol_server;
mod symbols;
mod tracer;
mod unwind;
mod vhost_user;
mod vsock;
mod wire;

use crate::{Target, for_each_target};

macro_rules! table {
    ($($name:ident $cases:literal,)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            cases: $cases,
            run: $name::run,
            seeds: $name::seeds,
        }),*];
    };
}
for_each_target!(table);
