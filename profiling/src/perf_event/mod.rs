//! Events of the host's kernel that are counted for one thread (perf_event_open(2)).

mod opener;
mod refusal;

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::time::{Duration, Instant};

use kvmprof_introspection::bytes::u64_at;
use vmm_sys_util::syscall::SyscallReturnCode;

pub use opener::EventOpener;
pub(crate) use opener::has_thread;
pub use refusal::why_not;

/// Types of events: `PERF_TYPE_HARDWARE`, `PERF_TYPE_SOFTWARE` and `PERF_TYPE_TRACEPOINT` (`include/uapi/linux/perf_event.h`).
const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const TRACEPOINT: u32 = 2;
/// Events of the type `SOFTWARE`.
const CPU_CLOCK: u64 = 0;
const TASK_CLOCK: u64 = 1;
const BPF_OUTPUT: u64 = 10;
/// The contents of a record (`PERF_SAMPLE_*`).
const SAMPLE_IP: u64 = 1;
const SAMPLE_RAW: u64 = 1 << 10;
/// The number of records without room, behind the count that read(2) returns: `PERF_FORMAT_LOST`, since Linux 6.0.
const FORMAT_LOST: u64 = 1 << 4;
/// Bits of [`Attributes::flags`].
const DISABLED: u64 = 1;
const WATERMARK: u64 = 1 << 14;
const EXCLUDE_HOST: u64 = 1 << 19;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const IOC_SET_BPF: libc::Ioctl = 0x4004_2408;
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;
const F_OWNER_TID: i32 = 0;

/// `struct f_owner_ex` (fcntl(2)).
#[repr(C)]
struct OwnerEx {
    kind: i32,
    pid: libc::pid_t,
}

/// An event that processors count (`enum perf_hw_id`, `include/uapi/linux/perf_event.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HardwareEvent {
    Cycles = 0,
    Instructions = 1,
    CacheReferences = 2,
    CacheMisses = 3,
    Branches = 4,
    BranchMisses = 5,
}

impl HardwareEvent {
    /// All events, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Cycles,
        Self::Instructions,
        Self::CacheReferences,
        Self::CacheMisses,
        Self::Branches,
        Self::BranchMisses,
    ];
    /// Number of events; all their numbers are below this.
    pub const COUNT: usize = Self::ALL.len();

    /// The event's bit in a set of events.
    pub fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// An event that kvmprof counts for a thread. There are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The processor time of the thread, in ns. It is off at first.
    TaskClock,
    /// A clock that runs while the thread runs, in ns, for an eBPF program. It is off at first.
    CpuClock,
    /// The records that an eBPF program writes. It wakes up no reader.
    BpfOutput,
    /// How often the thread passes the tracepoint with this number.
    Tracepoint(u64),
    /// How often the thread calls the function `name` of the kernel. `kind` is the host's number of this type of events (kprobe).
    Function {
        /// The type.
        kind: u32,
        /// The function.
        name: &'static CStr,
    },
    /// What the processor counts while the thread runs a guest.
    Hardware(HardwareEvent),
}

/// The first published form of `struct perf_event_attr` (`include/uapi/linux/perf_event.h`, PERF_ATTR_SIZE_VER0). No event here needs the
/// later fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    /// The type.
    kind: u32,
    size: u32,
    /// The number of the event among those of its type.
    config: u64,
    /// The count after which the event overflows; 0 for never.
    sample_period: u64,
    /// The contents of an overflow's record.
    sample_type: u64,
    read_format: u64,
    flags: u64,
    /// Number of overflows after which the reader is woken up.
    wakeup_events: u32,
    breakpoint_type: u32,
    /// The address of the name of a function that is counted.
    function: u64,
}

impl Event {
    fn attributes(self, period: u64) -> Attributes {
        let (kind, config, flags) = match self {
            Self::TaskClock => (SOFTWARE, TASK_CLOCK, DISABLED),
            Self::CpuClock => (SOFTWARE, CPU_CLOCK, DISABLED),
            Self::BpfOutput => (SOFTWARE, BPF_OUTPUT, WATERMARK),
            Self::Tracepoint(number) => (TRACEPOINT, number, 0),
            Self::Function { kind, .. } => (kind, 0, 0),
            Self::Hardware(event) => (HARDWARE, event as u64, EXCLUDE_HOST),
        };
        let (sample_type, read_format, wakeup_events) = match self {
            Self::BpfOutput => (SAMPLE_IP | SAMPLE_RAW, FORMAT_LOST, u32::MAX),
            _ => (0, 0, 1),
        };
        let function = match self {
            Self::Function { name, .. } => name.as_ptr() as u64,
            _ => 0,
        };
        Attributes {
            kind,
            size: u32::try_from(size_of::<Attributes>()).unwrap_or_default(),
            config,
            sample_period: period,
            sample_type,
            read_format,
            flags,
            wakeup_events,
            function,
            ..Attributes::default()
        }
    }

    /// Opens the event for thread `tid`, on any processor; 0 is the calling thread. It overflows after each `period`; never if that is 0. What this thread
    /// may not do any more, the process of [`EventOpener`] does for it.
    ///
    /// # Errors
    /// As of perf_event_open(2): EACCES or EPERM if the host forbids the event, ENOENT if the host doesn't have it.
    pub fn open(self, period: u64, tid: libc::pid_t) -> io::Result<File> {
        match self.open_here(period, tid) {
            Err(error) if refusal::is_refusal(&error) => {
                opener::open(self, period, tid).unwrap_or(Err(error))
            }
            opened => opened,
        }
    }

    /// Opens the event by the rights of this thread alone.
    fn open_here(self, period: u64, tid: libc::pid_t) -> io::Result<File> {
        let attributes = self.attributes(period);
        let opened = attributes.open(tid);
        let is_unknown = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
        match opened {
            // Linux before 6.0 has no such number.
            Err(error) if attributes.read_format != 0 && is_unknown(&error) => {
                let plain = Attributes {
                    read_format: 0,
                    ..attributes
                };
                plain.open(tid)
            }
            opened => opened,
        }
    }
}

impl Attributes {
    /// Opens an event for thread `tid`, on any processor.
    fn open(&self, tid: libc::pid_t) -> io::Result<File> {
        // SAFETY: the attributes are valid for the size they state, and a name among them lives as long as the program; the
        // first -1 means any processor, the second one no group.
        let descriptor = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                std::ptr::from_ref(self),
                tid,
                -1,
                -1,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        let descriptor = SyscallReturnCode(descriptor).into_result()?;
        let descriptor = i32::try_from(descriptor).map_err(io::Error::other)?;
        // SAFETY: the descriptor was just made and nobody else owns it.
        Ok(unsafe { File::from_raw_fd(descriptor) })
    }
}

/// The count of `event`; `None` if the kernel doesn't return it.
pub fn count(mut event: &File) -> Option<u64> {
    let mut count = [0; 8];
    event.read_exact(&mut count).ok()?;
    Some(u64::from_ne_bytes(count))
}

/// The number of records of `event` that have found no room in its ring; `None` if the kernel doesn't return it.
pub fn lost_records(mut event: &File) -> Option<u64> {
    let mut numbers = [0; 16];
    let bytes = event.read(&mut numbers).ok()?;
    u64_at(numbers.get(..bytes)?, 8)
}

/// Has each overflow of `event` run an eBPF program, or each pass of its tracepoint or its function by any thread.
///
/// # Errors
/// As of ioctl(2).
pub fn run_program(event: &File, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the request takes a number, on a descriptor of ours.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), IOC_SET_BPF, program.as_raw_fd()) };
    SyscallReturnCode(result).into_empty_result()
}

/// Makes each overflow of `event` send `signal` to the calling thread.
///
/// # Errors
/// As of fcntl(2).
pub fn signal_this_thread(event: &File, signal: i32) -> io::Result<()> {
    let descriptor = event.as_raw_fd();
    let owner = OwnerEx {
        kind: F_OWNER_TID,
        pid: rustix::thread::gettid().as_raw_pid(),
    };
    // SAFETY: plain fcntl calls on a descriptor of ours; `owner` lives through its call.
    let results = unsafe {
        [
            libc::fcntl(descriptor, F_SETOWN_EX, &raw const owner),
            libc::fcntl(descriptor, F_SETSIG, signal),
            libc::fcntl(descriptor, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK),
        ]
    };
    if results.iter().any(|&result| result < 0) {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Time for which a temporary refusal is kept: the host's administrator can lift it, or a resource was short at that moment.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why an event can't be counted.
#[derive(Debug)]
pub struct Refusal {
    /// The reason, as text.
    pub reason: String,
    /// Whether a later attempt would fail, too.
    pub is_permanent: bool,
}

impl Refusal {
    /// A refusal that a later attempt may not get.
    pub fn temporary(reason: String) -> Self {
        Self {
            reason,
            is_permanent: false,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self {
            reason: why_not(&error),
            is_permanent: is_missing(&error),
        }
    }
}

/// The result of an attempt to count an event, which is kept for some time. An attempt makes the host's kernel create an event and remove
/// it again, for which it may have to wait.
#[derive(Debug)]
pub struct ProbeResult {
    /// The result. The error is the reason, in words.
    result: Result<(), String>,
    /// The time of the next attempt; `None` for never.
    again: Option<Instant>,
}

impl ProbeResult {
    /// Returns the result in `kept` if it is still valid at `now`, or else that of `attempt`, which is kept.
    ///
    /// # Errors
    /// The reason why the event can't be counted, in words.
    pub fn get(
        kept: &mut Option<Self>,
        now: Instant,
        attempt: impl FnOnce() -> Result<(), Refusal>,
    ) -> Result<(), String> {
        let holds = |known: &&Self| known.again.is_none_or(|again| now < again);
        if let Some(known) = kept.as_ref().filter(holds) {
            return known.result.clone();
        }
        let tried = attempt();
        let is_temporary = tried.as_ref().is_err_and(|refusal| !refusal.is_permanent);
        let result = tried.map_err(|refusal| refusal.reason);
        *kept = Some(Self {
            result: result.clone(),
            again: is_temporary.then_some(now + RETRY_AFTER),
        });
        result
    }
}

/// Whether the host didn't open an event because it doesn't have it. It won't have it later either.
fn is_missing(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    matches!(number, Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV))
}
