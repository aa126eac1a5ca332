//! A stream of samples, decoded.

use std::collections::BTreeMap;

use kvmprof_abi::pcs::{Format, Msample, Psample, Record};
use kvmprof_abi::stream::{Isample, Pstat, StreamRecord};

pub use kvmprof_abi::pcs::kind as pcs_kind;

use crate::share;

/// Prints the share of a recording's ticks that have no sample although the guest ran, or may have run. On a busy host it is large.
pub fn print_losses(name: &str, ticks: u64, stolen: u64, lost: u64) {
    let percent = |part| 100.0 * share(part, ticks);
    println!(
        "{name}: {ticks} ticks, {:.1} % lost, {:.1} % stolen",
        percent(lost),
        percent(stolen)
    );
}

/// A complete native stream of getpc.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// The ioctls that set the device up.
    pub calls: Vec<Isample>,
    /// The samples, in the order in which they came.
    pub samples: Vec<Psample>,
    /// Counts of ticks without a sample.
    pub merged: Vec<Msample>,
    /// The names of processes.
    pub names: BTreeMap<i32, String>,
    /// The run's accounts.
    pub pstat: Pstat,
}

impl Stream {
    /// Decodes a stream.
    ///
    /// # Panics
    /// If it isn't complete, from START to the accounts after STOP.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut stream = Self::default();
        let (mut started, mut stopped, mut accounted) = (false, false, false);
        let mut rest = bytes;
        while !rest.is_empty() {
            let (record, size) = StreamRecord::decode(Format::Native, rest)
                .unwrap_or_else(|error| panic!("{error}, {} bytes before the end", rest.len()));
            rest = &rest[size..];
            match record {
                StreamRecord::Start(_) => started = true,
                StreamRecord::Ioctl(call) => stream.calls.push(call),
                StreamRecord::Device(Record::Sample(sample)) => stream.samples.push(sample),
                StreamRecord::Device(Record::Merged(merged)) => stream.merged.push(merged),
                StreamRecord::Stop(_) => stopped = true,
                StreamRecord::Pstat(pstat) => {
                    stream.pstat = pstat;
                    accounted = true;
                }
                StreamRecord::Comm(comm) => {
                    let name: Vec<u8> = comm
                        .comm
                        .into_iter()
                        .take_while(|byte| *byte != 0)
                        .collect();
                    let name = String::from_utf8_lossy(&name).into_owned();
                    stream.names.insert(comm.pid, name);
                }
            }
        }
        assert!(started && stopped && accounted, "the stream isn't complete");
        stream
    }

    /// The samples of this kind.
    pub fn of_kind(&self, kind: u8) -> impl Iterator<Item = &Psample> {
        self.samples
            .iter()
            .filter(move |sample| sample.kind == kind)
    }

    /// The samples of the kernel, in interrupts or not.
    pub fn kernel(&self) -> impl Iterator<Item = &Psample> {
        self.samples
            .iter()
            .filter(|sample| sample.kind != pcs_kind::USER)
    }

    /// The ticks of this kind, in samples and counts, of vCPU `cpu` or of all.
    pub fn ticks(&self, kind: u8, cpu: Option<u16>) -> u64 {
        let of_cpu = |this: u16| cpu.is_none_or(|cpu| cpu == this);
        let samples = self
            .of_kind(kind)
            .filter(|sample| of_cpu(sample.cpu))
            .count();
        let merged: u64 = self
            .merged
            .iter()
            .filter(|merged| merged.kind == kind && of_cpu(merged.cpu))
            .map(|merged| u64::from(merged.count))
            .sum();
        merged + samples as u64
    }

    /// Checks that every tick is counted as the accounts say.
    ///
    /// # Panics
    /// If a tick is missing.
    pub fn check_accounts(&self) {
        let ledger = self.pstat.status.ledger;
        print_losses("stream", ledger.ticks, ledger.stolen, ledger.lost);
        assert_eq!(ledger.recorded, self.samples.len() as u64, "{ledger:?}");
        let merged: u64 = self
            .merged
            .iter()
            .map(|merged| u64::from(merged.count))
            .sum();
        assert_eq!(ledger.merged, merged, "{ledger:?}");
        assert_eq!((ledger.pending, ledger.discarded), (0, 0), "{ledger:?}");
        let sum = ledger.recorded + ledger.merged + ledger.ungathered + ledger.stolen + ledger.lost;
        assert_eq!(ledger.ticks, sum, "{ledger:?}");
    }
}
