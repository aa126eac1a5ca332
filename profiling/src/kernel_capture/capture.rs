//! The events of one vCPU's thread: the clock, the exits or the faults of guest memory, and the ring to which their program writes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use kvmprof_attach::Slots;
use kvmprof_attach::sampling::{MAX_SAMPLE_BYTES, Occasion, Probe, RECORD_BYTES, SamplingHost};
use kvmprof_introspection::{GuestKnowledge, ProcessPlaces};
use kvmprof_recording::StackParts;
use vmm_sys_util::syscall::SyscallReturnCode;

use super::error::KernelCaptureError;
use super::opener::CaptureOpener;
use super::ring::{Entry, LARGE_RING_BYTES, LARGEST_RING_BYTES, PerfRing, RING_BYTES, has_room};
use crate::perf_event::{self, Event};

const IOC_ENABLE: libc::Ioctl = 0x2400;

/// A vCPU's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuThreadId {
    /// The vCPU's descriptor in its VMM.
    pub descriptor: i32,
    /// The thread; 0 is the calling one.
    pub tid: i32,
}

/// What passes between two samples of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// So many ns for which its thread runs.
    RunTime(u64),
    /// So many exits to KVM.
    Exits(u64),
    /// So many faults of guest memory.
    Faults(u64),
}

impl Period {
    /// What the sample is taken at.
    fn occasion(self) -> Occasion {
        match self {
            Self::RunTime(_) => Occasion::Event,
            Self::Exits(exits) => Occasion::Exits(exits),
            Self::Faults(faults) => Occasion::Faults(faults),
        }
    }
}

/// The contents of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents<'a> {
    /// The places of the values that say which process runs; `None` if samples have no such values.
    pub places: Option<&'a ProcessPlaces>,
    /// The parts of the stack.
    pub stacks: StackParts,
}

/// Samples of a thread, which the host's kernel takes until this is dropped.
#[derive(Debug)]
pub struct Capture {
    // The order of the fields matters: the event has to be closed before the ring to which its program writes.
    event: File,
    _program: Vec<OwnedFd>,
    ring: PerfRing,
    output: File,
    losses: Losses,
    /// Minimum number of samples that fit in the ring.
    room: u64,
}

/// The open files of a capture, whose clock doesn't run yet.
#[derive(Debug)]
pub(super) struct CaptureFiles {
    /// What runs the program.
    pub event: File,
    pub output: File,
    /// The program and its maps, and the events of others that it needs.
    pub program: Vec<OwnedFd>,
}

impl CaptureFiles {
    /// Opens the files with the rights of this thread. The arguments are those of [`Capture::start`].
    pub fn open(
        host: &SamplingHost,
        slots: &Slots,
        thread: VcpuThreadId,
        contents: Contents<'_>,
        period: Period,
    ) -> Result<Self, KernelCaptureError> {
        let output = Event::BpfOutput.open(1, thread.tid);
        let output = output.map_err(KernelCaptureError::Event)?;
        let Contents { places, stacks } = contents;
        let (descriptor, occasion) = (thread.descriptor, period.occasion());
        let program = host.program(slots, descriptor, places, stacks, occasion, output.as_fd())?;
        let run = |event: Event, period, program| -> io::Result<File> {
            let event = event.open(period, thread.tid)?;
            perf_event::run_program(&event, program)?;
            Ok(event)
        };
        // All threads that pass a tracepoint run its program, which ends if the thread isn't this one.
        let others = program
            .others()
            .filter_map(|(probe, program)| match probe {
                Probe::Tracepoint(id) => Some(run(Event::Tracepoint(id), 0, program)),
                Probe::Function { kind, name } => {
                    let opened = run(Event::Function { kind, name }, 0, program);
                    let opened = opened.inspect_err(|error| {
                        log::debug!("The host has no events at {name:?}: {error}");
                    });
                    opened.ok().map(Ok)
                }
            })
            .collect::<io::Result<Vec<File>>>();
        let others = others.map_err(KernelCaptureError::Event)?;
        let (event, time) = match (program.tracepoint(), period) {
            (Some(id), _) => (Event::Tracepoint(id), 0),
            (None, Period::RunTime(time) | Period::Exits(time) | Period::Faults(time)) => {
                (Event::CpuClock, time)
            }
        };
        let event = run(event, time, program.as_fd());
        let event = event.map_err(KernelCaptureError::Event)?;
        let others = others.into_iter().map(OwnedFd::from);
        Ok(Self {
            event,
            output,
            program: program.into_files().into_iter().chain(others).collect(),
        })
    }

    /// The files as a process hands them over to another one.
    pub fn into_answer(self) -> Vec<OwnedFd> {
        let events = [self.event, self.output].map(OwnedFd::from);
        events.into_iter().chain(self.program).collect()
    }
}

impl Capture {
    /// Starts samples of `thread` with these `contents`, one for each `period`. `slots` are the memory slots of the
    /// guest.
    ///
    /// # Errors
    /// The host's kernel refuses the program or an event.
    pub fn start(
        opener: &CaptureOpener,
        slots: &Slots,
        thread: VcpuThreadId,
        contents: Contents<'_>,
        period: Period,
    ) -> Result<Self, KernelCaptureError> {
        let files = opener.open(slots, thread, contents, period)?;
        let bytes = opener.form().max_record_bytes(contents.stacks);
        let ring = opener.map(&files.output, contents.stacks);
        let ring = ring.map_err(KernelCaptureError::Ring)?;
        request(&files.event, IOC_ENABLE, 0).map_err(KernelCaptureError::Event)?;
        Ok(Self {
            event: files.event,
            _program: files.program,
            room: (ring.bytes() / bytes) as u64,
            ring,
            output: files.output,
            losses: Losses::default(),
        })
    }

    /// Returns the minimum number of samples that fit in the ring.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Returns the time in ns for which the host's kernel has had the thread on a processor since samples by its clock began; `None` if the kernel doesn't
    /// return it.
    pub fn run_time(&self) -> Option<u64> {
        perf_event::count(&self.event)
    }

    /// Calls `each` with every entry that the ring has now, and removes the entries.
    pub fn drain(&mut self, mut each: impl FnMut(Entry<'_>)) {
        let losses = &mut self.losses;
        self.ring.drain(|entry| {
            each(match entry {
                Entry::Lost(count) => Entry::Lost(losses.of_entry(count)),
                other => other,
            });
        });
    }

    /// Returns the number of samples that have found no room in the ring and of which [`drain`](Self::drain) has told nothing so far. Linux before 6.0 doesn't
    /// count them: it tells of them by the next sample that finds room.
    pub fn take_lost(&mut self) -> u64 {
        let total = perf_event::lost_records(&self.output);
        total.map_or(0, |total| self.losses.of_total(total))
    }
}

/// The account of the samples that found no room in a ring. Linux tells of each twice: at once in a total, and in the ring, once there is room.
#[derive(Debug, Default)]
struct Losses {
    told: u64,
    /// How many of these the ring will tell of, too.
    ahead: u64,
}

impl Losses {
    /// How many of the `count` losses of an entry of the ring haven't been told before.
    fn of_entry(&mut self, count: u64) -> u64 {
        let known = count.min(self.ahead);
        self.ahead -= known;
        self.told += count - known;
        count - known
    }

    /// How many of the `total` since the start haven't been told before.
    fn of_total(&mut self, total: u64) -> u64 {
        let new = total.saturating_sub(self.told);
        self.told += new;
        self.ahead += new;
        new
    }
}

/// Checks that the host's kernel takes samples of these vCPUs in a guest of which `knowledge` is known, so that an error comes now and not
/// at the first tick.
///
/// # Errors
/// The host's kernel refuses samples.
pub fn check(
    opener: &CaptureOpener,
    slots: &Slots,
    vcpus: &[VcpuThreadId],
    knowledge: &GuestKnowledge,
) -> Result<(), KernelCaptureError> {
    // An unknown guest may turn out to be Linux later, but never another system.
    if !opener.form().knows_privilege() && !knowledge.may_be_linux() {
        return Err(KernelCaptureError::NoPrivilege);
    }
    for thread in vcpus.iter().copied() {
        let nothing = Contents {
            places: None,
            stacks: StackParts::default(),
        };
        let period = Period::RunTime(1_000_000_000);
        Capture::start(opener, slots, thread, nothing, period)?;
    }
    Ok(())
}

/// Maps a ring for records of at most `record_bytes` bytes. A large ring can take more memory than a user may lock, or than is left for
/// each vCPU of a guest with very many. A small ring is mapped then.
pub(super) fn map_ring(output: &File, record_bytes: usize) -> io::Result<PerfRing> {
    let larger: &[usize] = if record_bytes <= RECORD_BYTES {
        &[]
    } else if record_bytes <= MAX_SAMPLE_BYTES {
        &[LARGE_RING_BYTES]
    } else {
        &[LARGEST_RING_BYTES, LARGE_RING_BYTES]
    };
    map_first_of(
        larger.iter().copied().filter(|bytes| has_room(*bytes)),
        output,
    )
}

/// Maps the ring that another process has mapped, of whatever size it is: others are refused.
pub(super) fn map_again(output: &File) -> io::Result<PerfRing> {
    map_first_of([LARGEST_RING_BYTES, LARGE_RING_BYTES], output)
}

/// Maps a ring of the first of these sizes that the kernel allows, or of the smallest size.
fn map_first_of(larger: impl IntoIterator<Item = usize>, output: &File) -> io::Result<PerfRing> {
    let mut larger = larger.into_iter();
    let mapped = larger.find_map(|bytes| PerfRing::map(output, bytes).ok());
    mapped.map_or_else(|| PerfRing::map(output, RING_BYTES), Ok)
}

/// An ioctl on `event` whose argument is a number.
fn request(event: &File, request: libc::Ioctl, argument: i32) -> io::Result<()> {
    // SAFETY: the requests that are made by this take a number, on a descriptor of ours.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request, argument) };
    SyscallReturnCode(result).into_empty_result()
}

#[cfg(test)]
mod tests {
    use super::super::ring::MAX_RINGS_BYTES;
    use super::*;

    /// The second user needs no right to lock memory, and doesn't know the size.
    #[test]
    fn a_ring_that_is_mapped_already_is_mapped_again_as_large() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        for bytes in [RING_BYTES, LARGE_RING_BYTES] {
            let output = Event::BpfOutput.open(1, tid).unwrap();
            let first = PerfRing::map(&output, bytes).unwrap();
            assert_eq!(map_again(&output).unwrap().bytes(), bytes);
            drop(first);
        }
    }

    #[test]
    fn each_loss_is_told_once() {
        let mut losses = Losses::default();
        // The ring is full for the first time.
        assert_eq!([losses.of_total(3), losses.of_total(5)], [3, 2]);
        // There is room again, and is none again.
        assert_eq!([losses.of_entry(6), losses.of_total(6)], [1, 0]);
        // The entry comes before anybody has read the total.
        assert_eq!([losses.of_entry(4), losses.of_total(12)], [4, 2]);
        assert_eq!([losses.of_entry(2), losses.of_entry(1)], [0, 1]);
        assert_eq!(losses.of_total(13), 0);
        // Linux has no total.
        let mut entries = Losses::default();
        assert_eq!([entries.of_entry(7), entries.of_entry(1)], [7, 1]);
    }

    #[test]
    fn large_rings_have_a_limit_together() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let output = Event::BpfOutput.open(1, tid).unwrap();
        assert!(has_room(MAX_RINGS_BYTES) && !has_room(MAX_RINGS_BYTES + 1));
        let ring = map_ring(&output, MAX_SAMPLE_BYTES).unwrap();
        let left = MAX_RINGS_BYTES - ring.bytes();
        assert!(has_room(left) && !has_room(left + 1));
        drop(ring);
        assert!(has_room(MAX_RINGS_BYTES));
    }
}
