//! The initial state of the machine's parts in KVM (vCPUs, interrupt controllers and interval timer), which a restart restores.

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, Msrs, kvm_debugregs,
    kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_pit_state2, kvm_regs, kvm_sregs,
    kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use super::error::{MachineError, kvm};

/// The time stamp counter. It continues across a restart, as the host's clocks do.
const IA32_TSC: u32 = 0x10;

/// The state of a vCPU.
#[derive(Debug)]
pub struct VcpuState {
    registers: kvm_regs,
    special: kvm_sregs,
    local_apic: kvm_lapic_state,
    power: kvm_mp_state,
    events: kvm_vcpu_events,
    debug: kvm_debugregs,
    // `None` if this KVM, or the processor, has no such state.
    control: Option<kvm_xcrs>,
    extended: Option<Box<kvm_xsave>>,
    model_specific: Vec<kvm_msr_entry>,
}

impl VcpuState {
    /// Reads the present state of `vcpu`, with those model-specific registers of `msrs` that the vCPU has.
    ///
    /// # Errors
    /// KVM refuses to read a part of the state.
    pub fn read(vcpu: &VcpuFd, msrs: &[u32]) -> Result<Self, MachineError> {
        // A processor without XSAVE has none of these registers, and KVM refuses to set them.
        let control = vcpu.get_xcrs().ok().filter(|xcrs| xcrs.nr_xcrs > 0);
        Ok(Self {
            registers: vcpu.get_regs().map_err(kvm("KVM_GET_REGS"))?,
            special: vcpu.get_sregs().map_err(kvm("KVM_GET_SREGS"))?,
            local_apic: vcpu.get_lapic().map_err(kvm("KVM_GET_LAPIC"))?,
            power: vcpu.get_mp_state().map_err(kvm("KVM_GET_MP_STATE"))?,
            events: vcpu.get_vcpu_events().map_err(kvm("KVM_GET_VCPU_EVENTS"))?,
            debug: vcpu.get_debug_regs().map_err(kvm("KVM_GET_DEBUGREGS"))?,
            control,
            extended: vcpu.get_xsave().ok().map(Box::new),
            model_specific: read_msrs(vcpu, msrs),
        })
    }

    /// Resets `vcpu` to this state. The vCPU must have no unfinished exit.
    ///
    /// # Errors
    /// KVM refuses to set a part of the state.
    pub fn restore(&self, vcpu: &VcpuFd) -> Result<(), MachineError> {
        // The base of the local APIC and the mode come before the state that depends on them.
        vcpu.set_sregs(&self.special)
            .map_err(kvm("KVM_SET_SREGS"))?;
        vcpu.set_regs(&self.registers)
            .map_err(kvm("KVM_SET_REGS"))?;
        if let Some(control) = &self.control {
            vcpu.set_xcrs(control).map_err(kvm("KVM_SET_XCRS"))?;
        }
        if let Some(state) = &self.extended {
            // SAFETY: KVM reads more than the 4096 bytes of the structure only of processes that have asked for
            // dynamic features (arch_prctl(2), ARCH_REQ_XCOMP_GUEST_PERM). This one never does.
            unsafe { vcpu.set_xsave(state) }.map_err(kvm("KVM_SET_XSAVE"))?;
        }
        write_msrs(vcpu, &self.model_specific);
        vcpu.set_lapic(&self.local_apic)
            .map_err(kvm("KVM_SET_LAPIC"))?;
        vcpu.set_vcpu_events(&self.events)
            .map_err(kvm("KVM_SET_VCPU_EVENTS"))?;
        vcpu.set_debug_regs(&self.debug)
            .map_err(kvm("KVM_SET_DEBUGREGS"))?;
        vcpu.set_mp_state(self.power)
            .map_err(kvm("KVM_SET_MP_STATE"))
    }
}

/// The model-specific registers of a vCPU's state, except its time stamp counter.
///
/// # Errors
/// KVM doesn't list the registers.
pub fn model_specific_registers(kvm_fd: &Kvm) -> Result<Vec<u32>, MachineError> {
    let listed = kvm_fd.get_msr_index_list().map_err(kvm(
        "to list model-specific registers (KVM_GET_MSR_INDEX_LIST)",
    ))?;
    let listed = listed.as_slice().iter().copied();
    Ok(listed.filter(|index| *index != IA32_TSC).collect())
}

/// Reads the registers that can be read. KVM stops at a register that it doesn't know on this vCPU; that register is skipped.
fn read_msrs(vcpu: &VcpuFd, indexes: &[u32]) -> Vec<kvm_msr_entry> {
    let mut all = Vec::with_capacity(indexes.len());
    let mut rest = indexes;
    while !rest.is_empty() {
        let entries: Vec<_> = rest.iter().map(|index| entry(*index)).collect();
        let Ok(mut msrs) = Msrs::from_entries(&entries) else {
            break;
        };
        let done = vcpu.get_msrs(&mut msrs).unwrap_or(0).min(rest.len());
        all.extend_from_slice(msrs.as_slice().get(..done).unwrap_or_default());
        rest = rest.get(done + 1..).unwrap_or_default();
    }
    all
}

/// Writes the registers. A register that can only be read is skipped, and keeps its value anyway.
fn write_msrs(vcpu: &VcpuFd, all: &[kvm_msr_entry]) {
    let mut rest = all;
    while !rest.is_empty() {
        let Ok(msrs) = Msrs::from_entries(rest) else {
            break;
        };
        let done = vcpu.set_msrs(&msrs).unwrap_or(0);
        rest = rest.get(done + 1..).unwrap_or_default();
    }
}

fn entry(index: u32) -> kvm_msr_entry {
    kvm_msr_entry {
        index,
        ..Default::default()
    }
}

/// Whether the guest has unmasked the interrupt of this pin of the I/O APIC. The pin stays masked until the guest's kernel has a driver for
/// the device that is connected to it.
pub(super) fn is_unmasked(vm: &VmFd, pin: u32) -> bool {
    /// The mask bit of an entry (82093AA I/O APIC datasheet, section 3.2.4).
    const MASKED: u64 = 1 << 16;

    let mut controller = kvm_irqchip {
        chip_id: KVM_IRQCHIP_IOAPIC,
        ..Default::default()
    };
    if vm.get_irqchip(&mut controller).is_err() {
        return false;
    }
    // SAFETY: KVM has filled in the state of the I/O APIC, which was asked for; any bits are a valid value of it.
    let entries = unsafe { controller.chip.ioapic.redirtbl };
    let entry = usize::try_from(pin).ok().and_then(|pin| entries.get(pin));
    // SAFETY: all 64 bits of the entry are valid in either form.
    entry.is_some_and(|entry| unsafe { entry.bits } & MASKED == 0)
}

/// The state of the interrupt controllers and of the interval timer.
#[derive(Debug)]
pub struct ChipState {
    controllers: Vec<kvm_irqchip>,
    timer: kvm_pit_state2,
}

impl ChipState {
    /// Reads the present state of `vm`.
    ///
    /// # Errors
    /// KVM refuses to read the state.
    pub fn read(vm: &VmFd) -> Result<Self, MachineError> {
        let chips = [
            KVM_IRQCHIP_PIC_MASTER,
            KVM_IRQCHIP_PIC_SLAVE,
            KVM_IRQCHIP_IOAPIC,
        ];
        let controllers = chips.map(|chip_id| {
            let mut controller = kvm_irqchip {
                chip_id,
                ..Default::default()
            };
            vm.get_irqchip(&mut controller)
                .map_err(kvm("to read an interrupt controller (KVM_GET_IRQCHIP)"))?;
            Ok(controller)
        });
        let controllers: Result<_, MachineError> = controllers.into_iter().collect();
        Ok(Self {
            controllers: controllers?,
            timer: vm
                .get_pit2()
                .map_err(kvm("to read the interval timer (KVM_GET_PIT2)"))?,
        })
    }

    /// Resets the controllers and the timer of `vm` to this state.
    ///
    /// # Errors
    /// KVM refuses to set the state.
    pub fn restore(&self, vm: &VmFd) -> Result<(), MachineError> {
        for controller in &self.controllers {
            vm.set_irqchip(controller)
                .map_err(kvm("to reset an interrupt controller (KVM_SET_IRQCHIP)"))?;
        }
        vm.set_pit2(&self.timer)
            .map_err(kvm("to reset the interval timer (KVM_SET_PIT2)"))
    }
}
