//! Sums up the contents of a stream.

use std::collections::HashMap;

use kvmprof_abi::pcs::{Format, Psample, Record, kind};
use kvmprof_abi::stream::{Isample, Pstat, StreamRecord};
use kvmprof_abi::text::task_name;
use kvmprof_recording::Mode;

/// A program counter with its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramCounter {
    /// The vCPU's mode.
    pub mode: Mode,
    /// The process; `None` in the kernel, which all processes share.
    pub pid: Option<i32>,
    /// The program counter.
    pub pc: u64,
}

/// Ticks by the types of their records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: [u64; TYPES.len()],
}

/// The types of records of ticks, in the order of the report, with their names.
pub(super) const TYPES: [(u8, &str); 7] = [
    (kind::USER, "USER"),
    (kind::KERNEL, "KERNEL"),
    (kind::KERNELI, "KERNELI"),
    (kind::MUSER, "MUSER"),
    (kind::MKERNEL, "MKERNEL"),
    (kind::MKERNELI, "MKERNELI"),
    (kind::IDLE, "IDLE"),
];

impl Tally {
    /// Ticks in records of type `kind`; 0 for other types.
    pub fn count(&self, kind: u8) -> u64 {
        let pairs = TYPES.iter().zip(self.counts);
        let found = pairs.into_iter().find(|((number, _), _)| *number == kind);
        found.map_or(0, |(_, count)| count)
    }

    /// Ticks in records of all types.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Ticks with a record of their own.
    pub fn samples(&self) -> u64 {
        [kind::USER, kind::KERNEL, kind::KERNELI]
            .map(|kind| self.count(kind))
            .iter()
            .sum()
    }

    fn add(&mut self, kind: u8, ticks: u64) {
        for ((number, _), count) in TYPES.iter().zip(&mut self.counts) {
            if *number == kind {
                *count += ticks;
            }
        }
    }
}

/// The samples of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessHits {
    /// In user mode.
    pub user: u64,
    /// In the kernel on its behalf.
    pub kernel: u64,
    /// In interrupts while it was current.
    pub interrupt: u64,
}

impl ProcessHits {
    /// In all modes.
    pub fn total(&self) -> u64 {
        self.user + self.kernel + self.interrupt
    }
}

/// The contents of a stream.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The form of its records.
    pub format: Format,
    /// When the run started, in seconds since 1970.
    pub start: Option<i64>,
    /// When it stopped, in seconds since 1970.
    pub stop: Option<i64>,
    /// The ioctls that set the device up.
    pub calls: Vec<Isample>,
    /// Ticks by type.
    pub tally: Tally,
    /// Samples by process.
    pub processes: HashMap<i32, ProcessHits>,
    /// Samples by program counter.
    pub program_counters: HashMap<ProgramCounter, u64>,
    /// The names of processes.
    pub names: HashMap<i32, String>,
    /// The account of the run. Classic streams have none.
    pub pstat: Option<Pstat>,
    /// Problems of the stream, in words.
    pub problems: Vec<String>,
}

impl Profile {
    /// Adds a record.
    pub(super) fn add(&mut self, record: &StreamRecord) {
        match record {
            StreamRecord::Start(time) => self.start = Some(*time),
            StreamRecord::Stop(time) => self.stop = Some(*time),
            StreamRecord::Ioctl(call) => self.calls.push(*call),
            StreamRecord::Device(Record::Sample(sample)) => self.add_sample(sample),
            StreamRecord::Device(Record::Merged(merged)) => {
                self.tally.add(merged.kind, merged.count.into());
            }
            StreamRecord::Pstat(pstat) => self.pstat = Some(*pstat),
            StreamRecord::Comm(comm) => {
                self.names.insert(comm.pid, task_name(&comm.comm).collect());
            }
        }
    }

    fn add_sample(&mut self, sample: &Psample) {
        self.tally.add(sample.kind, 1);
        let process = self.processes.entry(sample.pid).or_default();
        let (mode, hits) = match sample.kind {
            kind::USER => (Mode::User, &mut process.user),
            kind::KERNELI => (Mode::Interrupt, &mut process.interrupt),
            _ => (Mode::Kernel, &mut process.kernel),
        };
        *hits += 1;
        let counter = ProgramCounter {
            mode,
            pid: (mode == Mode::User).then_some(sample.pid),
            pc: sample.pc,
        };
        *self.program_counters.entry(counter).or_default() += 1;
    }

    /// The run's duration in seconds: exact if the stream has its account, else in whole seconds.
    pub fn span(&self) -> Option<f64> {
        match (&self.pstat, self.start, self.stop) {
            (Some(pstat), _, _) => Some(std::time::Duration::from_nanos(pstat.span).as_secs_f64()),
            (None, Some(start), Some(stop)) => {
                u32::try_from(stop.checked_sub(start)?).ok().map(f64::from)
            }
            _ => None,
        }
    }

    /// The actual rate in ticks per second and vCPU; `None` if the stream lacks the numbers.
    pub fn real_rate(&self) -> Option<f64> {
        let pstat = self.pstat.as_ref()?;
        let seconds = self.span().filter(|seconds| *seconds > 0.0)?;
        let vcpus = Some(pstat.status.vcpus).filter(|vcpus| *vcpus > 0)?;
        Some(to_f64(pstat.status.ledger.ticks) / seconds / f64::from(vcpus))
    }

    /// Processes by descending hits, then by pid.
    pub fn ranked_processes(&self) -> Vec<(i32, ProcessHits)> {
        let mut ranked: Vec<_> = self
            .processes
            .iter()
            .map(|(pid, hits)| (*pid, *hits))
            .collect();
        ranked.sort_by_key(|(pid, hits)| (std::cmp::Reverse(hits.total()), *pid));
        ranked
    }

    /// The first `top` program counters by descending hits, then in order.
    pub fn ranked_program_counters(&self, top: usize) -> Vec<(ProgramCounter, u64)> {
        let mut ranked: Vec<_> = self
            .program_counters
            .iter()
            .map(|(counter, hits)| (*counter, *hits))
            .collect();
        ranked.sort_by_key(|(counter, hits)| (std::cmp::Reverse(*hits), *counter));
        ranked.truncate(top);
        ranked
    }

    /// The name of a process, if the stream has it.
    pub fn name(&self, pid: i32) -> Option<&str> {
        self.names.get(&pid).map(String::as_str)
    }
}

/// `count` as a floating-point number.
#[expect(
    clippy::cast_precision_loss,
    reason = "Shares and rates need no more than 53 bits"
)]
pub(super) fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use kvmprof_abi::pcs::{Ledger, Status};

    use super::*;

    #[test]
    fn the_rate_is_per_vcpu() {
        let mut profile = Profile::default();
        assert_eq!(profile.real_rate(), None);
        profile.pstat = Some(Pstat {
            status: Status {
                ledger: Ledger {
                    ticks: 500,
                    ..Ledger::default()
                },
                vcpus: 2,
                ..Status::default()
            },
            span: 2_500_000_000,
        });
        assert_eq!(profile.real_rate(), Some(100.0));
        profile.pstat = Some(Pstat::default());
        assert_eq!(profile.real_rate(), None);
    }
}
