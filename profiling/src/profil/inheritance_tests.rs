//! Calls and ticks of processes that have inherited profiles.

use std::sync::{Arc, Mutex};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, State};
use kvmprof_devices::profiling::profil::{Blocked, ProcessMemory};
use kvmprof_introspection::{ListedProcess, ProcessInstance, ProcessOrigin};

use super::{Account, MAX_PROCESSES, ProfiledProcess, ProfiledProcesses};

const PROGRAM: [u8; 16] = [3; 16];
/// The parent, which starts at 5 and calls from 10 on, and its child, which starts at 20.
const PARENT: i32 = 7;
const CHILD: i32 = 8;

/// The memory of a process, all of it writable, or none.
struct Memory(Result<(), Blocked>);

impl ProcessMemory for Memory {
    fn update_count(
        &mut self,
        _address: u64,
        change: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<(), Blocked> {
        change(0);
        self.0
    }

    fn store_word(&mut self, _address: u64, _word: u64) -> Result<(), Blocked> {
        self.0
    }
}

fn instance(pid: i32, started: u64) -> ProcessInstance {
    let mut instance = ProcessInstance::from_pid(pid);
    (instance.started, instance.programs) = (started, 1);
    instance
}

fn listed(pid: i32, started: u64, parent: ProcessInstance) -> ListedProcess {
    ListedProcess {
        process: instance(pid, started),
        parent,
        may_be_adopted: false,
        shares_memory: false,
    }
}

fn init() -> ProcessInstance {
    instance(1, 1)
}

fn parent() -> ListedProcess {
    listed(PARENT, 5, init())
}

fn child() -> ListedProcess {
    listed(CHILD, 20, instance(PARENT, 5))
}

/// A call of process `pid` at `time`.
fn call(function: Function, pid: i32, time: u64) -> Call {
    Call {
        buffer: 0x1000,
        time,
        program: PROGRAM,
        ..Call::new(function, pid)
    }
}

fn pcsample(pid: i32, time: u64, samples: u64) -> Call {
    Call {
        size: samples,
        ..call(Function::Pcsample, pid, time)
    }
}

/// A call of AIX's function that turns on, or off.
fn aix(pid: i32, time: u64, buffer: u64) -> Call {
    Call {
        buffer,
        size: 64,
        scale: if buffer == 0 { 0 } else { 0x4000 },
        ..call(Function::AixProfil, pid, time)
    }
}

/// Processes of which the parent has turned on pcsample, and has stored 3 samples.
fn sampled() -> ProfiledProcesses {
    let processes = ProfiledProcesses::default();
    let begun = processes.call(&pcsample(PARENT, 10, 5), &[], Some(&[parent()]));
    assert_eq!(begun, Ok(0));
    ticks(&processes, PARENT, 3);
    processes
}

fn ticks(processes: &ProfiledProcesses, pid: i32, number: u32) {
    for _ in 0..number {
        let process = processes.newest(pid).unwrap();
        process.account().profile.tick(4, &mut Memory(Ok(())));
    }
}

/// The profile that a tick finds for a process that isn't in its list.
fn met(processes: &ProfiledProcesses, one: &ListedProcess) -> Option<Arc<ProfiledProcess>> {
    let origin = ProcessOrigin {
        program: PROGRAM,
        parent: one.parent,
        may_be_adopted: one.may_be_adopted,
        shares_memory: one.shares_memory,
    };
    processes.find_forked(&processes.current(), &one.process, &origin)
}

fn is_on(process: &Arc<ProfiledProcess>) -> bool {
    process.account().profile.is_on()
}

#[test]
fn a_call_before_any_tick_finds_the_inherited_profile() {
    let processes = sampled();
    let all = [parent(), child()];
    // The number of samples that its parent had stored.
    let off = processes.call(&pcsample(CHILD, 25, 0), &[], Some(&all));
    assert_eq!(off, Ok(3));
    assert!(!is_on(&met(&processes, &child()).unwrap()), "a later tick");
    assert!(is_on(&processes.newest(PARENT).unwrap()));
    // Without the list, its inheritance is unknown.
    let processes = sampled();
    let off = processes.call(&pcsample(CHILD, 25, 0), &[], None);
    assert_eq!(off, Ok(0));
    assert!(!is_on(&met(&processes, &child()).unwrap()));
    // A process that isn't profiled needs no entry.
    let other = listed(9, 22, init());
    let off = processes.call(&pcsample(9, 25, 0), &[], Some(&[parent(), other]));
    assert_eq!((off, processes.newest(9).is_none()), (Ok(0), true));
}

#[test]
fn on_aix_the_inherited_buffer_is_on_until_it_is_turned_off() {
    let processes = ProfiledProcesses::default();
    let all = [parent(), child()];
    let call = |call: &Call| processes.call(call, &[], Some(&all)).unwrap();
    call(&aix(PARENT, 10, 0x1000));
    let status = || processes.status(CHILD).unwrap();
    call(&aix(CHILD, 25, 0x2000));
    ticks(&processes, CHILD, 2);
    assert_eq!((status().state, status().stored), (State::On, 2));
    // It had no effect: an account begins with a buffer.
    call(&aix(CHILD, 26, 0x2000));
    assert_eq!(status().stored, 2);
    call(&aix(CHILD, 27, 0));
    assert_eq!(status().state, State::Off);
    call(&aix(CHILD, 28, 0x2000));
    assert_eq!((status().state, status().stored), (State::On, 0));
}

#[test]
fn later_calls_of_a_parent_do_not_affect_its_child() {
    for (samples, state) in [(0, State::Off), (9, State::On)] {
        let processes = sampled();
        let late = listed(9, 40, instance(PARENT, 5));
        let begun = processes.call(
            &pcsample(PARENT, 30, samples),
            &[],
            Some(&[parent(), child()]),
        );
        assert_eq!(begun, Ok(3));
        assert_eq!(processes.status(PARENT).unwrap().state, state);
        // 2 of its 5 elements are left.
        ticks(&processes, CHILD, 2);
        assert_eq!(processes.status(CHILD).unwrap().state, State::Full);
        assert_eq!(met(&processes, &late).is_some(), samples > 0);
        // One missing in the list that was forked before.
        let missed = listed(10, 25, instance(PARENT, 5));
        assert!(met(&processes, &missed).is_none());
    }
}

#[test]
fn a_grandchild_inherits_without_ticks_of_its_parent() {
    let processes = sampled();
    let grandchild = listed(9, 30, child().process);
    let all = [parent(), child(), grandchild];
    assert_eq!(processes.call(&pcsample(9, 35, 0), &[], Some(&all)), Ok(3));
    assert!(is_on(&processes.newest(CHILD).unwrap()));
    // Its parent has ended, and init has adopted it: nothing was inherited, and nothing will be.
    let processes = sampled();
    let orphan = listed(9, 30, init());
    let all = [parent(), orphan];
    assert_eq!(processes.call(&pcsample(9, 35, 0), &[], Some(&all)), Ok(0));
    assert!(met(&processes, &orphan).is_none());
}

#[test]
fn a_child_does_not_inherit_a_stopped_profile() {
    let processes = sampled();
    let fault = &mut Memory(Err(Blocked::Fault));
    processes
        .newest(PARENT)
        .unwrap()
        .account()
        .profile
        .tick(4, fault);
    assert_eq!(processes.status(PARENT).unwrap().state, State::Fault);
    // The memory at that address may differ in the child.
    assert!(met(&processes, &child()).is_none());
    processes
        .newest(PARENT)
        .unwrap()
        .account()
        .end(State::Ended);
    assert!(met(&processes, &child()).is_none());
    // Of a full array it has the number.
    let processes = sampled();
    ticks(&processes, PARENT, 2);
    let all = [parent(), child()];
    assert_eq!(
        processes.call(&pcsample(CHILD, 25, 0), &[], Some(&all)),
        Ok(5)
    );
}

#[test]
fn an_executed_program_inherits_no_profile() {
    let processes = sampled();
    let mut executed = child();
    executed.process.programs += 1;
    let all = [parent(), executed];
    assert_eq!(
        processes.call(&pcsample(CHILD, 25, 0), &[], Some(&all)),
        Ok(0)
    );
    assert!(met(&processes, &executed).is_none());
    // The parent's program ends, and the child's continues.
    let mut other = parent();
    other.process.programs += 1;
    let caller = Call {
        program: [4; 16],
        ..pcsample(PARENT, 30, 9)
    };
    assert_eq!(processes.call(&caller, &[], Some(&[other, child()])), Ok(0));
    assert!(is_on(&processes.newest(CHILD).unwrap()));
}

#[test]
fn a_possible_orphan_inherits_only_what_the_whole_family_has() {
    let adopted = |pid, started| ListedProcess {
        may_be_adopted: true,
        ..listed(pid, started, instance(PARENT, 5))
    };
    // All descendants were forked while it was on.
    assert!(met(&sampled(), &adopted(CHILD, 20)).is_some());
    // One of them has turned it off, and may be the parent.
    let processes = sampled();
    processes
        .call(&pcsample(9, 16, 0), &[], Some(&[parent(), adopted(9, 15)]))
        .unwrap();
    assert!(met(&processes, &adopted(CHILD, 20)).is_none());
    assert!(met(&processes, &child()).is_some());
    // One was forked before.
    let processes = ProfiledProcesses::default();
    let all = [parent(), adopted(9, 8)];
    processes
        .call(&pcsample(PARENT, 10, 5), &[], Some(&all))
        .unwrap();
    assert!(met(&processes, &adopted(CHILD, 20)).is_none());
}

/// As after vfork(2): its samples are stored in its parent's memory, and the parent may free it.
#[test]
fn a_child_in_its_parents_memory_has_its_parents_profile() {
    let processes = sampled();
    let vforked = ListedProcess {
        shares_memory: true,
        ..child()
    };
    let parents = processes.newest(PARENT).unwrap();
    assert!(Arc::ptr_eq(&parents, &met(&processes, &vforked).unwrap()));
    let all = [parent(), vforked];
    processes
        .call(&pcsample(PARENT, 30, 0), &[], Some(&all))
        .unwrap();
    assert!(met(&processes, &vforked).is_none_or(|process| !is_on(&process)));
    // Its own call applies to itself only.
    let processes = sampled();
    processes
        .call(&pcsample(CHILD, 30, 0), &[], Some(&all))
        .unwrap();
    assert!(!is_on(&met(&processes, &vforked).unwrap()));
    assert!(is_on(&processes.newest(PARENT).unwrap()));
}

#[test]
fn processes_missing_from_the_list_twice_have_ended() {
    let processes = sampled();
    for (time, state) in [(50, State::On), (60, State::Ended)] {
        processes
            .call(&pcsample(1, time, 0), &[], Some(&[listed(1, 1, init())]))
            .unwrap();
        assert_eq!(processes.status(PARENT).unwrap().state, state);
    }
    // Another process has the pid.
    let processes = sampled();
    processes
        .call(
            &pcsample(PARENT, 50, 0),
            &[],
            Some(&[listed(PARENT, 40, init())]),
        )
        .unwrap();
    assert_eq!(processes.status(PARENT).unwrap().state, State::Ended);
}

/// As many children as there is room for beside their parent, all of which have turned off what they had inherited. Returns all processes.
fn full() -> (ProfiledProcesses, Vec<ListedProcess>) {
    let processes = sampled();
    let children = (0..).map(|n| listed(100 + n, 20, instance(PARENT, 5)));
    let mut all = vec![parent()];
    all.extend(children.take(MAX_PROCESSES - 1));
    for one in &all[1..] {
        processes
            .call(&pcsample(one.process.pid, 30, 0), &[], Some(&all))
            .unwrap();
    }
    (processes, all)
}

/// A profile that its process has turned off must not be forgotten: a tick would give the process its parent's.
#[test]
fn only_unneeded_profiles_are_evicted() {
    let (processes, mut all) = full();
    let other = listed(50, 6, init());
    all.push(other);
    let on = pcsample(50, 40, 5);
    assert_eq!(processes.call(&on, &[], Some(&all)), Err(Errno::ENOSPC));
    processes.newest(100).unwrap().account().end(State::Ended);
    assert_eq!(processes.call(&on, &[], Some(&all)), Ok(0));
    assert!(!is_on(&met(&processes, &all[2]).unwrap()));
}

/// The process may have freed its array by the time that there is room.
#[test]
fn a_call_without_room_turns_off_what_was_inherited() {
    for is_listed in [true, false] {
        let (processes, mut all) = full();
        all.push(child());
        let all = is_listed.then_some(&all[..]);
        let off = processes.call(&pcsample(CHILD, 25, 0), &[], all);
        assert_eq!(off, Ok(0));
        processes.newest(100).unwrap().account().end(State::Ended);
        assert!(met(&processes, &child()).is_none(), "{is_listed}");
        let later = listed(9, 26, instance(PARENT, 5));
        assert!(is_on(&met(&processes, &later).unwrap()));
    }
}

/// Ticks on two vCPUs may find the same process at once, and a call may come between.
#[test]
fn each_process_has_one_profile() {
    let processes = sampled();
    let first = met(&processes, &child()).unwrap();
    assert!(Arc::ptr_eq(&first, &met(&processes, &child()).unwrap()));
    let another = ProfiledProcess {
        pid: CHILD,
        program: PROGRAM,
        account: Mutex::new(Account::new(None, 0)),
    };
    assert!(Arc::ptr_eq(
        &first,
        &processes.add(Arc::new(another)).unwrap()
    ));
    assert_eq!(processes.current().len(), 2);
}
