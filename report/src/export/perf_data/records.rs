//! The records: names of threads, mappings, and samples (`perf_event_open(2)`).

use std::io::{self, Write};

use super::{Chain, Event, EventThread, PerfFile};
use crate::budget::OutputBudget;

/// `PERF_SAMPLE_IP | TID | TIME | CALLCHAIN | CPU | PERIOD`.
pub const SAMPLE_TYPE: u64 = 1 | 2 | 4 | 0x20 | 0x80 | 0x100;
/// Bits of `perf_event_attr`: mmap, comm, sample_id_all, exclude_guest (or perf would call the event cpu-clock:HG),
/// use_clockid.
pub const FLAGS: u64 = 1 << 8 | 1 << 9 | 1 << 18 | 1 << 20 | 1 << 25;

/// `PERF_RECORD_*`.
mod kind {
    pub const MMAP: u32 = 1;
    pub const COMM: u32 = 3;
    pub const SAMPLE: u32 = 9;
    /// A record of perf's own: events before the last such record can be sorted now.
    pub const FINISHED_ROUND: u32 = 68;
}

/// `PERF_RECORD_MISC_KERNEL`.
const KERNEL: u16 = 1;
/// `PERF_RECORD_MISC_USER`.
const USER: u16 = 2;
/// Maximum length of a build id in bytes (`BUILD_ID_SIZE`), and the bit that says that the record has its length.
pub const BUILD_ID_LENGTH: usize = 20;
const BUILD_ID_HAS_LENGTH: u16 = 1 << 15;
/// Maximum length of a name with its NUL, in bytes (`TASK_COMM_LEN`).
const COMM_LENGTH: usize = 16;
/// perf's name for a kernel that runs on its own, followed by the name of a symbol.
const KERNEL_NAME: &str = "[kernel.kallsyms]";
/// The length of mappings: all addresses but the context markers.
const MAPPED: u64 = 0xffff_ffff_ffff_0000;

/// The marker before kernel addresses (`PERF_CONTEXT_KERNEL`) or user addresses (`PERF_CONTEXT_USER`).
pub fn context(is_kernel: bool) -> u64 {
    if is_kernel {
        0_u64.wrapping_sub(128)
    } else {
        0_u64.wrapping_sub(512)
    }
}

/// A mapping of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileRange {
    pub begin: u64,
    pub length: u64,
    /// The offset in the file of the byte at `begin`.
    pub page_offset: u64,
}

/// Records that haven't been written yet.
#[derive(Debug, Default)]
pub struct Records {
    pub bytes: Vec<u8>,
}

impl Records {
    /// Writes all records to `file`, if they fit into `budget`.
    pub fn hand_over(&mut self, budget: &OutputBudget, file: &mut PerfFile) -> io::Result<()> {
        budget.take(self.bytes.len())?;
        file.write_all(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    /// Maps the kernel at all addresses. perf compares `anchor`, a symbol and its address, with kallsyms to see whether
    /// the kernel has moved.
    pub fn kernel_mapping(&mut self, anchor: (&str, u64)) {
        let (symbol, address) = anchor;
        let name = format!("{KERNEL_NAME}{symbol}");
        let range = FileRange {
            begin: 0,
            length: MAPPED,
            page_offset: address,
        };
        self.mapping(KERNEL, -1, 0, 0, range, name.as_bytes());
    }

    /// Maps the file at `path` at all addresses of the process of `thread`, from `time` on.
    pub fn user_mapping(&mut self, thread: &EventThread, time: u64, path: &[u8]) {
        let range = FileRange {
            begin: 0,
            length: MAPPED,
            page_offset: 0,
        };
        self.file_mapping(thread, time, range, path);
    }

    /// Maps the file at `path` at `range` in the process of `thread`, from `time` on.
    pub fn file_mapping(&mut self, thread: &EventThread, time: u64, range: FileRange, path: &[u8]) {
        self.mapping(USER, thread.pid, thread.pid, time, range, path);
    }

    fn mapping(&mut self, misc: u16, pid: i32, tid: i32, time: u64, range: FileRange, name: &[u8]) {
        self.record(kind::MMAP, misc, |bytes| {
            ids(bytes, pid, tid);
            for number in [range.begin, range.length, range.page_offset] {
                push(bytes, number);
            }
            text(bytes, name);
            sample_id(bytes, pid, tid, time, 0);
        });
    }

    /// Names `of`, the thread of `event`, from then on.
    pub fn comm(&mut self, of: &EventThread, event: &Event) {
        self.record(kind::COMM, 0, |bytes| {
            ids(bytes, of.pid, of.tid);
            let name = of.comm.as_bytes();
            text(bytes, &name[..name.len().min(COMM_LENGTH - 1)]);
            sample_id(bytes, of.pid, of.tid, event.time, event.vcpu.into());
        });
    }

    /// Adds a sample of `event` of a `thread` with a period of `period`, in ns or events.
    pub fn sample(&mut self, thread: &EventThread, event: &Event, period: u64, chain: &Chain) {
        let misc = if chain.starts_in_kernel { KERNEL } else { USER };
        self.record(kind::SAMPLE, misc, |bytes| {
            push(bytes, chain.first);
            ids(bytes, thread.pid, thread.tid);
            push(bytes, event.time);
            push(bytes, event.vcpu.into());
            push(bytes, period);
            push(bytes, chain.entries.len() as u64);
            for entry in &chain.entries {
                push(bytes, *entry);
            }
        });
    }

    /// Adds the build id of the file at `path`, or of the kernel (`struct perf_record_header_build_id`).
    pub fn build_id(&mut self, path: Option<&[u8]>, id: &[u8]) {
        let (misc, name) = match path {
            Some(path) => (USER, path),
            None => (KERNEL, KERNEL_NAME.as_bytes()),
        };
        let length = id.len().min(BUILD_ID_LENGTH);
        self.record(0, misc | BUILD_ID_HAS_LENGTH, |bytes| {
            bytes.extend((-1_i32).to_le_bytes());
            bytes.extend(&id[..length]);
            bytes.resize(bytes.len() + BUILD_ID_LENGTH - length, 0);
            bytes.extend([u8::try_from(length).unwrap_or_default(), 0, 0, 0]);
            text(bytes, name);
        });
    }

    /// Ends a round.
    pub fn round(&mut self) {
        self.record(kind::FINISHED_ROUND, 0, |_| {});
    }

    fn record(&mut self, kind: u32, misc: u16, body: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.bytes.len();
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(misc.to_le_bytes());
        self.bytes.extend([0; 2]);
        body(&mut self.bytes);
        // Paths and stacks are limited to much less.
        let length = u16::try_from(self.bytes.len() - begin).unwrap_or(u16::MAX);
        self.bytes[begin + 6..begin + 8].copy_from_slice(&length.to_le_bytes());
    }
}

fn push(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(number.to_le_bytes());
}

fn ids(bytes: &mut Vec<u8>, pid: i32, tid: i32) {
    bytes.extend(pid.to_le_bytes());
    bytes.extend(tid.to_le_bytes());
}

/// Appends text with a NUL, padded to a multiple of 8 bytes.
fn text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend(text);
    bytes.extend(std::iter::repeat_n(0, 8 - text.len() % 8));
}

/// Appends the fields that `sample_id_all` adds to all records except samples.
fn sample_id(bytes: &mut Vec<u8>, pid: i32, tid: i32, time: u64, cpu: u64) {
    ids(bytes, pid, tid);
    push(bytes, time);
    push(bytes, cpu);
}
