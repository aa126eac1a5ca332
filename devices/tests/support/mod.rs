//! Helpers for the tests of pcs.

pub mod model;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{Format, Header, Record, Status};
use kvmprof_devices::endpoint::IoctlReply;
use kvmprof_devices::profiling::Pcs;
use kvmprof_recording::{Mode, Sample, Ticks};

/// A tick of `vcpu` that was sampled in `mode`.
pub fn tick(vcpu: u16, mode: Mode, pid: i32) -> Ticks {
    Ticks {
        vcpu,
        sample: Some(Sample {
            vcpu,
            mode,
            pid,
            tid: pid,
            process_group: pid / 10,
            pc: 0x40_0000 + u64::from(pid.unsigned_abs()),
            cpl: if mode == Mode::User { 3 } else { 0 },
            ipl: if mode == Mode::Interrupt { 15 } else { 0 },
            ..Sample::default()
        }),
        ..Ticks::default()
    }
}

/// Idle ticks of vCPU 0.
pub fn idle(ticks: u64) -> Ticks {
    Ticks {
        idle: ticks,
        ..Ticks::default()
    }
}

/// A list for `PROF_LIST`: consecutive words.
pub fn words(words: &[i32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// One buffer as a reader gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub header: Header,
    pub records: Vec<Record>,
}

/// The blocks in `bytes`, the last one perhaps incomplete.
pub fn blocks(format: Format, size: usize, bytes: &[u8]) -> Vec<Block> {
    bytes
        .chunks(size)
        .filter(|block| block.len() >= format.header_size())
        .map(|block| decode_block(format, size, block))
        .collect()
}

fn decode_block(format: Format, size: usize, block: &[u8]) -> Block {
    let header = Header::decode(format, block).unwrap();
    let used = size - usize::from(header.unused);
    assert_eq!((used - format.header_size()) % format.record_size(), 0);
    let data = &block[format.header_size()..block.len().min(used)];
    let unused = block.get(used..).unwrap_or_default();
    assert!(unused.iter().all(|byte| *byte == 0));
    let records = data
        .chunks_exact(format.record_size())
        .map(|record| Record::decode(format, record).unwrap());
    Block {
        header,
        records: records.collect(),
    }
}

/// A client with the device open.
pub struct Client {
    pub pcs: Pcs,
    pub format: Format,
    pub size: usize,
}

impl Client {
    /// Opens a device of `vcpus` vCPUs at 100 Hz.
    pub fn open(vcpus: u16) -> Self {
        let mut pcs = Pcs::new(vcpus);
        pcs.open(100).unwrap();
        Self {
            pcs,
            format: Format::Native,
            size: 1024,
        }
    }

    pub fn ioctl(&mut self, command: u32, argument: i64) -> Result<IoctlReply, Errno> {
        let reply = self.pcs.ioctl(command, argument, &[]);
        assert!(self.pcs.ledger().balances());
        reply
    }

    pub fn list(&mut self, list: &[i32]) -> Result<IoctlReply, Errno> {
        self.pcs.ioctl(kvmprof_abi::pcs::PROF_LIST, 0, &words(list))
    }

    pub fn feed(&mut self, count: usize, ticks: &Ticks) {
        for _ in 0..count {
            self.pcs.feed(ticks);
            assert!(self.pcs.ledger().balances());
        }
    }

    /// Everything that can be read at once.
    pub fn drain(&mut self) -> Vec<Block> {
        let mut bytes = Vec::new();
        while let Ok(1..) = self.pcs.read(4096, &mut bytes) {}
        blocks(self.format, self.size, &bytes)
    }

    /// Ticks: user (pids 70, 71, 80), kernel, interrupt, idle, one of each.
    pub fn feed_one_of_each(&mut self) {
        for pid in [70, 71, 80] {
            self.feed(1, &tick(0, Mode::User, pid));
        }
        self.feed(1, &tick(0, Mode::Kernel, 70));
        self.feed(1, &tick(0, Mode::Interrupt, 70));
        self.feed(1, &idle(1));
    }

    /// The records of everything that can be read at once.
    pub fn records(&mut self) -> Vec<Record> {
        let blocks = self.drain();
        blocks.into_iter().flat_map(|block| block.records).collect()
    }

    /// The records of everything up to the end of file.
    pub fn rest(&mut self) -> Vec<Record> {
        self.ioctl(kvmprof_abi::pcs::PCS_STOP, 0).unwrap();
        let records = self.records();
        assert_eq!(self.pcs.read(1, &mut Vec::new()), Ok(0));
        records
    }

    pub fn status(&mut self) -> Status {
        let reply = self.ioctl(kvmprof_abi::pcs::PCS_GETSTAT, 0).unwrap();
        Status::decode(&reply.data).unwrap()
    }
}

/// `(type, count)` of merged records, `(type, 1)` of samples.
pub fn kinds(records: &[Record]) -> Vec<(u8, u64)> {
    let kind = |record: &Record| match record {
        Record::Sample(sample) => sample.kind,
        Record::Merged(merged) => merged.kind,
    };
    let pairs = records.iter().map(|record| (kind(record), record.ticks()));
    pairs.collect()
}
