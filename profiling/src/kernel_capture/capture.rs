//! The events of one vCPU's thread: the clock, and the ring to which the clock's program writes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use kvmprof_attach::Slots;
use kvmprof_attach::sampling::{MAX_SAMPLE_BYTES, RECORD_BYTES, SamplingHost, SamplingProgram};
use kvmprof_introspection::{GuestKnowledge, ProcessPlaces};
use kvmprof_recording::StackParts;

use super::error::KernelCaptureError;
use super::ring::{Entry, LARGE_RING_BYTES, LARGEST_RING_BYTES, PerfRing, RING_BYTES, has_room};
use crate::perf_event::Event;

const IOC_ENABLE: libc::Ioctl = 0x2400;
const IOC_SET_BPF: libc::Ioctl = 0x4004_2408;

/// A vCPU's thread.
#[derive(Clone, Copy, Debug)]
pub struct VcpuThreadId {
    /// The vCPU's descriptor in its VMM.
    pub descriptor: i32,
    /// The thread; 0 is the calling one.
    pub tid: i32,
}

/// The contents of samples.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// The places of the values that say which process runs; `None` if samples have no such values.
    pub places: Option<&'a ProcessPlaces>,
    /// The parts of the stack.
    pub stacks: StackParts,
}

/// Samples of a thread, which the host's kernel takes until this is dropped.
#[derive(Debug)]
pub struct Capture {
    // The order of the fields matters: the clock has to be closed before the ring to which it writes.
    _clock: File,
    _program: SamplingProgram,
    ring: PerfRing,
    _output: File,
    /// Minimum number of samples that fit in the ring.
    room: u64,
}

impl Capture {
    /// Starts samples of `thread` with these `contents`, one for each `period` ns that the thread runs. `slots` are the memory slots of the
    /// guest.
    ///
    /// # Errors
    /// The host's kernel refuses the program or an event.
    pub fn start(
        host: &SamplingHost,
        slots: &Slots,
        thread: VcpuThreadId,
        contents: Contents<'_>,
        period: u64,
    ) -> Result<Self, KernelCaptureError> {
        let output = open_output(thread.tid).map_err(KernelCaptureError::Event)?;
        let ring = map_ring(&output, host.max_record_bytes(contents.stacks));
        let ring = ring.map_err(KernelCaptureError::Ring)?;
        let Contents { places, stacks } = contents;
        let program = host.program(slots, thread.descriptor, places, stacks, output.as_fd())?;
        let clock = start_clock(thread.tid, period, &program).map_err(KernelCaptureError::Event)?;
        Ok(Self {
            _clock: clock,
            _program: program,
            room: (ring.bytes() / host.max_record_bytes(stacks)) as u64,
            ring,
            _output: output,
        })
    }

    /// Returns the minimum number of samples that fit in the ring.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Calls `each` with every entry that the ring has now, and removes the entries.
    pub fn drain(&mut self, each: impl FnMut(Entry<'_>)) {
        self.ring.drain(each);
    }
}

/// Checks that the host's kernel takes samples of these vCPUs in a guest of which `knowledge` is known, so that an error comes now and not
/// at the first tick. Each vCPU is given by its descriptor and its thread.
///
/// # Errors
/// The host's kernel refuses samples.
pub fn check(
    host: &SamplingHost,
    slots: &Slots,
    vcpus: &[(i32, i32)],
    knowledge: &GuestKnowledge,
) -> Result<(), KernelCaptureError> {
    // An unknown guest may turn out to be Linux later, but never another system.
    if !host.knows_privilege() && !knowledge.may_be_linux() {
        return Err(KernelCaptureError::NoPrivilege);
    }
    for (descriptor, tid) in vcpus.iter().copied() {
        let thread = VcpuThreadId { descriptor, tid };
        let nothing = Contents {
            places: None,
            stacks: StackParts::default(),
        };
        Capture::start(host, slots, thread, nothing, 1_000_000_000)?;
    }
    Ok(())
}

/// Maps a ring for records of at most `record_bytes` bytes. A large ring can take more memory than a user may lock, or than is left for
/// each vCPU of a guest with very many. A small ring is mapped then.
fn map_ring(output: &File, record_bytes: usize) -> io::Result<PerfRing> {
    let larger: &[usize] = if record_bytes <= RECORD_BYTES {
        &[]
    } else if record_bytes <= MAX_SAMPLE_BYTES {
        &[LARGE_RING_BYTES]
    } else {
        &[LARGEST_RING_BYTES, LARGE_RING_BYTES]
    };
    let mut larger = larger.iter().filter(|bytes| has_room(**bytes));
    let mapped = larger.find_map(|bytes| PerfRing::map(output, *bytes).ok());
    mapped.map_or_else(|| PerfRing::map(output, RING_BYTES), Ok)
}

fn open_output(tid: i32) -> io::Result<File> {
    Event::BpfOutput.open(1, tid)
}

fn start_clock(tid: i32, period: u64, program: &SamplingProgram) -> io::Result<File> {
    let clock = Event::CpuClock.open(period, tid)?;
    let program = program.as_fd().as_raw_fd();
    for (request, argument) in [(IOC_SET_BPF, program), (IOC_ENABLE, 0)] {
        // SAFETY: both requests take a number, on a descriptor of ours.
        if unsafe { libc::ioctl(clock.as_raw_fd(), request, argument) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(clock)
}

#[cfg(test)]
mod tests {
    use super::super::ring::MAX_RINGS_BYTES;
    use super::*;

    #[test]
    fn large_rings_have_a_limit_together() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let output = open_output(tid).unwrap();
        assert!(has_room(MAX_RINGS_BYTES) && !has_room(MAX_RINGS_BYTES + 1));
        let ring = map_ring(&output, MAX_SAMPLE_BYTES).unwrap();
        let left = MAX_RINGS_BYTES - ring.bytes();
        assert!(has_room(left) && !has_room(left + 1));
        drop(ring);
        assert!(has_room(MAX_RINGS_BYTES));
    }
}
