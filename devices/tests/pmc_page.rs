//! pmc(9), sentence by sentence.

use Function::{
    Accumulate, AllocKernel, Configure, Disable, Enable, Enabled, FreeKernel, IsConfigured,
    IsRunning, RestoreContext, SaveContext, StartProfiling, StopProfiling,
};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{COUNTERS, Call, CounterId, Function, KERNEL, VALUE_FLAGS_CHILDREN};
use kvmprof_devices::profiling::Pmc;
use kvmprof_devices::profiling::pmc::{Account, Counted, Parent, ProcessKey, Totals};
use kvmprof_recording::{EventKind, SamplingEvent};
use proptest::prelude::*;

const WRITES: CounterId = CounterId::PortWrites;
const TIME: CounterId = CounterId::CpuTime;
const CYCLES: CounterId = CounterId::Cycles;

/// A host without a PMU, whose totals are nevertheless.
struct Host(u64);

impl Totals for Host {
    fn can_count(&self, counter: CounterId) -> bool {
        counter < CYCLES
    }

    fn can_sample(&self, kind: EventKind) -> bool {
        [EventKind::GuestTime, EventKind::PortWrite].contains(&kind)
    }

    fn total(&self, _counter: CounterId) -> u64 {
        self.0
    }
}

type Answer = Result<i64, Errno>;
const OK: Answer = Ok(0);
const YES: Answer = Ok(1);
const NOT_THERE: Answer = Err(Errno::ENXIO);
const BUSY: Answer = Err(Errno::EBUSY);
const INVALID: Answer = Err(Errno::EINVAL);

/// The device on a host whose totals are 0.
#[derive(Default)]
struct Bench(Pmc);

impl Bench {
    fn call(&mut self, call: Call) -> Answer {
        self.0.call(&call, &Host(0)).map(|called| called.returned)
    }

    /// Makes these calls about one process, one after the other, and compares what they return.
    #[track_caller]
    fn calls(&mut self, pid: i32, calls: &[(Function, CounterId, Answer)]) {
        for (place, (function, id, expected)) in calls.iter().enumerate() {
            let answer = self.call(of(*function, pid, *id));
            assert_eq!(answer, *expected, "call {place}: {function:?} {id:?}");
        }
    }

    /// The value of the writes.
    fn value(&mut self, pid: i32) -> Result<u64, Errno> {
        self.value_with(pid, 0)
    }

    fn of_children(&mut self, pid: i32) -> u64 {
        self.value_with(pid, VALUE_FLAGS_CHILDREN).unwrap()
    }

    fn value_with(&mut self, pid: i32, flags: u32) -> Result<u64, Errno> {
        let call = Call {
            flags,
            time: 9000,
            ..of(Function::Value, pid, WRITES)
        };
        self.0.call(&call, &Host(0)).map(|called| called.value)
    }

    fn start(&mut self, pid: i32) {
        let calls = [Function::Configure, Function::Enable].map(|it| (it, WRITES, OK));
        self.calls(pid, &calls);
    }

    /// `count` writes by a process.
    fn count(&mut self, process: ProcessKey, count: u64) {
        self.0.count(&counted(process, None, count));
    }

    /// The same by one whose parent is known.
    fn count_child(&mut self, process: ProcessKey, parent: ProcessKey, count: u64) {
        self.0
            .count(&counted(process, Some((parent, false)), count));
    }

    fn has(&self, pid: i32) -> bool {
        self.0.processes().any(|(other, _)| other == pid)
    }
}

fn of(function: Function, pid: i32, id: CounterId) -> Call {
    let number = i32::try_from(id.number()).unwrap();
    Call {
        event: number.cast_unsigned(),
        reset_value: 1000,
        time: 1000,
        ..Call::new(function, pid, number)
    }
}

/// A process that was there before any call.
fn key(pid: i32) -> ProcessKey {
    started(pid, 10 * u64::from(pid.cast_unsigned()))
}

fn started(pid: i32, started: u64) -> ProcessKey {
    ProcessKey { pid, started }
}

/// Writes by a process, with its parent and whether that may have adopted it.
fn counted(process: ProcessKey, parent: Option<(ProcessKey, bool)>, count: u64) -> Counted {
    let mut counts = [0; COUNTERS];
    counts[WRITES.number()] = count;
    counts[TIME.number()] = 1_000_000;
    Counted {
        process,
        parent: parent.map(|(key, may_have_adopted)| Parent {
            key,
            may_have_adopted,
        }),
        counts,
        ..Counted::default()
    }
}

#[test]
fn the_number_of_counters_and_their_types() {
    let mut bench = Bench::default();
    // The configuration, -1: this host's processor shows no counters.
    for (counter, kind) in [(0, Ok(1)), (7, Ok(2)), (18, Ok(3)), (-1, Ok(3))] {
        let call = Call::new(Function::CounterType, 0, counter);
        assert_eq!(bench.call(call), kind, "{counter}");
    }
    for counter in [19, -2, i32::MAX, i32::MIN] {
        let call = Call::new(Function::CounterType, 0, counter);
        assert_eq!(bench.call(call), INVALID, "{counter}");
    }
    assert_eq!(bench.call(Call::new(Function::NumCounters, 0, 0)), Ok(19));
}

#[test]
fn a_counter_is_configured_enabled_read_and_disabled() {
    let mut bench = Bench::default();
    bench.calls(
        5,
        &[(Enable, WRITES, NOT_THERE), (Disable, WRITES, NOT_THERE)],
    );
    assert_eq!(bench.value(5), Err(Errno::ENXIO));
    let configured = [(Configure, OK), (IsConfigured, YES), (IsRunning, OK)];
    bench.calls(5, &configured.map(|(it, answer)| (it, WRITES, answer)));
    assert_eq!(bench.0.wanted(), 0);
    bench.count(key(5), 7);
    assert_eq!(bench.value(5), Ok(0), "it stands still");
    let again = Err(Errno::EINPROGRESS);
    let enabled = [(Enable, OK), (Enable, again), (IsRunning, YES)];
    bench.calls(5, &enabled.map(|(it, answer)| (it, WRITES, answer)));
    assert_eq!(bench.0.wanted(), WRITES.bit());
    bench.count(key(5), 7);
    bench.count(key(6), 100);
    assert_eq!(bench.value(5), Ok(7));
    bench.calls(5, &[(Disable, WRITES, OK); 2]);
    bench.count(key(5), 1);
    assert_eq!(bench.value(5), Ok(7), "the value stays");
    bench.calls(5, &[(Enable, WRITES, OK)]);
    bench.count(key(5), 1);
    assert_eq!(bench.value(5), Ok(8));
    // Configured while it runs, it is stopped first.
    bench.calls(5, &[(Configure, WRITES, OK), (IsRunning, WRITES, OK)]);
    assert_eq!(bench.value(5), Ok(0));
}

#[test]
fn bad_counters_events_flags_and_processes_are_refused() {
    let mut bench = Bench::default();
    let missing = Err(Errno::ENODEV);
    for (event, counter, expected) in [(3, 2, missing), (99, 2, missing), (2, 19, INVALID)] {
        let call = Call {
            event,
            ..Call::new(Configure, 5, counter)
        };
        assert_eq!(bench.call(call), expected, "{event} {counter}");
    }
    bench.calls(5, &[(Configure, CYCLES, missing)]);
    bench.start(5);
    for flags in [2, 3, u32::MAX] {
        assert_eq!(bench.value_with(5, flags), Err(Errno::EINVAL));
    }
    for pid in [0, -1, -2, i32::MIN] {
        for function in Function::ALL {
            let needs_process = [
                Enable,
                Disable,
                IsRunning,
                IsConfigured,
                Configure,
                SaveContext,
                RestoreContext,
                Accumulate,
                Enabled,
            ];
            let refused =
                needs_process.contains(&function) || (function == Function::Value && pid != KERNEL);
            let answer = Bench::default().call(of(function, pid, WRITES));
            assert_eq!(refused, answer == INVALID, "{function:?} {pid}");
        }
    }
    for counter in [-1, 19] {
        let mut call = |function| bench.call(Call::new(function, 5, counter));
        assert_eq!([IsRunning, IsConfigured].map(&mut call), [OK; 2]);
        assert_eq!([Enable, Disable, Function::Value].map(call), [INVALID; 3]);
    }
}

#[test]
fn a_saved_context_is_frozen_while_the_kernels_counters_run() {
    let mut bench = Bench::default();
    bench.start(5);
    bench.calls(0, &[(AllocKernel, TIME, OK)]);
    bench.count(key(5), 3);
    bench.calls(5, &[(SaveContext, WRITES, OK)]);
    bench.count(key(5), 3);
    assert_eq!(bench.value(5), Ok(3));
    assert_eq!(bench.0.wanted(), 0);
    let kernels = bench.0.call(&of(Function::Value, KERNEL, TIME), &Host(50));
    assert_eq!(kernels.unwrap().value, 50);
    bench.calls(5, &[(RestoreContext, WRITES, OK)]);
    bench.count(key(5), 3);
    assert_eq!(bench.value(5), Ok(6));
    // A process without counters has nothing to save.
    bench.calls(77, &[(SaveContext, WRITES, OK)]);
}

#[test]
fn upon_a_fork_enabled_counters_are_inherited_and_zeroed() {
    let mut bench = Bench::default();
    bench.start(5);
    bench.calls(5, &[(Configure, TIME, OK)]);
    bench.count(key(5), 9);
    bench.count_child(started(6, 2000), key(5), 4);
    // At this time it hadn't started.
    assert_eq!(bench.call(of(Function::Value, 6, WRITES)), NOT_THERE);
    assert_eq!(bench.value(6), Ok(4));
    // It is configured in the parent, and not enabled.
    let later = Call {
        time: 3000,
        ..of(Function::Value, 6, TIME)
    };
    assert_eq!(bench.call(later), NOT_THERE);
    assert_eq!(bench.value(5), Ok(9));
    // One that was forked before the counter was enabled, and one of another user.
    bench.count_child(key(7), key(5), 4);
    bench.count_child(key(9), key(8), 4);
    assert_eq!([7, 9].map(|pid| bench.value(pid)), [Err(Errno::ENXIO); 2]);
}

/// The kernel gives the children of an ended process to another one, which may have counters that their real parent hadn't.
#[test]
fn a_possible_orphan_inherits_only_what_the_whole_family_has() {
    let child = |pid| started(pid, 2000);
    let inherits = |bench: &mut Bench| {
        let adopted = counted(child(6), Some((key(5), true)), 4);
        bench.0.count(&adopted);
        let is_it = bench.has(6);
        bench.0.end(6, Some(2000));
        is_it
    };
    let enabled = |has_forked| {
        let mut bench = Bench::default();
        bench.start(5);
        bench.0.diverge(&of(Enable, 5, WRITES), has_forked);
        bench.count(key(5), 1);
        bench
    };
    // All processes that have lived since the call are its own, or inherited the same.
    assert!(inherits(&mut enabled(false)));
    // One that was forked before the call may be the parent of the adopted one.
    assert!(!inherits(&mut enabled(true)));
    let mut bench = enabled(true);
    bench.count_child(child(7), key(5), 1);
    assert!(bench.has(7), "its own child");
    // One of the family has turned its counters off since then.
    let mut bench = enabled(false);
    bench.count_child(child(7), key(5), 1);
    bench.count_child(child(8), child(7), 1);
    assert!(inherits(&mut bench));
    let off = Call {
        time: 3000,
        ..of(Disable, 8, WRITES)
    };
    assert_eq!(bench.call(off), OK);
    bench.0.diverge(&off, false);
    assert!(!inherits(&mut bench));
    // Other families don't matter.
    let mut bench = enabled(false);
    bench.start(9);
    bench.0.diverge(&of(Enable, 9, WRITES), true);
    assert!(inherits(&mut bench));
}

#[test]
fn the_counts_of_a_process_that_ends_go_to_its_parents_children() {
    let mut bench = Bench::default();
    bench.start(5);
    bench.count(key(5), 1);
    let [child, grandchild] = [started(6, 2000), started(7, 3000)];
    bench.count_child(child, key(5), 10);
    bench.count_child(grandchild, child, 100);
    assert_eq!(bench.0.processes().count(), 3);
    bench.0.end(7, Some(3000));
    bench.0.end(6, Some(2001));
    assert_eq!(bench.of_children(5), 0, "it lives");
    for _ in 0..2 {
        bench.0.end(6, Some(2000));
        assert_eq!((bench.of_children(5), bench.value(5)), (110, Ok(1)));
    }
}

#[test]
fn counts_can_be_accumulated_by_a_call() {
    let mut bench = Bench::default();
    bench.start(5);
    bench.start(6);
    bench.count(key(6), 10);
    // The last two have no counter that is on.
    for (pid, parent) in [(6, 5), (6, 99), (99, 5)] {
        let call = Call {
            parent,
            ..of(Accumulate, pid, WRITES)
        };
        assert_eq!(bench.call(call), OK);
        assert_eq!((bench.of_children(5), bench.value(6)), (10, Ok(0)));
    }
}

#[test]
fn a_counter_of_the_kernel_isnt_available_to_processes() {
    let mut bench = Bench::default();
    bench.calls(0, &[(FreeKernel, WRITES, NOT_THERE)]);
    bench.calls(5, &[(Enabled, WRITES, OK)]);
    bench.calls(0, &[(AllocKernel, WRITES, OK), (AllocKernel, WRITES, BUSY)]);
    bench.calls(
        5,
        &[IsRunning, IsConfigured, Enabled].map(|it| (it, WRITES, YES)),
    );
    bench.calls(5, &[(Configure, WRITES, BUSY), (Enable, WRITES, BUSY)]);
    assert!(bench.0.kernel_counters().eq([WRITES]));
    bench.calls(0, &[(FreeKernel, WRITES, OK)]);
    bench.start(5);
    bench.calls(0, &[(AllocKernel, WRITES, BUSY), (AllocKernel, TIME, OK)]);
}

#[test]
fn the_kernels_value_starts_at_its_allocation() {
    let mut pmc = Pmc::default();
    let read = |pmc: &mut Pmc, now| pmc.call(&of(Function::Value, KERNEL, TIME), &Host(now));
    assert_eq!(read(&mut pmc, 5), Err(Errno::ENXIO));
    pmc.call(&of(AllocKernel, 0, TIME), &Host(100)).unwrap();
    assert_eq!(read(&mut pmc, 130).unwrap().value, 30);
}

#[test]
fn profiling_takes_an_unused_counter() {
    let mut bench = Bench::default();
    bench.calls(0, &[(StopProfiling, WRITES, NOT_THERE)]);
    let start_with = |reset_value, id| Call {
        reset_value,
        ..of(StartProfiling, 0, id)
    };
    for (reset_value, id, expected) in [
        (0, WRITES, INVALID),
        (10_000_000_001, WRITES, INVALID),
        (u64::MAX, WRITES, INVALID),
        (99_999, TIME, INVALID),
        (1, CounterId::Halts, Err(Errno::ENODEV)),
    ] {
        let answer = bench.call(start_with(reset_value, id));
        assert_eq!(answer, expected, "{reset_value} {id:?}");
    }
    bench.start(5);
    let start = start_with(10, WRITES);
    assert_eq!(bench.call(start), BUSY, "a process uses it");
    bench.0.end(5, None);
    assert_eq!(bench.call(start), OK);
    let event = SamplingEvent::new(EventKind::PortWrite, 10);
    assert!(event.is_some() && bench.0.profiling() == event);
    assert_eq!(bench.call(start), Err(Errno::EINPROGRESS));
    assert_eq!(bench.call(start_with(100_000, TIME)), BUSY);
    bench.calls(
        0,
        &[(AllocKernel, WRITES, BUSY), (FreeKernel, WRITES, BUSY)],
    );
    bench.calls(0, &[(StopProfiling, WRITES, OK)]);
    assert_eq!(bench.0.profiling(), None);
    bench.start(5);
    // An allocated counter isn't available for profiling.
    bench.calls(
        0,
        &[(AllocKernel, TIME, OK), (StopProfiling, TIME, NOT_THERE)],
    );
}

#[test]
fn another_process_under_the_same_pid_has_no_counters() {
    let mut bench = Bench::default();
    bench.start(5);
    bench.count(key(5), 1);
    bench.count(started(5, 5000), 7);
    assert_eq!(bench.0.processes().len(), 0);
    // The same if the first one was never sampled.
    bench.start(5);
    bench.count(started(5, 5000), 7);
    assert_eq!(bench.value(5), Err(Errno::ENXIO));
}

#[test]
fn no_more_than_1024_processes_have_counters() {
    let mut bench = Bench::default();
    (1..=1024).for_each(|pid| bench.start(pid));
    bench.calls(1025, &[(Configure, WRITES, Err(Errno::ENOMEM))]);
    bench.count_child(started(2000, 3000), key(5), 1);
    assert_eq!(bench.0.processes().len(), 1024);
    bench.0.end(77, None);
    bench.calls(1025, &[(Configure, WRITES, OK)]);
}

#[test]
fn an_account_has_all_processes_and_only_its_counters() {
    let mut account = Account::new(WRITES.bit());
    for pid in 1..=5000 {
        account.count(&counted(key(pid), None, 2));
        account.count(&counted(key(pid), None, 1));
    }
    let rows: Vec<_> = account.rows().collect();
    assert_eq!(rows.len(), 4097);
    let sums = rows.iter().map(|(_, row)| row.counts[WRITES.number()]);
    assert_eq!(sums.sum::<u64>(), 15_000);
    let (others, row) = rows[0];
    assert_eq!((others.pid, row.counts[WRITES.number()]), (-1, 904 * 3));
    assert!(rows.iter().all(|(_, row)| row.counts[TIME.number()] == 0));
}

proptest! {
    /// In any order of counting and ending within a family, nothing is lost or counted twice.
    #[test]
    fn a_familys_counts_are_kept(steps in prop::collection::vec((0..6_i32, 0..1000_u64, any::<bool>()), 1..60)) {
        let mut bench = Bench::default();
        let family = |index: i32| started(10 + index, 2000 + u64::from(index.cast_unsigned()));
        let root = Call { time: 2500, ..of(Configure, 10, WRITES) };
        for call in [root, Call { function: Enable, time: 2000, ..root }] {
            bench.call(call).unwrap();
        }
        let mut total = 0;
        let mut ended = [false; 6];
        bench.count(family(0), 0);
        for (index, count, ends) in steps {
            let at = usize::try_from(index).unwrap();
            // A process whose parent has ended gets another one, and ended members stay ended.
            if ended[..=at].contains(&true) {
                continue;
            }
            if ends && index > 0 {
                // Here, its children have ended before it.
                for later in (index..6).rev() {
                    bench.0.end(family(later).pid, Some(family(later).started));
                }
                ended[at..].fill(true);
            } else {
                // Each generation is sampled after the previous one.
                for generation in 1..=index {
                    bench.count_child(family(generation), family(generation - 1), 0);
                }
                bench.count(family(index), count);
                total += count;
            }
        }
        for (pid, started) in bench.0.processes().collect::<Vec<_>>().into_iter().rev() {
            if pid != 10 {
                bench.0.end(pid, started);
            }
        }
        prop_assert_eq!(bench.value(10).unwrap() + bench.of_children(10), total);
    }
}
