//! A plain model of the device. It handles one tick at a time, and keeps records instead of bytes.

use std::collections::VecDeque;

use kvmprof_abi::pcs::{Format, Msample, Psample, Record, kind};
use kvmprof_recording::{ConsumerLedger, Mode, Sample, Ticks};

pub const VCPUS: u16 = 3;
pub const BSIZE: usize = 1024;

/// A buffer of the model.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    pub records: Vec<Record>,
    pub lost: u64,
}

#[derive(Debug)]
pub struct Model {
    pub format: Format,
    pub kernel: bool,
    pub all: bool,
    pub group: Option<i32>,
    pub list: Vec<i32>,
    pub gathering: bool,
    pub stopped: bool,
    pub buffers: usize,
    filling: Vec<Record>,
    ready: VecDeque<Buffer>,
    read_of_first: usize,
    pub handed_over: Vec<Buffer>,
    reported_lost: u64,
    pub gathered_lost: u64,
    clock: Vec<u64>,
    counts: Vec<[u64; 4]>,
    pub ledger: ConsumerLedger,
}

impl Model {
    pub fn new(format: Format) -> Self {
        let sets = if format == Format::Native {
            VCPUS.into()
        } else {
            1
        };
        Self {
            format,
            kernel: false,
            all: false,
            group: None,
            list: Vec::new(),
            gathering: false,
            stopped: false,
            buffers: 3,
            filling: Vec::new(),
            ready: VecDeque::new(),
            read_of_first: 0,
            handed_over: Vec::new(),
            reported_lost: 0,
            gathered_lost: 0,
            clock: vec![0; sets],
            counts: vec![[0; 4]; sets],
            ledger: ConsumerLedger::default(),
        }
    }

    fn set(&self, vcpu: u16) -> usize {
        if self.format == Format::Native {
            vcpu.into()
        } else {
            0
        }
    }

    pub fn feed(&mut self, ticks: &Ticks) {
        for _ in 0..ticks.idle {
            self.tick(ticks.vcpu, |model| model.merge(ticks.vcpu, Mode::Idle));
        }
        for _ in 0..ticks.stolen {
            self.tick(ticks.vcpu, |_| ());
        }
        self.ledger.ungathered -= if self.gathering { 0 } else { ticks.stolen };
        self.ledger.stolen += ticks.stolen;
        // The clock lost them before the vCPU's next counts are due.
        self.gathered_lost += if self.gathering { ticks.lost } else { 0 };
        for _ in 0..ticks.lost {
            self.tick(ticks.vcpu, |_| ());
        }
        // Before the first PROF_* they are ungathered, since no header reports them.
        self.ledger.lost += if self.gathering { ticks.lost } else { 0 };
        if let Some(sample) = ticks.sample {
            self.tick(ticks.vcpu, |model| model.sample(&sample));
        }
    }

    fn tick(&mut self, vcpu: u16, what: impl FnOnce(&mut Self)) {
        self.ledger.ticks += 1;
        if !self.gathering {
            self.ledger.ungathered += 1;
            return;
        }
        what(self);
        let set = self.set(vcpu);
        self.clock[set] += 1;
        let period = if self.format == Format::Native {
            100
        } else {
            100 * u64::from(VCPUS)
        };
        if self.clock[set].is_multiple_of(period) {
            self.flush_set(set);
        }
    }

    fn merge(&mut self, vcpu: u16, mode: Mode) {
        let set = self.set(vcpu);
        let index = match mode {
            Mode::Idle => 0,
            Mode::Kernel => 1,
            Mode::Interrupt => 2,
            Mode::User => 3,
        };
        self.counts[set][index] += 1;
        self.ledger.pending += 1;
    }

    fn sample(&mut self, sample: &Sample) {
        let user = sample.pid != -1 && self.list.contains(&sample.pid)
            || sample.process_group != -1 && self.group == Some(sample.process_group);
        let (wanted, kind, sspace) = match sample.mode {
            Mode::Idle => (false, 0, 0),
            Mode::Kernel => (self.all || self.kernel, kind::KERNEL, sample.ipl * 16),
            Mode::Interrupt => (self.all || self.kernel, kind::KERNELI, sample.ipl * 16),
            Mode::User => (self.all || user, kind::USER, 0),
        };
        if !wanted {
            return self.merge(sample.vcpu, sample.mode);
        }
        let native = self.format == Format::Native;
        let record = Record::Sample(Psample {
            kind,
            sspace,
            cpu: if native { sample.vcpu } else { 0 },
            pid: sample.pid,
            pc: if native {
                sample.pc
            } else {
                sample.pc & 0xffff_ffff
            },
        });
        if self.put(record) {
            self.ledger.pending += 1;
        } else {
            self.ledger.lost += 1;
            self.gathered_lost += 1;
        }
    }

    fn put(&mut self, record: Record) -> bool {
        if self.filling.is_empty() && self.ready.len() >= self.buffers {
            return false;
        }
        self.filling.push(record);
        if self.filling.len()
            == (if self.format == Format::Native {
                63
            } else {
                127
            })
        {
            self.seal();
        }
        true
    }

    pub fn seal(&mut self) -> bool {
        let unreported = self.gathered_lost - self.reported_lost;
        if self.filling.is_empty() && (unreported == 0 || self.ready.len() >= self.buffers) {
            return false;
        }
        let most = if self.format == Format::Native {
            u32::MAX.into()
        } else {
            32767
        };
        let lost = unreported.min(most);
        self.reported_lost += lost;
        let records = std::mem::take(&mut self.filling);
        self.ready.push_back(Buffer { records, lost });
        true
    }

    fn flush_set(&mut self, set: usize) -> bool {
        let kinds = [kind::IDLE, kind::MKERNEL, kind::MKERNELI, kind::MUSER];
        for (index, kind) in kinds.into_iter().enumerate() {
            while self.counts[set][index] > 0 {
                let most = if self.format == Format::Native {
                    0x7fff_ffff
                } else {
                    32767
                };
                let count = self.counts[set][index].min(most);
                let record = Record::Merged(Msample {
                    kind,
                    cpu: u16::try_from(set).unwrap(),
                    count: u32::try_from(count).unwrap(),
                });
                if !self.put(record) {
                    return false;
                }
                self.counts[set][index] -= count;
            }
        }
        true
    }

    pub fn hand_over(&mut self) {
        if (0..self.counts.len()).all(|set| self.flush_set(set)) {
            while self.seal() {}
        }
    }

    /// Reads byte by byte; returns the number of bytes.
    pub fn read(&mut self, limit: usize) -> usize {
        let (header, size) = if self.format == Format::Native {
            (8, 16)
        } else {
            (4, 8)
        };
        for done in 0..limit {
            let Some(first) = self.ready.front() else {
                return done;
            };
            self.read_of_first += 1;
            let data = self.read_of_first.saturating_sub(header);
            if data > 0
                && data.is_multiple_of(size)
                && let Some(record) = first.records.get(data / size - 1)
            {
                self.ledger.pending -= record.ticks();
                match record {
                    Record::Sample(_) => self.ledger.recorded += 1,
                    Record::Merged(merged) => self.ledger.merged += u64::from(merged.count),
                }
            }
            if self.read_of_first == BSIZE {
                self.read_of_first = 0;
                self.handed_over.extend(self.ready.pop_front());
                if self.stopped {
                    self.hand_over();
                }
            }
        }
        limit
    }
}
