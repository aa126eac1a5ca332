//! pmc(9), sentence by sentence.

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

fn call(pmc: &mut Pmc, call: Call) -> Result<i64, Errno> {
    pmc.call(&call, &Host(0)).map(|called| called.returned)
}

fn simple(pmc: &mut Pmc, function: Function, pid: i32, id: CounterId) -> Result<i64, Errno> {
    call(pmc, of(function, pid, id))
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

fn value(pmc: &mut Pmc, pid: i32, flags: u32) -> Result<u64, Errno> {
    let call = Call {
        flags,
        ..of(Function::Value, pid, WRITES)
    };
    pmc.call(&call, &Host(0)).map(|called| called.value)
}

fn start(pmc: &mut Pmc, pid: i32) {
    simple(pmc, Function::Configure, pid, WRITES).unwrap();
    simple(pmc, Function::Enable, pid, WRITES).unwrap();
}

fn key(pid: i32) -> ProcessKey {
    ProcessKey {
        pid,
        started: 10 * u64::from(pid.cast_unsigned()),
    }
}

/// `count` writes by a process.
fn counted(process: ProcessKey, parent: Option<ProcessKey>, count: u64) -> Counted {
    let mut counts = [0; COUNTERS];
    counts[WRITES.number()] = count;
    counts[TIME.number()] = 1_000_000;
    Counted {
        process,
        parent: parent.map(|key| Parent {
            key,
            may_have_adopted: false,
        }),
        counts,
        ..Counted::default()
    }
}

/// The same for a process that its parent may have adopted.
fn adopted(process: ProcessKey, parent: ProcessKey, count: u64) -> Counted {
    Counted {
        parent: Some(Parent {
            key: parent,
            may_have_adopted: true,
        }),
        ..counted(process, None, count)
    }
}

#[test]
fn the_number_of_counters_and_their_types() {
    let mut pmc = Pmc::default();
    let mut type_of = |counter| call(&mut pmc, Call::new(Function::CounterType, 0, counter));
    assert_eq!(type_of(0), Ok(1));
    assert_eq!(type_of(7), Ok(2));
    assert_eq!(type_of(18), Ok(3));
    // The configuration: this host's processor shows no counters.
    assert_eq!(type_of(-1), Ok(3));
    for counter in [19, -2, i32::MAX, i32::MIN] {
        assert_eq!(type_of(counter), Err(Errno::EINVAL));
    }
    let number = call(&mut pmc, Call::new(Function::NumCounters, 0, 0));
    assert_eq!(number, Ok(19));
}

#[test]
fn a_counter_is_configured_enabled_read_and_disabled() {
    let mut pmc = Pmc::default();
    use Function::{Configure, Disable, Enable, IsConfigured, IsRunning};
    assert_eq!(simple(&mut pmc, Enable, 5, WRITES), Err(Errno::ENXIO));
    assert_eq!(simple(&mut pmc, Disable, 5, WRITES), Err(Errno::ENXIO));
    assert_eq!(value(&mut pmc, 5, 0), Err(Errno::ENXIO));
    assert_eq!(simple(&mut pmc, Configure, 5, WRITES), Ok(0));
    assert_eq!(simple(&mut pmc, IsConfigured, 5, WRITES), Ok(1));
    assert_eq!(simple(&mut pmc, IsRunning, 5, WRITES), Ok(0));
    assert_eq!(pmc.wanted(), 0);
    pmc.count(&counted(key(5), None, 7));
    assert_eq!(value(&mut pmc, 5, 0), Ok(0), "it stands still");
    assert_eq!(simple(&mut pmc, Enable, 5, WRITES), Ok(0));
    assert_eq!(simple(&mut pmc, Enable, 5, WRITES), Err(Errno::EINPROGRESS));
    assert_eq!(simple(&mut pmc, IsRunning, 5, WRITES), Ok(1));
    assert_eq!(pmc.wanted(), WRITES.bit());
    pmc.count(&counted(key(5), None, 7));
    pmc.count(&counted(key(6), None, 100));
    assert_eq!(value(&mut pmc, 5, 0), Ok(7));
    assert_eq!(simple(&mut pmc, Disable, 5, WRITES), Ok(0));
    assert_eq!(simple(&mut pmc, Disable, 5, WRITES), Ok(0));
    pmc.count(&counted(key(5), None, 1));
    assert_eq!(value(&mut pmc, 5, 0), Ok(7), "the value stays");
    assert_eq!(simple(&mut pmc, Enable, 5, WRITES), Ok(0));
    pmc.count(&counted(key(5), None, 1));
    assert_eq!(value(&mut pmc, 5, 0), Ok(8));
    // Configured while it runs, it is stopped first.
    assert_eq!(simple(&mut pmc, Configure, 5, WRITES), Ok(0));
    assert_eq!(simple(&mut pmc, IsRunning, 5, WRITES), Ok(0));
    assert_eq!(value(&mut pmc, 5, 0), Ok(0));
}

#[test]
fn bad_counters_events_flags_and_processes_are_refused() {
    let mut pmc = Pmc::default();
    let configure = |event, counter| Call {
        event,
        counter,
        ..Call::new(Function::Configure, 5, 0)
    };
    assert_eq!(call(&mut pmc, configure(3, 2)), Err(Errno::ENODEV));
    assert_eq!(call(&mut pmc, configure(99, 2)), Err(Errno::ENODEV));
    assert_eq!(call(&mut pmc, configure(2, 19)), Err(Errno::EINVAL));
    let missing = simple(&mut pmc, Function::Configure, 5, CYCLES);
    assert_eq!(missing, Err(Errno::ENODEV));
    start(&mut pmc, 5);
    for flags in [2, 3, u32::MAX] {
        assert_eq!(value(&mut pmc, 5, flags), Err(Errno::EINVAL));
    }
    for pid in [0, -1, -2, i32::MIN] {
        for function in Function::ALL {
            let refused = matches!(
                function,
                Function::Enable
                    | Function::Disable
                    | Function::IsRunning
                    | Function::IsConfigured
                    | Function::Configure
                    | Function::SaveContext
                    | Function::RestoreContext
                    | Function::Accumulate
                    | Function::Enabled
            );
            let result = simple(&mut Pmc::default(), function, pid, WRITES);
            let refused = refused || (function == Function::Value && pid != KERNEL);
            assert_eq!(refused, result == Err(Errno::EINVAL), "{function:?} {pid}");
        }
    }
    for counter in [-1, 19] {
        for function in [Function::IsRunning, Function::IsConfigured] {
            assert_eq!(call(&mut pmc, Call::new(function, 5, counter)), Ok(0));
        }
        for function in [Function::Enable, Function::Disable, Function::Value] {
            let refused = call(&mut pmc, Call::new(function, 5, counter));
            assert_eq!(refused, Err(Errno::EINVAL));
        }
    }
}

#[test]
fn a_saved_context_is_frozen_while_the_kernels_counters_run() {
    let mut pmc = Pmc::default();
    start(&mut pmc, 5);
    simple(&mut pmc, Function::AllocKernel, 0, TIME).unwrap();
    pmc.count(&counted(key(5), None, 3));
    simple(&mut pmc, Function::SaveContext, 5, WRITES).unwrap();
    pmc.count(&counted(key(5), None, 3));
    assert_eq!(value(&mut pmc, 5, 0), Ok(3));
    assert_eq!(pmc.wanted(), 0);
    let kernels = pmc.call(&of(Function::Value, KERNEL, TIME), &Host(50));
    assert_eq!(kernels.unwrap().value, 50);
    simple(&mut pmc, Function::RestoreContext, 5, WRITES).unwrap();
    pmc.count(&counted(key(5), None, 3));
    assert_eq!(value(&mut pmc, 5, 0), Ok(6));
    // A process without counters has nothing to save.
    assert_eq!(simple(&mut pmc, Function::SaveContext, 77, WRITES), Ok(0));
}

#[test]
fn upon_a_fork_enabled_counters_are_inherited_and_zeroed() {
    let mut pmc = Pmc::default();
    start(&mut pmc, 5);
    simple(&mut pmc, Function::Configure, 5, TIME).unwrap();
    pmc.count(&counted(key(5), None, 9));
    let late = ProcessKey {
        pid: 6,
        started: 2000,
    };
    pmc.count(&counted(late, Some(key(5)), 4));
    assert_eq!(value(&mut pmc, 6, 0), Err(Errno::ENXIO), "it started later");
    let value_of = |pmc: &mut Pmc, id| {
        let call = Call {
            time: 3000,
            ..of(Function::Value, 6, id)
        };
        pmc.call(&call, &Host(0)).map(|called| called.value)
    };
    assert_eq!(value_of(&mut pmc, WRITES), Ok(4));
    // It is configured in the parent, and not enabled.
    assert_eq!(value_of(&mut pmc, TIME), Err(Errno::ENXIO));
    assert_eq!(value(&mut pmc, 5, 0), Ok(9));
    // One that was forked before the counter was enabled.
    pmc.count(&counted(key(7), Some(key(5)), 4));
    assert_eq!(value(&mut pmc, 7, 0), Err(Errno::ENXIO));
    // A process of another user.
    pmc.count(&counted(key(9), Some(key(8)), 4));
    assert_eq!(value(&mut pmc, 9, 0), Err(Errno::ENXIO));
}

/// The kernel gives the children of an ended process to another one, which may have counters that their real parent hadn't.
#[test]
fn a_possible_orphan_inherits_only_what_the_whole_family_has() {
    let child = |pid| ProcessKey { pid, started: 2000 };
    let inherits = |pmc: &mut Pmc, pid| {
        pmc.count(&adopted(child(pid), key(5), 4));
        let is_it = pmc.processes().any(|(other, _)| other == pid);
        pmc.end(pid, Some(2000));
        is_it
    };
    let enabled = |has_forked| {
        let mut pmc = Pmc::default();
        start(&mut pmc, 5);
        pmc.diverge(&of(Function::Enable, 5, WRITES), has_forked);
        pmc.count(&counted(key(5), None, 1));
        pmc
    };
    // All processes that have lived since the call are its own, or inherited the same.
    assert!(inherits(&mut enabled(false), 6));
    // One that was forked before the call may be the parent of the adopted one.
    assert!(!inherits(&mut enabled(true), 6));
    let mut pmc = enabled(true);
    pmc.count(&counted(child(7), Some(key(5)), 1));
    assert!(pmc.processes().any(|(pid, _)| pid == 7), "its own child");
    // One of the family has turned its counters off since then.
    let mut pmc = enabled(false);
    pmc.count(&counted(child(7), Some(key(5)), 1));
    pmc.count(&counted(child(8), Some(child(7)), 1));
    assert!(inherits(&mut pmc, 6));
    let off = Call {
        time: 3000,
        ..of(Function::Disable, 8, WRITES)
    };
    call(&mut pmc, off).unwrap();
    pmc.diverge(&off, false);
    assert!(!inherits(&mut pmc, 6));
    // Other families don't matter.
    let mut pmc = enabled(false);
    start(&mut pmc, 9);
    pmc.diverge(&of(Function::Enable, 9, WRITES), true);
    assert!(inherits(&mut pmc, 6));
}

#[test]
fn the_counts_of_a_process_that_ends_go_to_its_parents_children() {
    let mut pmc = Pmc::default();
    start(&mut pmc, 5);
    pmc.count(&counted(key(5), None, 1));
    let [child, grandchild] =
        [(6, 2000), (7, 3000)].map(|(pid, started)| ProcessKey { pid, started });
    pmc.count(&counted(child, Some(key(5)), 10));
    pmc.count(&counted(grandchild, Some(child), 100));
    assert_eq!(pmc.processes().count(), 3);
    pmc.end(7, Some(3000));
    pmc.end(6, Some(2001));
    assert_eq!(value(&mut pmc, 5, VALUE_FLAGS_CHILDREN), Ok(0), "it lives");
    pmc.end(6, Some(2000));
    assert_eq!(value(&mut pmc, 5, VALUE_FLAGS_CHILDREN), Ok(110));
    assert_eq!(value(&mut pmc, 5, 0), Ok(1));
    pmc.end(6, Some(2000));
    assert_eq!(value(&mut pmc, 5, VALUE_FLAGS_CHILDREN), Ok(110));
}

#[test]
fn counts_can_be_accumulated_by_a_call() {
    let mut pmc = Pmc::default();
    start(&mut pmc, 5);
    start(&mut pmc, 6);
    pmc.count(&counted(key(6), None, 10));
    let accumulate = Call {
        parent: 5,
        ..of(Function::Accumulate, 6, WRITES)
    };
    assert_eq!(call(&mut pmc, accumulate), Ok(0));
    assert_eq!(value(&mut pmc, 5, VALUE_FLAGS_CHILDREN), Ok(10));
    assert_eq!(value(&mut pmc, 6, 0), Ok(0));
    // No counter is on there.
    for (pid, parent) in [(6, 99), (99, 5)] {
        let call_of = Call {
            pid,
            parent,
            ..accumulate
        };
        assert_eq!(call(&mut pmc, call_of), Ok(0));
    }
    assert_eq!(value(&mut pmc, 5, VALUE_FLAGS_CHILDREN), Ok(10));
}

#[test]
fn a_counter_of_the_kernel_isnt_available_to_processes() {
    let mut pmc = Pmc::default();
    use Function::{AllocKernel, Configure, Enable, Enabled, FreeKernel, IsConfigured, IsRunning};
    assert_eq!(simple(&mut pmc, FreeKernel, 0, WRITES), Err(Errno::ENXIO));
    assert_eq!(simple(&mut pmc, Enabled, 5, WRITES), Ok(0));
    assert_eq!(simple(&mut pmc, AllocKernel, 0, WRITES), Ok(0));
    assert_eq!(simple(&mut pmc, AllocKernel, 0, WRITES), Err(Errno::EBUSY));
    for function in [IsRunning, IsConfigured, Enabled] {
        assert_eq!(simple(&mut pmc, function, 5, WRITES), Ok(1), "{function:?}");
    }
    assert_eq!(simple(&mut pmc, Configure, 5, WRITES), Err(Errno::EBUSY));
    assert_eq!(simple(&mut pmc, Enable, 5, WRITES), Err(Errno::EBUSY));
    assert_eq!(pmc.kernel_counters().collect::<Vec<_>>(), [WRITES]);
    assert_eq!(simple(&mut pmc, FreeKernel, 0, WRITES), Ok(0));
    start(&mut pmc, 5);
    assert_eq!(simple(&mut pmc, AllocKernel, 0, WRITES), Err(Errno::EBUSY));
    assert_eq!(simple(&mut pmc, AllocKernel, 0, TIME), Ok(0));
}

#[test]
fn the_kernels_value_starts_at_its_allocation() {
    let mut pmc = Pmc::default();
    let read = |pmc: &mut Pmc, now| pmc.call(&of(Function::Value, KERNEL, TIME), &Host(now));
    assert_eq!(read(&mut pmc, 5), Err(Errno::ENXIO));
    let alloc = of(Function::AllocKernel, 0, TIME);
    pmc.call(&alloc, &Host(100)).unwrap();
    assert_eq!(read(&mut pmc, 130).unwrap().value, 30);
}

#[test]
fn profiling_takes_an_unused_counter() {
    let mut pmc = Pmc::default();
    use Function::{AllocKernel, FreeKernel, StartProfiling, StopProfiling};
    let start_with = |reset_value, id| Call {
        reset_value,
        ..of(StartProfiling, 0, id)
    };
    assert_eq!(
        simple(&mut pmc, StopProfiling, 0, WRITES),
        Err(Errno::ENXIO)
    );
    for reset_value in [0, 10_000_000_001, u64::MAX] {
        let refused = call(&mut pmc, start_with(reset_value, WRITES));
        assert_eq!(refused, Err(Errno::EINVAL));
    }
    assert_eq!(call(&mut pmc, start_with(99_999, TIME)), Err(Errno::EINVAL));
    let halts = start_with(1, CounterId::Halts);
    assert_eq!(call(&mut pmc, halts), Err(Errno::ENODEV));
    start(&mut pmc, 5);
    let busy = call(&mut pmc, start_with(10, WRITES));
    assert_eq!(busy, Err(Errno::EBUSY), "a process uses it");
    pmc.end(5, None);
    assert_eq!(call(&mut pmc, start_with(10, WRITES)), Ok(0));
    let event = SamplingEvent::new(EventKind::PortWrite, 10);
    assert!(event.is_some() && pmc.profiling() == event);
    let again = call(&mut pmc, start_with(10, WRITES));
    assert_eq!(again, Err(Errno::EINPROGRESS));
    assert_eq!(call(&mut pmc, start_with(100_000, TIME)), Err(Errno::EBUSY));
    assert_eq!(simple(&mut pmc, AllocKernel, 0, WRITES), Err(Errno::EBUSY));
    assert_eq!(simple(&mut pmc, FreeKernel, 0, WRITES), Err(Errno::EBUSY));
    assert_eq!(simple(&mut pmc, StopProfiling, 0, WRITES), Ok(0));
    assert_eq!(pmc.profiling(), None);
    start(&mut pmc, 5);
    // An allocated counter isn't available for profiling.
    assert_eq!(simple(&mut pmc, AllocKernel, 0, TIME), Ok(0));
    assert_eq!(simple(&mut pmc, StopProfiling, 0, TIME), Err(Errno::ENXIO));
}

#[test]
fn another_process_under_the_same_pid_has_no_counters() {
    let mut pmc = Pmc::default();
    start(&mut pmc, 5);
    pmc.count(&counted(key(5), None, 1));
    let later = ProcessKey {
        pid: 5,
        started: 5000,
    };
    pmc.count(&counted(later, None, 7));
    assert_eq!(pmc.processes().len(), 0);
    // The same if the first one was never sampled.
    start(&mut pmc, 5);
    pmc.count(&counted(later, None, 7));
    assert_eq!(value(&mut pmc, 5, 0), Err(Errno::ENXIO));
}

#[test]
fn no_more_than_1024_processes_have_counters() {
    let mut pmc = Pmc::default();
    for pid in 1..=1024 {
        start(&mut pmc, pid);
    }
    let full = simple(&mut pmc, Function::Configure, 1025, WRITES);
    assert_eq!(full, Err(Errno::ENOMEM));
    let child = ProcessKey {
        pid: 2000,
        started: 3000,
    };
    pmc.count(&counted(child, Some(key(5)), 1));
    assert_eq!(pmc.processes().len(), 1024);
    pmc.end(77, None);
    assert_eq!(simple(&mut pmc, Function::Configure, 1025, WRITES), Ok(0));
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
        let mut pmc = Pmc::default();
        let family = |index: i32| ProcessKey { pid: 10 + index, started: 2000 + u64::from(index.cast_unsigned()) };
        let root = Call { time: 2500, ..of(Function::Configure, 10, WRITES) };
        call(&mut pmc, root).unwrap();
        call(&mut pmc, Call { function: Function::Enable, time: 2000, ..root }).unwrap();
        let mut total = 0;
        let mut ended = [false; 6];
        pmc.count(&counted(family(0), None, 0));
        for (index, count, ends) in steps {
            let at = usize::try_from(index).unwrap();
            // A process whose parent has ended gets another one, and ended members stay ended.
            if ended[..=at].iter().any(|ended| *ended) {
                continue;
            }
            if ends && index > 0 {
                // Here, its children have ended before it.
                for later in (at..6).rev() {
                    let key = family(i32::try_from(later).unwrap());
                    pmc.end(key.pid, Some(key.started));
                    ended[later] = true;
                }
            } else {
                // Each generation is sampled after the previous one.
                for generation in 1..=index {
                    pmc.count(&counted(family(generation), Some(family(generation - 1)), 0));
                }
                let parent = (index > 0).then(|| family(index - 1));
                pmc.count(&counted(family(index), parent, count));
                total += count;
            }
        }
        for (pid, started) in pmc.processes().collect::<Vec<_>>().into_iter().rev() {
            if pid != 10 {
                pmc.end(pid, started);
            }
        }
        let mut read = |flags| {
            let call = Call { flags, time: 9000, ..of(Function::Value, 10, WRITES) };
            pmc.call(&call, &Host(0)).unwrap().value
        };
        prop_assert_eq!(read(0) + read(VALUE_FLAGS_CHILDREN), total);
    }
}
