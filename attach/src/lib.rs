//! Guests of other VMMs on this host: finds them, and reads their memory and registers.
//!
//! [`find_machines`] lists every KVM guest of the host. Only the host's kernel knows which thread runs a vCPU and where guest
//! memory is. [`HostKernel`] reads this from `struct kvm` and the structures around it, through a small eBPF program and with the
//! offsets of the host's own BTF. [`AttachedMemory`] reads a guest's physical memory out of its VMM, and never writes. A
//! [`tracer`] stops vCPUs for a moment and reads their registers. With [`remote`] another process, which has no rights, gets all of this.
//!
//! The VMM is untrusted, and may change its memory at any moment: lengths, loops and walks are bounded, and inconsistent data
//! is reported and not followed.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use kvmprof_attach::{AttachedMemory, HostKernel, find_machines};
//! use kvmprof_introspection::PhysicalMemory;
//! use vm_memory::GuestAddress;
//!
//! let kernel = Arc::new(HostKernel::open()?);
//! for machine in find_machines(Ok(&*kernel)).machines {
//!     println!("{:?} of process {}: {} vCPUs", machine.name, machine.pid, machine.vcpus.len());
//!     if machine.obstacle.is_none() {
//!         let memory = AttachedMemory::open(&machine, Arc::clone(&kernel))?;
//!         let mut bytes = [0; 16];
//!         if memory.read_physical(GuestAddress(0x1000), &mut bytes).is_some() {
//!             println!("{bytes:x?}");
//!         }
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backing;
mod capabilities;
pub mod exits;
mod host_kernel;
mod host_stacks;
mod kernel_memory;
mod machines;
mod mapping;
mod memory;
mod nested;
mod process_mappings;
pub mod remote;
pub mod sampling;
mod slots;
pub mod tracepoint;
pub mod tracer;

pub use backing::Backing;
pub use capabilities::lacks;
pub use host_kernel::{HostKernel, HostKernelError};
pub use host_stacks::{HostStacks, HostStacksError, NewHostFunctions, OpenHostStacks};
pub use kernel_memory::{KernelMemory, KernelMemoryError};
pub use machines::{
    Machine, MachineList, NameRules, Named, Obstacle, RuleError, RuleText, Vcpu, find_machines,
    missing_to_look_into, why_hidden,
};
pub use mapping::Mapping;
pub use memory::{AttachError, AttachedMemory};
pub use nested::NestedGuest;
pub use slots::{Slot, Slots};
