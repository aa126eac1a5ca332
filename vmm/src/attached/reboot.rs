//! Detects that a guest has rebooted. From then on, what was found of its kernel is wrong: it is forgotten, and the kernel is looked for again. If another
//! kernel runs, that one is read.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use kvmprof_attach::remote::{Channel, RemoteVcpu};
use kvmprof_introspection::{
    BuildFiles, GuestKnowledge, IntrospectionError, KernelPulse, KernelWatch, LinuxKnowledge,
    Registers,
};

use super::kernel_finder::Reading;
use super::vcpu::{AttachedCommon, REFRESH_NS};
use super::vcpu_look::VcpuLook;
use kvmprof_profiling::clock::{ThreadTimes, monotonic_ns};
use kvmprof_profiling::sampling::VcpuShared;

/// The pause between two rounds of looks.
const PAUSE: Duration = Duration::from_millis(250);
/// The pause between two rounds while the guest may have rebooted. Such doubts last for less than half a second.
const PAUSE_IN_DOUBT: Duration = Duration::from_millis(100);
/// One of this many rounds looks at a vCPU's registers even if the kernel's clock has advanced.
const ROUNDS: u32 = 8;
/// Minimum run time of a vCPU's thread since the last look, in ns, to count as having run. A shorter time is due to the look itself.
const LEAST_RUN: u64 = 2_000_000;
/// Number of consecutive looks that find another kernel, after which that is what the guest runs. A boot loader may leave an old one in memory.
const MAX_OTHERS: u8 = 8;

/// A vCPU that is watched.
struct WatchedVcpu {
    vcpu: RemoteVcpu,
    schedstat: Option<File>,
    /// The run time of its thread at the last look, in ns.
    run: u64,
}

impl WatchedVcpu {
    fn run(&self) -> u64 {
        let times = self.schedstat.as_ref().map(ThreadTimes::read);
        times.map_or(0, |times| times.map_or(0, |times| times.run))
    }

    /// Whether the vCPU has run since the last look. Halted vCPUs aren't looked at, because they can't reboot the guest.
    fn has_run(&self) -> bool {
        self.run().saturating_sub(self.run) >= LEAST_RUN
    }

    fn look(&mut self) -> VcpuLook {
        let look = VcpuLook::new(&mut self.vcpu);
        self.run = self.run();
        look
    }
}

/// Whether any of these vCPUs runs the kernel. `None` if none was seen, or if an unknown one could: a guest whose other vCPUs still wait in its firmware
/// isn't rebooting.
fn is_kernel_run(
    looks: impl Iterator<Item = VcpuLook>,
    is_run_by: impl Fn(&Registers) -> bool,
) -> Option<bool> {
    let mut runs = None;
    let mut are_all_known = true;
    for look in looks {
        match look {
            VcpuLook::Registers(registers) if is_run_by(&registers) => return Some(true),
            VcpuLook::Registers(_) => runs = Some(false),
            VcpuLook::NotStarted => {}
            VcpuLook::Unknown => are_all_known = false,
        }
    }
    runs.filter(|_| are_all_known)
}

/// What a look for the kernel has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelSearch {
    /// It isn't known yet which one runs.
    Nothing,
    /// Its place, or another kernel.
    Kernel,
    /// One kernel too many.
    TooMany,
}

/// Watches the kernel of a Linux guest.
pub struct RebootWatch<'a> {
    vcpus: Vec<WatchedVcpu>,
    /// The vCPUs, as the threads that sample them share them.
    sampled: Vec<Arc<VcpuShared>>,
    memory: Arc<Channel>,
    linux: &'a LinuxKnowledge,
    common: &'a AttachedCommon,
    watch: KernelWatch,
    rounds: u32,
    /// The number of looks since a restart that have found another kernel.
    others: u8,
    reading: Reading,
}

impl<'a> RebootWatch<'a> {
    /// A watch of these vCPUs, each with the scheduler's statistics of its thread, in the guest whose memory is `memory`.
    pub fn new(
        vcpus: impl Iterator<Item = (RemoteVcpu, Option<File>)>,
        sampled: Vec<Arc<VcpuShared>>,
        memory: Arc<Channel>,
        linux: &'a LinuxKnowledge,
        common: &'a AttachedCommon,
    ) -> Self {
        let watched = |(vcpu, schedstat)| WatchedVcpu {
            vcpu,
            schedstat,
            run: 0,
        };
        Self {
            vcpus: vcpus.map(watched).collect(),
            sampled,
            memory,
            linux,
            common,
            watch: KernelWatch::default(),
            rounds: 0,
            others: 0,
            reading: Reading::default(),
        }
    }

    /// Watches until the end, or until the guest has rebooted into more kernels than can be known: true then. While it may have rebooted, no samples are taken.
    pub fn watch(mut self) -> bool {
        while !self.common.stopping.load(Ordering::Relaxed) {
            if self.linux.slide().is_none() {
                if self.look_for_kernel() == KernelSearch::TooMany {
                    return true;
                }
            } else if self.round() {
                self.common.in_doubt.store(true, Ordering::Relaxed);
                self.forget();
            }
            let is_in_doubt = self.watch.is_in_doubt();
            self.common.in_doubt.store(is_in_doubt, Ordering::Relaxed);
            // Or until the thread is unparked.
            thread::park_timeout(if is_in_doubt { PAUSE_IN_DOUBT } else { PAUSE });
        }
        false
    }

    /// Forgets what was found of the kernel, which has ended.
    fn forget(&mut self) {
        log::warn!(
            "The guest has rebooted: samples have no processes until its kernel is found again"
        );
        let (restart, stopping) = (&self.common.restart, &self.common.stopping);
        restart.carry_out(&self.sampled, stopping, || self.linux.forget_running());
        self.common.doorbell.ring_anyway();
        self.watch = KernelWatch::default();
        self.others = 0;
    }

    /// Looks for the kernel on the vCPUs in turn, and reads another one that was found there often enough.
    fn look_for_kernel(&mut self) -> KernelSearch {
        self.rounds = self.rounds.wrapping_add(1);
        let refreshed = (self.common).refresh_memory(monotonic_ns(), REFRESH_NS);
        let turn = (self.rounds as usize).checked_rem(self.vcpus.len());
        let vcpu = turn.and_then(|turn| self.vcpus.get_mut(turn));
        let look = refreshed.and(vcpu).map(WatchedVcpu::look);
        let Some(VcpuLook::Registers(registers)) = look else {
            return KernelSearch::Nothing;
        };
        if self.linux.locate(&self.memory, &registers).is_some() {
            log::info!("The guest's kernel was found again");
            return KernelSearch::Kernel;
        }
        let compared = (self.linux).compare_with_running(&self.memory, &registers);
        let is_other = matches!(compared, Err(IntrospectionError::OtherBuild { .. }));
        self.others = if is_other {
            self.others.saturating_add(1)
        } else {
            0
        };
        if self.others < MAX_OTHERS {
            return KernelSearch::Nothing;
        }
        let read = self
            .reading
            .read(&self.memory, &registers, &BuildFiles::default());
        match read {
            Ok(Some(found)) => self.succeed(found),
            Ok(None) => KernelSearch::Nothing,
            Err(error) => {
                log::debug!("The guest's other kernel can't be read now: {error}");
                KernelSearch::Nothing
            }
        }
    }

    /// Goes on with the kernel that was `found`.
    fn succeed(&mut self, found: GuestKnowledge) -> KernelSearch {
        let knowledge = &self.common.knowledge;
        if !knowledge.succeed(found) {
            return KernelSearch::TooMany;
        }
        if let Some(linux) = knowledge.linux() {
            log::warn!(
                "The guest runs another kernel now: Linux {}",
                linux.release().escape_default()
            );
            self.linux = linux;
        }
        self.others = 0;
        self.reading = Reading::default();
        KernelSearch::Kernel
    }

    /// Makes a round of looks. True once they show that the guest has rebooted.
    fn round(&mut self) -> bool {
        // A VMM may give a guest other slots when it restarts the guest.
        if (self.common)
            .refresh_memory(monotonic_ns(), REFRESH_NS)
            .is_none()
        {
            return false;
        }
        self.rounds = self.rounds.wrapping_add(1);
        let pulse = self.watch.pulse(self.linux, &self.memory);
        let has_advanced = match pulse {
            KernelPulse::Behind => return true,
            KernelPulse::Unreadable => return false,
            KernelPulse::Advanced => true,
            KernelPulse::Still => false,
        };
        if has_advanced {
            // Registers don't show a kernel that runs a nested guest or calls firmware.
            self.watch.trust();
            if !self.rounds.is_multiple_of(ROUNDS) {
                return false;
            }
        }
        // The vCPU that has led to doubts may be halted now.
        let only_busy = !has_advanced && !self.watch.is_in_doubt();
        match self.sees_kernel(only_busy) {
            Some(false) if !has_advanced => self.watch.doubt(),
            Some(true) => {
                self.watch.trust();
                false
            }
            _ => false,
        }
    }

    /// Whether any vCPU runs the kernel; `None` if that can't be told. With `only_busy`, only vCPUs that have run since the last look count.
    fn sees_kernel(&mut self, only_busy: bool) -> Option<bool> {
        let vcpus = self.vcpus.iter_mut();
        let vcpus = vcpus.filter(|vcpu| !only_busy || vcpu.has_run());
        let (linux, memory) = (self.linux, &self.memory);
        is_kernel_run(vcpus.map(WatchedVcpu::look), |registers| {
            linux.is_run_by(memory, registers)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_has_gone_only_if_no_vcpu_could_run_it() {
        use VcpuLook::{NotStarted, Unknown};
        let at = |rip| {
            VcpuLook::Registers(Box::new(Registers {
                rip,
                ..Registers::default()
            }))
        };
        let [kernel, firmware] = [at(1), at(2)];
        for (looks, expected) in [
            (&[][..], None),
            (&[&NotStarted, &Unknown], None),
            (&[&firmware, &NotStarted], Some(false)),
            (&[&firmware, &firmware], Some(false)),
            (&[&Unknown, &firmware], None),
            (&[&firmware, &Unknown], None),
            (&[&firmware, &kernel], Some(true)),
            (&[&Unknown, &kernel], Some(true)),
        ] {
            let run = is_kernel_run(looks.iter().copied().cloned(), |it| it.rip == 1);
            assert_eq!(run, expected, "{looks:?}");
        }
    }
}
