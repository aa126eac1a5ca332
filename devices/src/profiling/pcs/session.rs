//! One use of the device, from open to close.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{Psample, Record, kind};

use super::buffers::Buffers;
use super::merge::Merges;
use super::selection::Selection;
use kvmprof_recording::{ConsumerLedger, Sample, Ticks};

/// The state of an open device.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) vcpus: u16,
    pub(super) hz: u32,
    pub(super) selection: Selection,
    pub(super) buffers: Buffers,
    pub(super) merges: Merges,
    pub(super) ledger: ConsumerLedger,
    pub(super) stopped: bool,
}

impl Session {
    pub(super) fn new(vcpus: u16, hz: u32) -> Self {
        let buffers = Buffers::default();
        Self {
            vcpus,
            hz,
            selection: Selection::default(),
            merges: Merges::new(buffers.format(), vcpus),
            buffers,
            ledger: ConsumerLedger::default(),
            stopped: false,
        }
    }

    /// The final account.
    pub(super) fn close(self) -> ConsumerLedger {
        let mut ledger = self.ledger;
        ledger.discarded += ledger.pending;
        ledger.pending = 0;
        ledger
    }

    pub(super) fn ledger(&self) -> ConsumerLedger {
        self.ledger
    }

    pub(super) fn hz(&self) -> u32 {
        self.hz
    }

    pub(super) fn wants_ticks(&self) -> bool {
        !self.stopped
    }

    pub(super) fn is_gathering(&self) -> bool {
        !self.stopped && !self.selection.is_empty()
    }

    pub(super) fn wants_process_group(&self) -> bool {
        self.is_gathering() && self.selection.has_group()
    }

    pub(super) fn readable(&self) -> bool {
        self.buffers.has_ready() || self.at_end()
    }

    /// True if only the end of file is left to read.
    fn at_end(&self) -> bool {
        self.stopped && self.merges.is_empty() && self.buffers.is_drained()
    }

    pub(super) fn feed(&mut self, ticks: &Ticks) {
        if self.stopped {
            return;
        }
        self.ledger.ticks += ticks.total();
        self.ledger.stolen += ticks.stolen;
        if !self.is_gathering() {
            // Lost ticks too: no header reports them before the first `PROF_*`.
            let sampled = u64::from(ticks.sample.is_some());
            self.ledger.ungathered += ticks.idle + ticks.lost + sampled;
            return;
        }
        self.ledger.lost += ticks.lost;
        self.ledger.pending += ticks.idle;
        self.merges.idle(ticks.vcpu, ticks.idle, &mut self.buffers);
        self.merges
            .pass(ticks.vcpu, ticks.stolen, &mut self.buffers);
        self.buffers.lose(ticks.lost);
        self.merges.pass(ticks.vcpu, ticks.lost, &mut self.buffers);
        if let Some(sample) = &ticks.sample {
            self.take(ticks.vcpu, sample);
            self.merges.pass(ticks.vcpu, 1, &mut self.buffers);
        }
    }

    /// Records, merges or loses one sample.
    fn take(&mut self, vcpu: u16, sample: &Sample) {
        let Some(kind) = self.selection.record_kind(sample) else {
            self.merges.count(vcpu, sample.mode);
            self.ledger.pending += 1;
            return;
        };
        let record = Record::Sample(Psample {
            kind,
            sspace: if kind == kind::USER {
                0
            } else {
                sample.ipl << 4
            },
            cpu: vcpu,
            pid: sample.pid,
            pc: sample.pc,
        });
        if self.buffers.put(&record) {
            self.ledger.pending += 1;
        } else {
            self.buffers.lose(1);
            self.ledger.lost += 1;
        }
    }

    pub(super) fn read(&mut self, limit: usize, out: &mut Vec<u8>) -> Result<usize, Errno> {
        let mut total = 0;
        while total < limit {
            let delivery = self.buffers.read_first(limit - total, out);
            if delivery.bytes == 0 {
                break;
            }
            total += delivery.bytes;
            self.ledger.recorded += delivery.recorded;
            self.ledger.merged += delivery.merged;
            self.ledger.pending -= delivery.recorded + delivery.merged;
            if self.stopped {
                self.hand_over();
            }
        }
        if total == 0 && limit > 0 && !self.at_end() {
            return Err(Errno::EAGAIN);
        }
        Ok(total)
    }

    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.hand_over();
    }

    /// After a stop, makes ready what is left, as far as there are free buffers.
    fn hand_over(&mut self) {
        if self.merges.flush(&mut self.buffers) {
            while self.buffers.seal() {}
        }
    }
}
