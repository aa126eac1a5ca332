//! Probes by a guest of three instructions whether this host's KVM passes its tracepoints: modules other than kvm-intel and
//! kvm-amd may have the tracepoints of the processor's architecture without passing them.

use std::path::Path;
use std::sync::Mutex;

use kvm_ioctls::{VcpuExit, VcpuFd};
use kvmprof_sandbox::filters::is_contained;
use vm_memory::{Bytes, GuestAddress};

use crate::perf_event::{self, Event};
use kvmprof_machine::lock::lock;
use kvmprof_machine::{GuestMemory, has_hardware_virtualization, open_kvm, register_memory};

/// In real mode: mov 0x2000, %al; out %al, $0x80; hlt. The code and the read cause a page fault each, out and hlt an exit.
const CODE: [u8; 6] = [0xa0, 0x00, 0x20, 0xe6, 0x80, 0xf4];
const MEMORY_BYTES: usize = 0x3000;
/// Maximum number of interruptions of KVM_RUN before its exit.
const MAX_RUNS: usize = 64;

/// The results, by name. KVM stays the same while this process has a guest.
static RESULTS: Mutex<Vec<(&str, bool)>> = Mutex::new(Vec::new());

/// Whether this host's KVM is known to pass its tracepoints: kvm-intel and kvm-amd do. Of others [`super::unavailable`] tries it. Only one module serves /dev/kvm at a time. These load only where the processor has
/// VT-x or SVM; built into the kernel, they are listed even where it hasn't.
pub fn passes_tracepoints() -> bool {
    let is_there = |module| Path::new("/sys/module").join(module).exists();
    has_hardware_virtualization() && ["kvm_intel", "kvm_amd"].into_iter().any(is_there)
}

/// Whether KVM passes tracepoint `name`, perf's number `id`, when a guest makes an exit and touches memory. Takes some ms
/// the first time.
///
/// # Errors
/// Why the probe isn't possible, as text.
pub fn passes(name: &'static str, id: u64) -> Result<bool, String> {
    let mut known = lock(&RESULTS);
    if let Some((_, passes)) = known.iter().find(|(known, _)| *known == name) {
        return Ok(*passes);
    }
    // It counts for this thread, without a signal.
    let event = Event::Tracepoint(id).open(0, 0);
    let event = event.map_err(|error| perf_event::why_not(&error))?;
    if is_contained() {
        return Err(format!(
            "whether KVM passes kvm:{name} has to be probed before a guest runs"
        ));
    }
    run_guest().map_err(|why| format!("KVM runs no guest to try kvm:{name}: {why}"))?;
    let passes = perf_event::count(&event).is_some_and(|count| count > 0);
    known.push((name, passes));
    Ok(passes)
}

/// Runs the guest up to its exit to this thread. The error is the reason, as text.
fn run_guest() -> Result<(), String> {
    let text = |error: kvm_ioctls::Error| error.to_string();
    let kvm = open_kvm().map_err(|error| error.to_string())?;
    let memory = GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]);
    let memory = memory.map_err(|error| error.to_string())?;
    let written = memory.write_slice(&CODE, GuestAddress(0));
    written.map_err(|error| error.to_string())?;
    let vm = kvm.create_vm().map_err(text)?;
    register_memory(&vm, &memory).map_err(|error| error.to_string())?;
    let mut vcpu = vm.create_vcpu(0).map_err(text)?;
    start_at_0(&vcpu).map_err(text)?;
    for _ in 0..MAX_RUNS {
        match vcpu.run() {
            Ok(VcpuExit::Intr | VcpuExit::IrqWindowOpen) => {}
            // After any exit the guest has run.
            Ok(_) => return Ok(()),
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
            Err(error) => return Err(text(error)),
        }
    }
    Err("it was interrupted repeatedly".to_owned())
}

/// Sets CS and RIP to 0. The other registers are as after a reset: real mode.
fn start_at_0(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let mut special = vcpu.get_sregs()?;
    special.cs.base = 0;
    special.cs.selector = 0;
    vcpu.set_sregs(&special)?;
    let mut general = vcpu.get_regs()?;
    general.rip = 0;
    vcpu.set_regs(&general)
}
