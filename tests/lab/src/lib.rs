//! A machine with a complete KVM in emulation, on any x86-64 host.
//!
//! QEMU's TCG emulates a processor with SVM, or Bochs one with VT-x; Debian's cloud kernel boots on it
//! to a small initramfs, loads its KVM modules and runs one command. What the command prints comes
//! back byte for byte on ports of its own, so the kernel's messages never mix with it. Nothing is
//! installed and nothing is left behind: kernels, busybox, passt and, where the host's is too old,
//! QEMU are fetched once as Debian packages into a cache folder (see [`cache_folder`]).
//!
//! ```no_run
//! use kvmprof_lab::Lab;
//!
//! let outcome = Lab::new().command(["ls", "-l", "/dev/kvm"]).run()?;
//! assert_eq!(outcome.status, 0);
//! # Ok::<(), kvmprof_lab::LabError>(())
//! ```
//!
//! Time in the lab is not real time: it shows behaviour, never speed.

mod bochs;
mod debian_disk;
mod error;
pub mod initramfs;
mod jail;
mod kernels;
mod lab;
mod machine;
mod network;
mod outfolder;
mod probe;
mod program;
mod qemu;
mod quiet;
mod streams;
mod tsc;

pub use debian_disk::{DebianDisk, debian_disk};
pub use error::{LabError, Traces};
pub use initramfs::InitramfsBuilder;
pub use jail::{JAIL, shared_libraries, virtiofsd};
pub use kernels::{
    BOXLITE, Kernel, MICROSANDBOX, PYRO, PypiPackage, busybox, cache_folder, debian_11_package,
    debian_12_package, debian_13_package, debian_package, debug_symbols, kernels, passt,
    pypi_package,
};
pub use lab::{Lab, Outcome};
pub use network::GUEST_NETWORK;
pub use probe::probe_kvm;
pub use program::{build_program, build_program_of};
pub use qemu::{fetch, newer_qemu};
pub use streams::last_lines;
