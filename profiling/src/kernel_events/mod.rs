//! Events that the host's kernel counts for a vCPU's thread, which make ticks in place of the clock.
//!
//! The kernel signals the thread after each period of events. KVM_RUN returns then, and the thread takes the sample before any
//! code of the guest runs. Signals don't accumulate: the thread reads the count from the event, however many signals there were. A
//! frequent event slows the guest down, but doesn't stop it.

mod probe;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use kvmprof_abi::recorder::MAX_PERIOD;
use kvmprof_attach::tracepoint::{Tracepoint, TracepointError};
use kvmprof_recording::{EventKind, SamplingEvent};
use kvmprof_sandbox::user;

pub use probe::passes_tracepoints;

use crate::clock::RunTimeAlarm;
use crate::perf_event::{self, Event, HardwareEvent, ProbeResult, Refusal};
use crate::signals;

/// An event that the kernel counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KernelCounter {
    /// Processor time of the thread.
    RunTime,
    /// The number of times that the thread passes this tracepoint of KVM (`arch/x86/kvm/trace.h`, `include/trace/events/kvm.h`).
    Tracepoint(&'static str),
    /// A counter of the processor, in the guest.
    Hardware(HardwareEvent),
}

impl KernelCounter {
    /// The kernel's event for `kind`; `None` if kvmprof counts it itself.
    fn of(kind: EventKind) -> Option<Self> {
        Some(match kind {
            EventKind::GuestTime => Self::RunTime,
            // At the end of a halt, for any exit reason of the processor.
            EventKind::Halt => Self::Tracepoint("kvm_vcpu_wakeup"),
            EventKind::PageFaults => Self::Tracepoint("kvm_page_fault"),
            EventKind::KvmExits => Self::Tracepoint("kvm_exit"),
            EventKind::Cycles => Self::Hardware(HardwareEvent::Cycles),
            EventKind::Instructions => Self::Hardware(HardwareEvent::Instructions),
            EventKind::Branches => Self::Hardware(HardwareEvent::Branches),
            EventKind::BranchMisses => Self::Hardware(HardwareEvent::BranchMisses),
            EventKind::CacheReferences => Self::Hardware(HardwareEvent::CacheReferences),
            EventKind::CacheMisses => Self::Hardware(HardwareEvent::CacheMisses),
            EventKind::Exits
            | EventKind::Port
            | EventKind::PortRead
            | EventKind::PortWrite
            | EventKind::Mmio
            | EventKind::MmioRead
            | EventKind::MmioWrite => return None,
        })
    }

    /// Checks that this host's KVM passes the tracepoint.
    ///
    /// # Errors
    /// It doesn't, or that is unknown.
    fn check(self) -> Result<(), Refusal> {
        let Self::Tracepoint(name @ ("kvm_exit" | "kvm_page_fault")) = self else {
            // The others are the same code in every KVM.
            return Ok(());
        };
        if passes_tracepoints() {
            return Ok(());
        }
        let passes = tracepoint_id(name).and_then(|id| probe::passes(name, id));
        if passes.map_err(Refusal::temporary)? {
            return Ok(());
        }
        Err(Refusal {
            reason: format!(
                "the host's KVM is a variety that doesn't pass its tracepoint kvm:{name}"
            ),
            is_permanent: true,
        })
    }
}

thread_local! {
    /// The results of [`unavailable`] for this thread. Another thread may have other rights.
    static RESULTS: RefCell<BTreeMap<EventKind, Option<ProbeResult>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The reason why this host can't take samples by events of `kind`, with what to do; `None` if it can. This opens an event for the calling
/// thread, and for some kinds runs a guest of a few instructions, once.
///
/// The result is kept for the thread, or for a second if it may change: guests and clients can request it at any rate, and the host's kernel
/// takes some ms to close a tracepoint's event.
pub fn unavailable(kind: EventKind) -> Option<String> {
    let counted = KernelCounter::of(kind)?;
    let attempt = || {
        Meter::open(counted, MAX_PERIOD).map_err(Refusal::temporary)?;
        counted.check()
    };
    RESULTS.with_borrow_mut(|results| {
        let kept = results.entry(kind).or_default();
        ProbeResult::get(kept, Instant::now(), attempt).err()
    })
}

/// Probes all events in advance: contained threads may run no guest for it (`kvmprof_sandbox`).
pub fn probe_all() {
    for kind in EventKind::ALL {
        // The result is kept for later calls.
        let _ = unavailable(kind);
    }
}

/// A running event of the calling thread.
#[derive(Debug)]
pub struct KernelEvent {
    kind: EventKind,
    period: u64,
    meter: Meter,
}

#[derive(Debug)]
enum Meter {
    /// An alarm that is set again for each tick, so that the time of taking the sample doesn't count. `rest` is the time in ns by which earlier
    /// ticks came late, or if below 0, early.
    RunTime { alarm: RunTimeAlarm, rest: i64 },
    /// An event that counts all the time. `taken` is the number of ticks that have been taken.
    Count { event: File, taken: u64 },
}

impl Meter {
    /// Opens the meter for the calling thread.
    ///
    /// # Errors
    /// The reason why the host refuses it.
    fn open(counted: KernelCounter, period: u64) -> Result<Self, String> {
        let count = |event| {
            let event = open_counting(event, period);
            event.map(|event| Self::Count { event, taken: 0 })
        };
        let meter = match counted {
            KernelCounter::RunTime => RunTimeAlarm::for_this_thread(signals::overflow())
                .map(|alarm| Self::RunTime { alarm, rest: 0 }),
            KernelCounter::Tracepoint(name) => count(Event::Tracepoint(tracepoint_id(name)?)),
            KernelCounter::Hardware(event) => count(Event::Hardware(event)),
        };
        meter.map_err(|error| perf_event::why_not(&error))
    }
}

/// Opens `event` for the calling thread, and makes it signal the thread after each `period`.
fn open_counting(event: Event, period: u64) -> io::Result<File> {
    let event = event.open(period, 0)?;
    perf_event::signal_this_thread(&event, signals::overflow())?;
    Ok(event)
}

/// Whether this is perf's number of a tracepoint that kvmprof counts.
pub fn is_counted_tracepoint(number: u64) -> bool {
    let mut counted = EventKind::ALL.into_iter().filter_map(KernelCounter::of);
    counted.any(|counted| match counted {
        KernelCounter::Tracepoint(name) => tracepoint_id(name) == Ok(number),
        KernelCounter::RunTime | KernelCounter::Hardware(_) => false,
    })
}

/// Perf's number of KVM's tracepoint `name`.
///
/// # Errors
/// The reason why there is none.
fn tracepoint_id(name: &'static str) -> Result<u64, String> {
    let tracepoint = Tracepoint::read(name).map_err(|error| match error {
        TracepointError::Refused { .. } if user::is_chosen() => {
            format!("{error}; leave --user out")
        }
        TracepointError::Refused { .. } => format!("{error}; run it as root"),
        _ => error.to_string(),
    })?;
    Ok(tracepoint.id)
}

/// Has the host's kernel run an eBPF program whenever any thread passes the tracepoint with this number, until the file is closed.
///
/// # Errors
/// The reason why the host refuses it.
pub fn run_at_tracepoint(number: u64, program: BorrowedFd<'_>) -> Result<File, String> {
    let event = Event::Tracepoint(number).open(0, 0);
    let attached = event.and_then(|event| {
        perf_event::run_program(&event, program)?;
        Ok(event)
    });
    attached.map_err(|error| perf_event::why_not(&error))
}

impl KernelEvent {
    /// Starts to count `event` for the calling thread, which is a vCPU's. `None` if kvmprof counts the event itself.
    ///
    /// # Errors
    /// The reason why the host refuses it.
    pub fn start(event: SamplingEvent) -> Result<Option<Self>, String> {
        let kind = event.kind();
        let Some(counted) = KernelCounter::of(kind) else {
            return Ok(None);
        };
        let period = event.period();
        let mut started = Self {
            kind,
            period,
            meter: Meter::open(counted, period)?,
        };
        started.resume();
        Ok(Some(started))
    }

    /// The kind of the event.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// The number of ticks since the last call. If there were any, the caller takes the sample and then calls [`resume`](Self::resume).
    pub fn take(&mut self) -> u64 {
        let period = self.period;
        match &mut self.meter {
            Meter::RunTime { alarm, rest } => {
                let Some(run_time) = alarm.run_time() else {
                    return 0;
                };
                let time = rest.saturating_add_unsigned(run_time);
                let (ticks, left) = whole_ticks(time, period);
                if ticks > 0 {
                    *rest = left;
                }
                ticks
            }
            Meter::Count { event, taken } => {
                let ticks = perf_event::count(event).unwrap_or_default() / period;
                let new = ticks.saturating_sub(*taken);
                *taken += new;
                new
            }
        }
    }

    /// Notes that the guest continues.
    pub fn resume(&mut self) {
        if let Meter::RunTime { alarm, rest } = &self.meter
            && let Err(error) = alarm.arm(next_alarm(*rest, self.period))
        {
            log::warn!("The perf task clock failed ({error}): there are no more samples by it");
        }
    }
}

/// The number of ticks in `time` ns, and the rest in ns. An alarm that is early by up to a sixteenth of a period counts as the tick that is due,
/// and leaves a rest below 0.
fn whole_ticks(time: i64, period: u64) -> (u64, i64) {
    let early = period / 16;
    let reached = u64::try_from(time)
        .unwrap_or_default()
        .saturating_add(early);
    let ticks = reached / period;
    let taken = i64::try_from(ticks * period).unwrap_or(i64::MAX);
    (ticks, time.saturating_sub(taken))
}

/// The time in ns until the next alarm, if `rest` ns of its period have passed. If less than half a period is left, the alarm is for the tick
/// after the next one: the guest might not run at all in such a short time.
fn next_alarm(rest: i64, period: u64) -> u64 {
    let left = period.saturating_add_signed(rest.saturating_neg());
    if left < period / 2 {
        left + period
    } else {
        left
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;
    use std::thread;

    use kvmprof_sandbox::{Mode, Thread, enter, filters};

    use super::*;

    #[test]
    fn guest_time_is_counted_to_the_end() {
        let period = 1_000_000;
        // In time, late, early, far too late.
        for (time, expected) in [
            (1_000_000, (1, 0)),
            (1_003_000, (1, 3000)),
            (999_000, (1, -1000)),
            (3_500_000, (3, 500_000)),
            (900_000, (0, 900_000)),
            (-5, (0, -5)),
        ] {
            assert_eq!(whole_ticks(time, period), expected);
        }
        let alarms = [0, 3000, -1000, 500_000, 900_000].map(|over| next_alarm(over, period));
        assert_eq!(alarms, [1_000_000, 997_000, 1_001_000, 500_000, 1_100_000]);
    }

    #[test]
    fn events_of_kvmprof_itself_are_always_available() {
        let kinds = EventKind::ALL.into_iter();
        for kind in kinds.filter(|kind| !kind.is_counted_by_kernel()) {
            assert_eq!(unavailable(kind), None);
            let event = SamplingEvent::new(kind, 1).unwrap();
            assert!(KernelEvent::start(event).unwrap().is_none());
        }
    }

    #[test]
    fn missing_events_have_a_reason() {
        let why = tracepoint_id("no_such_tracepoint").unwrap_err();
        let mut words = ["tracepoint", "tracefs", "root"].into_iter();
        assert!(words.any(|word| why.contains(word)), "{why}");
        let kinds = EventKind::ALL.into_iter();
        for kind in kinds.filter(|kind| kind.is_counted_by_kernel()) {
            let event = SamplingEvent::new(kind, MAX_PERIOD).unwrap();
            let started = KernelEvent::start(event);
            // A tracepoint may exist without ever being hit.
            let is_so = started.is_ok() || started.err() == unavailable(kind);
            assert!(is_so, "{kind:?}");
        }
    }

    /// Set in a process of its own, in which a thread probes twice.
    const CHILD: &str = "KVMPROF_TEST_PROBES_TWICE";

    #[test]
    fn events_are_probed_once() {
        if env::var_os(CHILD).is_some() {
            let asking = thread::spawn(|| {
                let kinds = EventKind::ALL.into_iter();
                let counted: Vec<_> = kinds.filter(|kind| unavailable(*kind).is_none()).collect();
                assert!(counted.contains(&EventKind::GuestTime), "{counted:?}");
                filters::prepare(Mode::On, || {}).unwrap();
                // Its filter lets it open no event.
                enter(Thread::Introspection);
                assert!(counted.into_iter().all(|kind| unavailable(kind).is_none()));
            });
            asking.join().unwrap();
            return;
        }
        let ran = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("kernel_events::tests::events_are_probed_once")
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
    }

    /// This thread runs until its own time has made the ticks.
    #[test]
    fn guest_time_makes_ticks_while_the_thread_runs() {
        signals::block().unwrap();
        let event = SamplingEvent::new(EventKind::GuestTime, 1_000_000).unwrap();
        let Ok(Some(mut event)) = KernelEvent::start(event) else {
            panic!("{:?}", unavailable(EventKind::GuestTime))
        };
        let mut ticks = 0;
        while ticks < 20 {
            if signals::take_overflows() {
                let new = event.take();
                assert!(new > 0, "each signal is a tick");
                ticks += new;
                event.resume();
            }
        }
    }
}
