//! profil(2) and pcsample(2), sentence by sentence: the pages of Solaris and of AIX.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, Range, State};
use kvmprof_devices::profiling::Profile;
use kvmprof_devices::profiling::profil::{Blocked, MAX_WAITING, ProcessMemory};

const TEXT: u64 = 0x40_0000;
const BUFFER: u64 = 0x7000_0000;
const PAGE: u64 = 4096;

/// A process's memory: all of it is writable except some pages.
#[derive(Default)]
struct Memory {
    bytes: BTreeMap<u64, u8>,
    absent: BTreeSet<u64>,
    faulting: BTreeSet<u64>,
}

impl Memory {
    fn check(&self, address: u64) -> Result<(), Blocked> {
        let page = address / PAGE;
        if self.faulting.contains(&page) {
            Err(Blocked::Fault)
        } else if self.absent.contains(&page) {
            Err(Blocked::NotYet)
        } else {
            Ok(())
        }
    }

    fn count(&self, slot: u64) -> u16 {
        let byte = |at| self.bytes.get(&(BUFFER + 2 * slot + at)).copied();
        u16::from_le_bytes([byte(0).unwrap_or_default(), byte(1).unwrap_or_default()])
    }

    fn sample(&self, index: u64) -> u64 {
        let byte = |at| self.bytes.get(&(BUFFER + 8 * index + at)).copied();
        u64::from_le_bytes(std::array::from_fn(|at| {
            byte(at as u64).unwrap_or_default()
        }))
    }

    fn set(&mut self, address: u64, bytes: &[u8]) {
        for (at, byte) in (address..).zip(bytes) {
            self.bytes.insert(at, *byte);
        }
    }
}

impl ProcessMemory for Memory {
    fn update_count(
        &mut self,
        address: u64,
        change: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<(), Blocked> {
        self.check(address)?;
        self.check(address + 1)?;
        if let Some(count) = change(self.count((address - BUFFER) / 2)) {
            self.set(address, &count.to_le_bytes());
        }
        Ok(())
    }

    fn store_word(&mut self, address: u64, word: u64) -> Result<(), Blocked> {
        self.check(address)?;
        self.check(address + 7)?;
        self.set(address, &word.to_le_bytes());
        Ok(())
    }
}

fn call(function: Function) -> Call {
    Call {
        buffer: BUFFER,
        offset: TEXT,
        ..Call::new(function, 1)
    }
}

fn profil(size: u64, scale: u32) -> Call {
    Call {
        size,
        scale,
        ..call(Function::Profil)
    }
}

fn aix(size: u64, scale: u32) -> Call {
    Call {
        function: Function::AixProfil,
        ..profil(size, scale)
    }
}

fn pcsample(samples: i64) -> Call {
    Call {
        size: samples.cast_unsigned(),
        ..call(Function::Pcsample)
    }
}

/// A profile after `call`.
fn after(call: &Call) -> Profile {
    let mut profile = Profile::default();
    assert_eq!(profile.call(call, &[]), Ok(0));
    profile
}

#[track_caller]
fn balances(profile: &Profile) {
    let status = profile.status();
    let parts = status.stored + status.outside + status.waiting + status.lost;
    assert_eq!(status.ticks, parts, "{status:?}");
}

#[test]
fn with_each_clock_tick_the_histogram_count_is_incremented() {
    let (mut profile, mut memory) = (after(&profil(64, 0x4000)), Memory::default());
    // 8 bytes of code for each count.
    for delta in [0, 7, 8, 9, 15, 248, 255] {
        profile.tick(TEXT + delta, &mut memory);
    }
    assert_eq!([0, 1, 2, 31].map(|slot| memory.count(slot)), [2, 3, 0, 2]);
    profile.tick(TEXT + 256, &mut memory);
    profile.tick(TEXT - 1, &mut memory);
    let status = profile.status();
    assert_eq!((status.stored, status.outside), (7, 2));
    balances(&profile);
}

#[test]
fn once_a_count_has_reached_32767_profiling_stops() {
    let (mut profile, mut memory) = (after(&profil(64, 0x4000)), Memory::default());
    memory.set(BUFFER, &32766_u16.to_le_bytes());
    profile.tick(TEXT, &mut memory);
    assert_eq!((memory.count(0), profile.is_on()), (32767, true));
    profile.tick(TEXT, &mut memory);
    profile.tick(TEXT + 8, &mut memory);
    assert_eq!([0, 1].map(|slot| memory.count(slot)), [32767, 0]);
    assert_eq!(profile.status().state, State::Saturated);
    balances(&profile);
}

#[test]
fn profiling_is_turned_off_by_a_scale_of_0_or_1() {
    for scale in [0, 1] {
        let (mut profile, mut memory) = (after(&profil(64, 0x4000)), Memory::default());
        assert_eq!(profile.call(&profil(64, scale), &[]), Ok(0));
        profile.tick(TEXT, &mut memory);
        assert_eq!((memory.count(0), profile.status().state), (0, State::Off));
    }
}

#[test]
fn a_buffer_of_0_bytes_renders_profiling_ineffective() {
    let (mut profile, mut memory) = (after(&profil(0, 2)), Memory::default());
    profile.tick(TEXT, &mut memory);
    assert!(memory.bytes.is_empty() && profile.is_on());
    // For AIX it turns nothing on, so that a later call can.
    let mut profile = after(&aix(0, 2));
    assert!(!profile.is_on());
    profile.call(&aix(64, 2), &[]).unwrap();
    assert!(profile.is_on());
}

#[test]
fn an_update_that_would_cause_a_fault_turns_profiling_off() {
    for on in [profil(64, 0x4000), aix(64, 0x4000), pcsample(8)] {
        let (mut profile, mut memory) = (after(&on), Memory::default());
        profile.tick(TEXT, &mut memory);
        memory.faulting.insert(BUFFER / PAGE);
        profile.tick(TEXT, &mut memory);
        memory.faulting.clear();
        profile.tick(TEXT, &mut memory);
        let status = profile.status();
        assert_eq!(status.state, State::Fault, "{on:?}");
        assert_eq!((status.ticks, status.stored, status.lost), (2, 1, 1));
    }
}

#[test]
fn pcsample_stores_program_counters_until_the_array_is_full() {
    let (mut profile, mut memory) = (after(&pcsample(3)), Memory::default());
    for pc in [u64::MAX, 7, TEXT, 9] {
        profile.tick(pc, &mut memory);
    }
    let samples = [0, 1, 2, 3].map(|index| memory.sample(index));
    assert_eq!(samples, [u64::MAX, 7, TEXT, 0]);
    assert_eq!(profile.status().state, State::Full);
    balances(&profile);
}

#[test]
fn pcsample_returns_what_the_previous_call_has_stored() {
    let mut profile = Profile::default();
    let mut memory = Memory::default();
    assert_eq!(profile.call(&pcsample(10), &[]), Ok(0));
    profile.tick(TEXT, &mut memory);
    profile.tick(TEXT, &mut memory);
    assert_eq!(profile.call(&pcsample(10), &[]), Ok(2));
    assert_eq!(profile.call(&pcsample(1), &[]), Ok(0));
    profile.tick(TEXT, &mut memory);
    profile.tick(TEXT, &mut memory);
    // Stopped by 0: the array was full before.
    assert_eq!(profile.call(&pcsample(0), &[]), Ok(1));
    assert_eq!(profile.call(&pcsample(0), &[]), Ok(0));
    assert_eq!(profile.status().state, State::Off);
}

#[test]
fn an_invalid_number_of_samples_is_einval_and_changes_nothing() {
    let (mut profile, mut memory) = (after(&pcsample(2)), Memory::default());
    profile.tick(TEXT, &mut memory);
    for samples in [-1, i64::MIN] {
        assert_eq!(profile.call(&pcsample(samples), &[]), Err(Errno::EINVAL));
    }
    profile.tick(TEXT + 1, &mut memory);
    assert_eq!(memory.sample(1), TEXT + 1);
}

#[test]
fn profil_and_pcsample_exclude_each_other() {
    let (mut profile, mut memory) = (after(&profil(64, 0x4000)), Memory::default());
    assert_eq!(profile.call(&pcsample(1), &[]), Ok(0));
    profile.tick(TEXT + 8, &mut memory);
    assert_eq!(memory.sample(0), TEXT + 8);
    assert_eq!(profile.call(&profil(64, 2), &[]), Ok(0));
    memory.bytes.clear();
    profile.tick(TEXT + 8, &mut memory);
    assert_eq!(memory.count(0), 1);
    assert_eq!(profile.call(&pcsample(0), &[]), Ok(0));
    assert!(!profile.is_on());
}

#[test]
fn both_continue_in_parent_and_child_after_fork() {
    for on in [profil(64, 2), aix(64, 2), pcsample(4)] {
        let (mut parent, mut memory) = (after(&on), Memory::default());
        parent.tick(TEXT, &mut memory);
        let mut child = parent.fork();
        let mut copy = Memory {
            bytes: memory.bytes.clone(),
            ..Memory::default()
        };
        parent.tick(TEXT, &mut memory);
        child.tick(TEXT, &mut copy);
        child.tick(TEXT, &mut copy);
        assert_eq!((parent.status().stored, child.status().stored), (2, 2));
        if on.function == Function::Pcsample {
            assert_eq!([1, 2].map(|at| copy.sample(at)), [TEXT, TEXT]);
            assert_eq!(memory.sample(2), 0);
            // The child's previous call was its parent's.
            assert_eq!(child.call(&pcsample(0), &[]), Ok(3));
        } else {
            assert_eq!((memory.count(0), copy.count(0)), (2, 3));
        }
    }
}

#[test]
fn a_child_of_a_process_with_a_full_array_has_its_number() {
    let (mut parent, mut memory) = (after(&pcsample(1)), Memory::default());
    parent.tick(TEXT, &mut memory);
    assert!(!parent.is_on() && parent.is_inherited());
    let mut child = parent.fork();
    child.tick(TEXT, &mut memory);
    assert_eq!((child.status().ticks, child.status().lost), (0, 0));
    assert_eq!(child.call(&pcsample(0), &[]), Ok(1));
    assert!(!child.is_inherited());
}

#[test]
fn an_aix_count_remains_at_its_maximum() {
    let (mut profile, mut memory) = (after(&aix(64, 2)), Memory::default());
    memory.set(BUFFER, &65534_u16.to_le_bytes());
    for _ in 0..3 {
        profile.tick(TEXT, &mut memory);
    }
    assert_eq!((memory.count(0), profile.is_on()), (65535, true));
    assert_eq!(profile.status().stored, 3);
}

#[test]
fn the_most_significant_16_bits_of_an_aix_scale_are_ignored() {
    let mut profile = after(&aix(64, 0xabcd_4000));
    let mut memory = Memory::default();
    profile.tick(TEXT + 8, &mut memory);
    assert_eq!(memory.count(1), 1);
    assert!(!after(&aix(64, 0xffff_0001)).is_on());
}

/// `n` ranges of 16 bytes, each with 4 counts of its own.
fn ranges(n: u64) -> Vec<Range> {
    (0..n)
        .map(|range| Range {
            low: TEXT + 0x100 * range,
            high: TEXT + 0x100 * range + 16,
            buffer: BUFFER + 8 * range,
            size: 8,
            scale: u32::MAX,
        })
        .collect()
}

#[test]
fn aix_ranges_have_their_own_counts_and_scales() {
    let on = call(Function::AixRanges);
    let mut profile = Profile::default();
    let mut all = ranges(3);
    all[1].scale = 2;
    assert_eq!(profile.call(&on, &all), Ok(0));
    let mut memory = Memory::default();
    // By the computed scale 4 bytes for each count, and odd offsets rounded up.
    for pc in [0, 4, 12, 0x100, 0x10f, 0x208, 16, 0x2ff] {
        profile.tick(TEXT + pc, &mut memory);
    }
    let slots = [0, 1, 2, 3, 4, 5, 8, 9, 10].map(|slot| memory.count(slot));
    assert_eq!(slots, [1, 1, 0, 1, 2, 0, 0, 0, 1]);
    assert_eq!(profile.status().outside, 2);
}

#[test]
fn aix_ranges_must_ascend_and_end_with_a_high_address_of_0() {
    let on = call(Function::AixRanges);
    let mut all = ranges(3);
    all.swap(0, 1);
    let mut profile = Profile::default();
    assert_eq!(profile.call(&on, &all), Err(Errno::EINVAL));
    // What follows the end is ignored.
    all[1].high = 0;
    assert_eq!(profile.call(&on, &all), Ok(0));
    assert!(profile.is_on());
    all[0].high = 0;
    assert_eq!(profile.call(&on, &all), Ok(0));
    assert!(!profile.is_on());
}

#[test]
fn aix_calls_that_change_nothing_are_ineffective() {
    let short_on = aix(64, 2);
    let short_off = aix(64, 0);
    let long = call(Function::AixRanges);
    let mut memory = Memory::default();
    let mut profile = after(&short_off);
    assert!(!profile.is_on(), "off while it is off");
    profile.call(&short_on, &[]).unwrap();
    profile.tick(TEXT, &mut memory);
    // On while it is on, by either form, and off by the other form.
    profile.call(&aix(64, 0x4000), &[]).unwrap();
    profile.call(&long, &ranges(1)).unwrap();
    profile.call(&long, &[]).unwrap();
    profile.call(&aix(0, 2), &[]).unwrap();
    profile.tick(TEXT + 8, &mut memory);
    assert_eq!((memory.count(0), profile.status().ticks), (2, 2));
    profile.call(&short_off, &[]).unwrap();
    assert!(!profile.is_on());
    profile.call(&long, &ranges(1)).unwrap();
    profile.call(&short_off, &[]).unwrap();
    assert!(profile.is_on());
    profile.call(&long, &[]).unwrap();
    assert!(!profile.is_on());
}

#[test]
fn a_store_waits_for_its_page() {
    for on in [profil(64, 0x4000), pcsample(8)] {
        let (mut profile, mut memory) = (after(&on), Memory::default());
        memory.absent.insert(BUFFER / PAGE);
        for delta in [0, 8, 0] {
            profile.tick(TEXT + delta, &mut memory);
        }
        assert_eq!(profile.status().waiting, 3);
        assert!(memory.bytes.is_empty());
        balances(&profile);
        memory.absent.clear();
        profile.tick(TEXT + 16, &mut memory);
        assert_eq!((profile.status().waiting, profile.status().stored), (0, 4));
        if on.function == Function::Pcsample {
            let samples = [0, 1, 2, 3].map(|index| memory.sample(index));
            assert_eq!(samples, [TEXT, TEXT + 8, TEXT, TEXT + 16]);
        } else {
            assert_eq!([0, 1, 2].map(|slot| memory.count(slot)), [2, 1, 1]);
        }
        balances(&profile);
    }
}

#[test]
fn waiting_stores_are_bounded_and_the_rest_is_counted() {
    let (mut profile, mut memory) = (after(&profil(64, 2)), Memory::default());
    memory.absent.insert(BUFFER / PAGE);
    for _ in 0..MAX_WAITING + 5 {
        profile.tick(TEXT, &mut memory);
    }
    let status = profile.status();
    assert_eq!((status.waiting, status.lost), (MAX_WAITING as u64, 5));
    balances(&profile);
    profile.stop(State::Ended);
    assert_eq!(profile.status().lost, MAX_WAITING as u64 + 5);
    balances(&profile);
}

#[test]
fn a_waiting_store_that_faults_turns_profiling_off() {
    let (mut profile, mut memory) = (after(&pcsample(8)), Memory::default());
    memory.absent.insert(BUFFER / PAGE);
    profile.tick(TEXT, &mut memory);
    memory.faulting.insert(BUFFER / PAGE);
    profile.tick(TEXT, &mut memory);
    assert_eq!(profile.status().state, State::Fault);
    assert_eq!((profile.status().ticks, profile.status().lost), (1, 1));
}
