//! Notices that the known kernel doesn't run any more, because the guest has rebooted.
//!
//! An old kernel's data stays in memory until it is overwritten, so its banner proves nothing. Two things do: the
//! exception handlers of a vCPU lead to the kernel that it runs, and `jiffies` of a running kernel grow.

use super::LinuxKnowledge;
use crate::{PhysicalMemory, Registers};
use kvmprof_paging::{AddressSpace, read_u64};

/// Maximum number of jiffies between two looks: 1000 s at the highest CONFIG_HZ, 1000.
const MAX_LEAP: u64 = 1_000_000;
/// Number of consecutive rounds of looks without a sign of the kernel after which it is taken as gone.
const MAX_DOUBTS: u8 = 4;

/// The change of a kernel's clock since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPulse {
    /// The clock has advanced.
    Advanced,
    /// The clock is stopped, as while all vCPUs are halted; or the kernel has no known clock.
    Still,
    /// The clock can't be read: a VMM is changing memory slots, or has removed the memory.
    Unreadable,
    /// The clock has an earlier value: the kernel has restarted, or its memory was reused.
    Behind,
}

/// Checks repeatedly whether a Linux guest still runs the known kernel.
#[derive(Debug, Default)]
pub struct KernelWatch {
    jiffies: Option<u64>,
    doubts: u8,
}

impl KernelWatch {
    /// Reads the kernel's clock in `memory`, in at most two reads.
    pub fn pulse<M: PhysicalMemory>(&mut self, linux: &LinuxKnowledge, memory: &M) -> KernelPulse {
        let (Some(placement), Some(jiffies)) = (linux.placement.get(), linux.addresses.jiffies)
        else {
            return KernelPulse::Still;
        };
        let read = || read_u64(memory, placement.physical(jiffies));
        let (Some(mut now), before) = (read(), self.jiffies) else {
            return KernelPulse::Unreadable;
        };
        if before.is_some_and(|before| now < before) {
            // The first read may have been at the time of a write.
            now = read().unwrap_or(now);
        }
        self.jiffies = Some(now);
        match before.map(|before| now.checked_sub(before)) {
            None | Some(Some(1..=MAX_LEAP)) => KernelPulse::Advanced,
            Some(None) => KernelPulse::Behind,
            Some(Some(_)) => KernelPulse::Still,
        }
    }

    /// Clears all doubts, because the kernel was seen to run.
    pub fn trust(&mut self) {
        self.doubts = 0;
    }

    /// Adds a doubt: the clock is stopped, and no running vCPU was found in the kernel. True once there are enough
    /// doubts to take the kernel as gone.
    pub fn doubt(&mut self) -> bool {
        self.doubts = self.doubts.saturating_add(1);
        self.doubts >= MAX_DOUBTS
    }

    /// Whether there are doubts.
    pub fn is_in_doubt(&self) -> bool {
        self.doubts > 0
    }
}

impl LinuxKnowledge {
    /// Whether a vCPU with `registers` runs this kernel at its known place, or a program on it, according to its
    /// exception handlers, or else its program counter. False in firmware, in another kernel, and in a nested guest.
    /// Bounded for any contents of guest memory.
    pub fn is_run_by<M: PhysicalMemory>(&self, memory: &M, registers: &Registers) -> bool {
        let space = AddressSpace::new(memory, registers);
        let known = self.placement.get();
        space.is_long_mode() && known.is_some() && self.find(&space, registers) == known
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;
    use crate::test_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::kernel::{HOT, NEW, OLD, TEXT, offsets};
    use kvmprof_introspection_fixtures::linux_guest::{IMAGE, SLIDE};
    use kvmprof_introspection_fixtures::page_tables::{Memory, Tables};

    /// Free memory of guests, for another kernel and its page tables.
    const OTHER: u64 = 0x100_0000;
    const OTHER_TABLES: u64 = 0x180_0000;

    fn located(guest: &LinuxGuest) -> &LinuxKnowledge {
        guest.linux().locate(&guest.memory, &guest.kernel(0));
        guest.linux()
    }

    #[test]
    fn vcpus_in_the_kernel_or_its_programs_confirm_it() {
        for kernel in [OLD, HOT, NEW] {
            let guest = LinuxGuest::new(kernel);
            assert!(!guest.linux().is_run_by(&guest.memory, &guest.user()));
            let linux = located(&guest);
            for registers in [guest.kernel(0), guest.kernel(1), guest.user()] {
                assert!(linux.is_run_by(&guest.memory, &registers));
            }
        }
    }

    #[test]
    fn firmware_and_other_kernels_do_not_confirm_it() {
        let guest = LinuxGuest::new(HOT);
        let linux = located(&guest);
        let changed = |registers: Registers, change: fn(&mut Registers)| {
            let mut registers = registers;
            change(&mut registers);
            registers
        };
        // The last one is the same kernel, restarted with another slide and elsewhere in memory.
        let slide = SLIDE + 0x20_0000;
        guest.write(OTHER, &HOT.image_at(slide));
        let mut tables = Tables::new(guest.memory.clone(), OTHER_TABLES, 4);
        tables.map(TEXT + slide, OTHER, 2);
        for registers in [
            Registers::default(),
            changed(Registers::default(), |it| (it.rip, it.cr0) = (0xfff0, 1)),
            changed(guest.kernel(0), |it| it.efer = 0),
            changed(guest.kernel(0), |it| it.cr3 = 1 << 45),
            changed(guest.kernel(0), |it| {
                it.rip += 0x20_0000;
                it.cr3 = OTHER_TABLES;
            }),
        ] {
            let is_run = linux.is_run_by(&guest.memory, &registers);
            assert!(!is_run, "{registers:x?}");
        }
        assert!(linux.is_run_by(&guest.memory, &guest.user()));
    }

    #[test]
    fn a_clock_may_advance_stop_or_go_back() {
        let guest = LinuxGuest::new(NEW);
        let linux = located(&guest);
        let mut watch = KernelWatch::default();
        let mut pulse = |jiffies: u64| {
            guest.set(offsets::JIFFIES, jiffies);
            watch.pulse(linux, &guest.memory)
        };
        let start = 0xffff_0000;
        assert_eq!(pulse(start), KernelPulse::Advanced);
        assert_eq!(pulse(start), KernelPulse::Still);
        assert_eq!(pulse(start + 1), KernelPulse::Advanced);
        // A value that needs more than 32 bits.
        assert_eq!(pulse(start + 0x1_0000), KernelPulse::Advanced);
        // No clock advances so far.
        assert_eq!(pulse(start << 20), KernelPulse::Still);
        assert_eq!(pulse(start), KernelPulse::Behind);
        let nothing = Memory::from_ranges(&[(GuestAddress(0), 4096)]).unwrap();
        assert_eq!(watch.pulse(linux, &nothing), KernelPulse::Unreadable);
    }

    #[test]
    fn a_reboot_needs_several_doubts_in_a_row() {
        let mut watch = KernelWatch::default();
        for _ in 0..10 {
            assert!(!watch.doubt() && watch.is_in_doubt());
            assert!(!watch.doubt());
            watch.trust();
            assert!(!watch.is_in_doubt());
        }
        assert_eq!((0..MAX_DOUBTS).filter(|_| watch.doubt()).count(), 1);
    }

    /// Tests random contents of the kernel's former memory.
    #[test]
    fn an_overwritten_kernel_no_longer_runs() {
        let guest = LinuxGuest::new(HOT);
        let linux = located(&guest);
        guest.write(IMAGE, &vec![0x5a; usize::try_from(offsets::END).unwrap()]);
        assert!(!linux.is_run_by(&guest.memory, &guest.kernel(0)));
        assert!(!linux.is_run_by(&guest.memory, &guest.user()));
    }
}
