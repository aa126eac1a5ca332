//! The ring of a perf event (`struct perf_event_mmap_page`, `include/uapi/linux/perf_event.h`).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use kvmprof_attach::Mapping;
use kvmprof_attach::sampling::{HostRecord, Record};
use kvmprof_introspection::bytes::{array_at, u32_at, u64_at};

const PAGE: usize = 4096;
/// Size of a ring in bytes, without its first page: a power of 2. It is half of the memory that a user may lock for each processor without
/// a privilege (kernel.perf_event_mlock_kb), and holds 0.05 s of samples at 10 kHz.
pub const RING_BYTES: usize = 32 * PAGE;
/// Size of a ring for records with stacks, of up to 8 KiB each.
pub const LARGE_RING_BYTES: usize = 256 * PAGE;
/// Size of a ring for records with stacks, each of which follows a record of the host's stack of up to 13 KiB.
pub const LARGEST_RING_BYTES: usize = 1024 * PAGE;
/// Maximum size of all rings of this process together, in bytes, beyond which further rings are small. Their memory can't be swapped out,
/// and a VMM makes as many vCPUs as it likes.
pub const MAX_RINGS_BYTES: usize = 256 << 20;
/// Offsets of fields in the first page.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
/// Types of records.
const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;
/// Size of a record's header in bytes.
const HEADER_BYTES: usize = 8;
/// Size in bytes of what comes before the program's data in a sample: the header, an address and a length.
const SAMPLE_BYTES: usize = HEADER_BYTES + 8 + 4;
/// The bits of a record's `misc` for the mode of the processor, and two of their values.
const CPU_MODE: u16 = 7;
const GUEST_KERNEL: u16 = 4;
const GUEST_USER: u16 = 5;

/// What the clock's tick interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// The guest's kernel, at this address.
    GuestKernel(u64),
    /// A guest's program, at this address.
    GuestUser(u64),
    /// The host, on behalf of the guest or not.
    Host,
}

/// An entry of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A sample.
    Sample(Interrupted, Record<'a>),
    /// The host's stack at the tick whose sample follows.
    Host(HostRecord<'a>),
    /// The number of samples that have found no room in the ring.
    Lost(u64),
    /// A sample that can't be read.
    Unreadable,
}

/// The size of all rings of this process together, in bytes.
static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Whether another large ring of `bytes` bytes is allowed.
pub fn has_room(bytes: usize) -> bool {
    MAPPED_BYTES.load(Ordering::Relaxed).saturating_add(bytes) <= MAX_RINGS_BYTES
}

/// The ring of one event.
#[derive(Debug)]
pub struct PerfRing {
    memory: Mapping,
    /// Size of the ring, without its first page.
    bytes: usize,
    /// The buffer for a copy of one record.
    record: Vec<u8>,
}

impl PerfRing {
    /// Maps the ring of `event`, of [`RING_BYTES`], [`LARGE_RING_BYTES`] or [`LARGEST_RING_BYTES`].
    ///
    /// # Errors
    /// As of mmap(2): EPERM beyond kernel.perf_event_mlock_kb.
    pub fn map(event: &File, bytes: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let memory = Mapping::shared(Some(event.as_fd()), PAGE + bytes, access)?;
        MAPPED_BYTES.fetch_add(bytes, Ordering::Relaxed);
        Ok(Self {
            memory,
            bytes,
            // No record is longer.
            record: vec![0; usize::from(u16::MAX)],
        })
    }

    /// Size of the ring in bytes, without its first page.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Calls `each` with every entry that the ring has now, and removes the entries.
    pub fn drain(&mut self, mut each: impl FnMut(Entry<'_>)) {
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        while head.wrapping_sub(tail) >= HEADER_BYTES as u64 {
            let mut header = [0; HEADER_BYTES];
            self.copy(tail, &mut header);
            let length = u16::from_le_bytes(array_at(&header, 6).unwrap_or_default());
            if usize::from(length) < HEADER_BYTES || head.wrapping_sub(tail) < length.into() {
                // Nothing after a record without a valid length can be read.
                tail = head;
                break;
            }
            let mut record = std::mem::take(&mut self.record);
            if let Some(whole) = record.get_mut(..length.into()) {
                self.copy(tail, whole);
                if let Some(entry) = parse(whole) {
                    each(entry);
                }
            }
            self.record = record;
            tail = tail.wrapping_add(length.into());
        }
        self.position(DATA_TAIL).store(tail, Ordering::Release);
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: both offsets are within the first page, aligned to 8 bytes, and mapped as long as `self` lives; the kernel
        // accesses them atomically.
        unsafe { AtomicU64::from_ptr(self.memory.start().add(offset).cast()) }
    }

    /// Copies the ring's content from position `from` on, wrapping at the ring's end. The buffer isn't longer than the ring.
    fn copy(&self, from: u64, buffer: &mut [u8]) {
        let start = usize::try_from(from % self.bytes as u64).unwrap_or_default();
        let first = buffer.len().min(self.bytes - start);
        let (before, behind) = buffer.split_at_mut(first);
        // SAFETY: both parts are within the mapped ring; the kernel doesn't write to what lies between tail and head, which
        // the caller has checked.
        unsafe {
            let data = self.memory.start().add(PAGE);
            std::ptr::copy_nonoverlapping(data.add(start), before.as_mut_ptr(), before.len());
            std::ptr::copy_nonoverlapping(data, behind.as_mut_ptr(), behind.len());
        }
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        MAPPED_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Parses a record. `None` for types that are ignored.
fn parse(bytes: &[u8]) -> Option<Entry<'_>> {
    match u32_at(bytes, 0)? {
        RECORD_LOST => Some(Entry::Lost(u64_at(bytes, HEADER_BYTES + 8)?)),
        RECORD_SAMPLE => Some(sample(bytes).unwrap_or(Entry::Unreadable)),
        _ => None,
    }
}

fn sample(bytes: &[u8]) -> Option<Entry<'_>> {
    let misc = u16::from_le_bytes(array_at(bytes, 4)?);
    let address = u64_at(bytes, HEADER_BYTES)?;
    let written = bytes.get(SAMPLE_BYTES..)?;
    if let Some(host) = HostRecord::parse(written) {
        return Some(Entry::Host(host));
    }
    let record = Record::parse(written)?;
    let interrupted = match misc & CPU_MODE {
        GUEST_KERNEL => Interrupted::GuestKernel(address),
        GUEST_USER => Interrupted::GuestUser(address),
        _ => Interrupted::Host,
    };
    Some(Entry::Sample(interrupted, record))
}

#[cfg(test)]
mod tests {
    use kvmprof_attach::sampling::RECORD_BYTES;

    use super::*;

    fn record(kind: u32, misc: u16, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(HEADER_BYTES + rest.len()).unwrap();
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend_from_slice(&misc.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(rest);
        bytes
    }

    #[test]
    fn records_have_the_interrupted_mode_and_losses() {
        let mut rest = 0x1234_u64.to_le_bytes().to_vec();
        rest.extend_from_slice(&[0; 4 + RECORD_BYTES]);
        let interrupted = |misc| match parse(&record(RECORD_SAMPLE, misc, &rest)) {
            Some(Entry::Sample(interrupted, _)) => interrupted,
            other => panic!("{other:?}"),
        };
        assert_eq!(interrupted(5 | 1 << 14), Interrupted::GuestUser(0x1234));
        assert_eq!(interrupted(4), Interrupted::GuestKernel(0x1234));
        assert_eq!(interrupted(1), Interrupted::Host);
        let short = record(RECORD_SAMPLE, 5, &rest[..100]);
        assert_eq!(parse(&short), Some(Entry::Unreadable));
        let lost = [7_u64.to_le_bytes(), 5_u64.to_le_bytes()].concat();
        assert_eq!(parse(&record(RECORD_LOST, 0, &lost)), Some(Entry::Lost(5)));
        assert_eq!(parse(&record(5, 0, &lost)), None);
        assert_eq!(parse(&[]), None);
    }
}
