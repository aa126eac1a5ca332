//! Counts the exits of one guest's vCPUs in the host's kernel: small eBPF programs at tracepoints of KVM add up numbers and times by reason, access and
//! instruction in maps of a fixed size. Programs at tracepoints of the scheduler add up for how long the vCPUs wait for a processor, and what runs there, and those at
//! tracepoints of interrupts for how long these have the processor of a vCPU. Nothing is handed to user space until somebody reads the maps.
//!
//! What gets there is what the processor, KVM and the scheduler know, and the id and the name of the guest's process out of guest memory, if their places are known.

mod interrupts;
mod processes;
mod program;
mod reason_names;
mod record;
mod waits;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

pub(crate) use reason_names::ExitNames;
pub use reason_names::ReasonNames;

use kvmprof_introspection::ProcessPlaces;
use kvmprof_introspection::bytes::u64_at;
use kvmprof_recording::exits::{AccessKind, Counts, Lost};
use rustix::time::{ClockId, clock_gettime};

use crate::kernel_memory::bpf::{self, Instruction, Trigger};
use crate::sampling::SamplingError;
use crate::sampling::error::refused;
use crate::sampling::time_namespace;
use crate::tracepoint::{ExitTracepoint, Member, Tracepoint, TracepointError};
use crate::{AttachError, HostKernel, Machine, memory};
use processes::ProcessReads;
use program::{AccessMembers, Plan};
use waits::{MoveMembers, SwitchMembers};

/// Maximum number of threads of vCPUs whose exits are counted.
const MAX_THREADS: u32 = 4096;
/// Maximum number of reasons for each vCPU, on average, and of entries altogether.
const REASONS_EACH: u32 = 64;
const MAX_REASONS: u32 = 8192;
/// Maximum number of places of accesses.
const MAX_ACCESSES: u32 = 8192;
/// Maximum number of pairs of a reason and an instruction.
const MAX_FUNCTIONS: u32 = 16384;

/// Maximum number of pairs of a reason and a process.
const MAX_PROCESSES: u32 = 8192;
/// Maximum number of pairs of a vCPU's thread and another thread, and of one and an interrupt.
const MAX_WAITS: u32 = 8192;
const MAX_INTERRUPTS: u32 = 8192;

/// Why exits can't be counted.
#[derive(Debug, thiserror::Error)]
pub enum ExitsError {
    /// A tracepoint of KVM is missing or unknown.
    #[error(transparent)]
    Tracepoint(#[from] TracepointError),
    /// The VMM has ended.
    #[error("The VMM has ended")]
    Ended,
    /// The guest's memory isn't known.
    #[error(transparent)]
    Memory(#[from] AttachError),
    /// The host's kernel refuses a program or a map.
    #[error(transparent)]
    Program(#[from] SamplingError),
}

/// Programs that count the exits of a guest, once they are attached to their tracepoints, and their maps.
#[derive(Debug)]
pub struct ExitCounter {
    /// The numbers of the tracepoints, and their programs.
    programs: Vec<(u64, OwnedFd)>,
    maps: Maps,
    /// `None` if the guest's processes aren't known.
    processes: Option<ProcessReads>,
    exit: ExitTracepoint,
    missing: Vec<&'static str>,
    softirqs: BTreeMap<u32, String>,
    /// This process's CLOCK_MONOTONIC minus the host's, in ns modulo 2^64.
    time_offset: u64,
}

#[derive(Debug)]
struct Maps {
    totals: OwnedFd,
    zeros: OwnedFd,
    threads: OwnedFd,
    reasons: OwnedFd,
    max_reasons: u32,
    accesses: OwnedFd,
    functions: OwnedFd,
    processes: OwnedFd,
    processors: OwnedFd,
    waits: OwnedFd,
    interrupts: OwnedFd,
}

impl Maps {
    fn new(vcpus: usize) -> io::Result<Self> {
        let vcpus = u32::try_from(vcpus).unwrap_or(u32::MAX).max(1);
        let max_reasons = vcpus.saturating_mul(REASONS_EACH).min(MAX_REASONS);
        let places = |entries| bpf::create_hash(record::PLACE_KEY, record::PLACE_BYTES, entries);
        Ok(Self {
            totals: bpf::create_map(record::TOTALS_BYTES)?,
            zeros: bpf::create_map(record::REASON_BYTES)?,
            threads: bpf::create_hash(record::THREAD_KEY, record::THREAD_BYTES, MAX_THREADS)?,
            reasons: bpf::create_hash(record::REASON_KEY, record::REASON_BYTES, max_reasons)?,
            max_reasons,
            accesses: places(MAX_ACCESSES)?,
            functions: places(MAX_FUNCTIONS)?,
            processes: bpf::create_hash(record::REASON_KEY, record::NAMED_BYTES, MAX_PROCESSES)?,
            processors: bpf::create_array(waits::PROCESSOR_BYTES, processors())?,
            waits: bpf::create_hash(record::PLACE_KEY, record::NAMED_BYTES, MAX_WAITS)?,
            interrupts: places(MAX_INTERRUPTS)?,
        })
    }

    /// What counts in these maps the exits of the VMM with this id, as all of the host has it; by process, too, if there are
    /// `reads`.
    fn plan(&self, vmm: i32, reads: Option<&ProcessReads>) -> Plan {
        Plan {
            vmm,
            totals: self.totals.as_raw_fd(),
            zeros: self.zeros.as_raw_fd(),
            threads: self.threads.as_raw_fd(),
            reasons: self.reasons.as_raw_fd(),
            accesses: self.accesses.as_raw_fd(),
            functions: self.functions.as_raw_fd(),
            processes: reads.map(|_| self.processes.as_raw_fd()),
            processors: self.processors.as_raw_fd(),
            waits: self.waits.as_raw_fd(),
            interrupts: self.interrupts.as_raw_fd(),
        }
    }
}

impl ExitCounter {
    /// Makes the programs that count the exits of `machine`, one of those that [`crate::find_machines`] has found. The guest's processes are found by `places`, for
    /// vCPUs by their numbers.
    ///
    /// # Errors
    /// The host's KVM lacks the tracepoints of exits and entries, the process has ended, or the host's kernel refuses a program.
    pub fn new(
        kernel: &HostKernel,
        machine: &Machine,
        places: &[(u32, ProcessPlaces)],
    ) -> Result<Self, ExitsError> {
        let exit = ExitTracepoint::read()?;
        let entry = Tracepoint::read("kvm_entry")?;
        let vmm = kernel.process(machine.pid).ok_or(ExitsError::Ended)?.id;
        let processes = match places {
            [] => None,
            places => {
                let slots = memory::slots_of(kernel, machine)?;
                ProcessReads::new(&slots, places).map_err(refused)?
            }
        };
        let maps = Maps::new(machine.vcpus.len()).map_err(refused)?;
        let plan = maps.plan(vmm, processes.as_ref());
        let mut counter = Self {
            programs: Vec::new(),
            maps,
            processes,
            exit,
            missing: Vec::new(),
            softirqs: BTreeMap::new(),
            time_offset: time_namespace::monotonic_offset(),
        };
        counter.load_waits(plan)?;
        counter.load_interrupts(plan)?;
        counter.load(&entry, &program::at_entry(plan))?;
        let left = optional(Tracepoint::read("kvm_userspace_exit"));
        counter.load_optional("kvm_userspace_exit", left, |_| {
            Ok(program::at_userspace_exit(plan))
        })?;
        for access in ACCESSES {
            let tracepoint = optional(Tracepoint::read(access.tracepoint));
            counter.load_optional(access.tracepoint, tracepoint, |tracepoint| {
                Ok(program::at_access(plan, access.members(tracepoint)?))
            })?;
        }
        // Last: an exit is counted at the entry that follows.
        let ExitTracepoint {
            tracepoint,
            members,
        } = counter.exit.clone();
        let at_exit = program::at_exit(plan, members, counter.processes.as_ref());
        counter.load(&tracepoint, &at_exit)?;
        Ok(counter)
    }

    /// Loads the programs at tracepoints of the scheduler.
    fn load_waits(&mut self, plan: Plan) -> Result<(), ExitsError> {
        let mut load = |name, instructions: &dyn Fn(&Tracepoint) -> Result<_, _>| {
            let at = Ok(Tracepoint::of_host("sched", name));
            self.load_optional(name, at, instructions)
        };
        load("sched_switch", &|at| {
            Ok(waits::at_switch(plan, SwitchMembers::of(at)?))
        })?;
        load("sched_wakeup", &|at| {
            let members = MoveMembers::of(at, "target_cpu")?;
            Ok(waits::at_wakeup(plan, members))
        })?;
        load("sched_migrate_task", &|at| {
            let members = MoveMembers::of(at, "dest_cpu")?;
            Ok(waits::at_migration(plan, members))
        })
    }

    fn load(&mut self, at: &Tracepoint, instructions: &[Instruction]) -> Result<(), ExitsError> {
        let program = bpf::load_for(Trigger::Tracepoint, instructions);
        let program = program.map_err(SamplingError::from)?;
        self.programs.push((at.id, program));
        Ok(())
    }

    /// Loads a program if there is its tracepoint, which is noted as missing otherwise.
    fn load_optional(
        &mut self,
        name: &'static str,
        at: Result<Option<Tracepoint>, TracepointError>,
        instructions: impl FnOnce(&Tracepoint) -> Result<Vec<Instruction>, TracepointError>,
    ) -> Result<(), ExitsError> {
        let Some(at) = at? else {
            self.missing.push(name);
            return Ok(());
        };
        match instructions(&at) {
            Ok(instructions) => self.load(&at, &instructions),
            Err(_) => {
                self.missing.push(name);
                Ok(())
            }
        }
    }

    /// Perf's numbers of the tracepoints, and the program for each, in the order in which they are to be attached.
    pub fn programs(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        let programs = self.programs.iter();
        programs.map(|(id, program)| (*id, program.as_fd()))
    }

    /// Whether the guest's processes are known.
    pub fn knows_processes(&self) -> bool {
        self.processes.is_some()
    }

    /// The tracepoints that the host lacks: what they show isn't known.
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    /// The names of softirqs by their numbers, as the host's kernel has them.
    pub fn softirq_names(&self) -> &BTreeMap<u32, String> {
        &self.softirqs
    }

    /// The names of reasons, as the host's kernel has them.
    pub fn reason_names(&self, isa: u64) -> ReasonNames {
        ReasonNames::of(&self.exit.tracepoint, isa)
    }

    /// What has been counted so far. vCPUs that run meanwhile go on counting: numbers of different maps may be some exits apart.
    ///
    /// # Errors
    /// bpf(2) fails.
    pub fn read(&self) -> io::Result<Counts> {
        let maps = &self.maps;
        let places = |map, most| bpf::entries(map, record::PLACE_KEY, record::PLACE_BYTES, most);
        let reasons = bpf::entries(
            &maps.reasons,
            record::REASON_KEY,
            record::REASON_BYTES,
            maps.max_reasons,
        )?;
        let threads = bpf::entries(
            &maps.threads,
            record::THREAD_KEY,
            record::THREAD_BYTES,
            MAX_THREADS,
        )?;
        let now = clock_gettime(ClockId::Monotonic);
        let now = 1_000_000_000_u64
            .wrapping_mul(now.tv_sec.cast_unsigned())
            .wrapping_add(now.tv_nsec.cast_unsigned())
            .wrapping_sub(self.time_offset);
        let accesses = places(&maps.accesses, MAX_ACCESSES)?;
        let functions = places(&maps.functions, MAX_FUNCTIONS)?;
        let interrupts = places(&maps.interrupts, MAX_INTERRUPTS)?;
        let named = |map, key, most| bpf::entries(map, key, record::NAMED_BYTES, most);
        let processes = named(&maps.processes, record::REASON_KEY, MAX_PROCESSES)?;
        let waits = named(&maps.waits, record::PLACE_KEY, MAX_WAITS)?;
        let totals = bpf::value(&maps.totals, record::TOTALS_BYTES)?;
        let total = |member: i16| {
            let offset = usize::try_from(member).unwrap_or_default();
            u64_at(&totals, offset).unwrap_or_default()
        };
        let in_exit = threads
            .iter()
            .filter(|(_, thread)| u64_at(thread, 0).is_some_and(|time| time != 0));
        Ok(Counts {
            isa: total(record::ISA),
            reasons: reasons.iter().filter_map(record::reason).collect(),
            accesses: accesses.iter().filter_map(record::access).collect(),
            functions: functions.iter().filter_map(record::function).collect(),
            processes: processes.iter().filter_map(record::process).collect(),
            threads: (threads.iter())
                .filter_map(|thread| record::thread(thread, now))
                .collect(),
            waits: waits.iter().filter_map(record::wait).collect(),
            interrupts: interrupts.iter().filter_map(record::interrupt).collect(),
            unfinished: in_exit.count() as u64,
            lost: Lost {
                threads: total(record::LOST_THREADS),
                reasons: total(record::LOST_REASONS),
                accesses: total(record::LOST_ACCESSES),
                functions: total(record::LOST_FUNCTIONS),
                processes: total(record::LOST_PROCESSES),
                waits: total(record::LOST_WAITS),
                slots: total(record::LOST_SLOTS),
                interrupts: total(record::LOST_INTERRUPTS),
            },
            left_kvm: total(record::LEFT_KVM),
        })
    }
}

/// The highest number of a processor of this host, plus one.
fn processors() -> u32 {
    // Such as `0-7`, or `0,2-5`.
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let numbers = possible.trim().split(['-', ',']);
    let last = numbers
        .filter_map(|number| number.parse::<u32>().ok())
        .max();
    last.map_or(1, |last| last.saturating_add(1))
}

/// `None` if the host's KVM doesn't have the tracepoint.
fn optional(
    read: Result<Tracepoint, TracepointError>,
) -> Result<Option<Tracepoint>, TracepointError> {
    match read {
        Err(TracepointError::Missing(_)) => Ok(None),
        read => read.map(Some),
    }
}

/// A tracepoint that is passed for an access.
struct AccessTracepoint {
    tracepoint: &'static str,
    place: &'static str,
    /// The member that says whether it is a write, and the number that does.
    write: Option<(&'static str, i32)>,
    /// The kind of all that isn't a write by that.
    read_kind: AccessKind,
}

impl AccessTracepoint {
    fn members(&self, tracepoint: &Tracepoint) -> Result<AccessMembers, TracepointError> {
        let write = self.write.map(|(name, write)| {
            let member: Result<Member, _> = tracepoint.member(name);
            member.map(|member| (member, write))
        });
        Ok(AccessMembers {
            place: tracepoint.member(self.place)?,
            write: write.transpose()?,
            read_kind: self.read_kind,
        })
    }
}

/// The tracepoints of accesses (`arch/x86/kvm/trace.h`, `include/trace/events/kvm.h`). A write is `KVM_PIO_OUT`, `KVM_TRACE_MMIO_WRITE`, and 1 of `kvm_msr`.
const ACCESSES: [AccessTracepoint; 5] = [
    AccessTracepoint {
        tracepoint: "kvm_pio",
        place: "port",
        write: Some(("rw", 1)),
        read_kind: AccessKind::PortRead,
    },
    AccessTracepoint {
        tracepoint: "kvm_mmio",
        place: "gpa",
        write: Some(("type", 2)),
        read_kind: AccessKind::MmioRead,
    },
    // A write by which a guest notifies a device (ioeventfd).
    AccessTracepoint {
        tracepoint: "kvm_fast_mmio",
        place: "gpa",
        write: None,
        read_kind: AccessKind::MmioWrite,
    },
    AccessTracepoint {
        tracepoint: "kvm_msr",
        place: "ecx",
        write: Some(("write", 1)),
        read_kind: AccessKind::MsrRead,
    },
    AccessTracepoint {
        tracepoint: "kvm_hypercall",
        place: "nr",
        write: None,
        read_kind: AccessKind::Hypercall,
    },
];

#[cfg(test)]
mod tests;
