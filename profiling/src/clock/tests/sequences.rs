//! The clock at given times, one interruption after the other.

use super::manual::{HZ, MS, ManualBackend, US, sampled, unsampled};
use crate::clock::{ElapsedTicks, VcpuClock};
use crate::signals;

/// A time in phase with the ticks, for the rates here.
const START: u64 = 7_000 * MS;

/// A clock on which only the timer runs, started at [`START`].
fn ticking() -> VcpuClock<ManualBackend> {
    started(false)
}

fn started(jitter: bool) -> VcpuClock<ManualBackend> {
    let mut clock = VcpuClock::with_backend(3, ManualBackend::default(), jitter);
    clock.restart(HZ, START + 10 * US);
    clock
}

/// A clock whose vCPU was halted on the tick at `START + MS`.
fn halted() -> VcpuClock<ManualBackend> {
    let mut clock = ticking();
    assert_eq!(kick(&mut clock, MS), Some(sampled(0, 0, 0)));
    clock.halt();
    assert!(clock.is_halted());
    clock
}

/// An interruption by the timer, this many ns after [`START`].
fn kick(clock: &mut VcpuClock<ManualBackend>, time: u64) -> Option<ElapsedTicks> {
    clock.on_interrupt(START + time, Some(signals::kick()))
}

/// An interruption by the alarm, this many ns after [`START`].
fn ring(clock: &mut VcpuClock<ManualBackend>, time: u64) -> Option<ElapsedTicks> {
    clock.on_interrupt(START + time, Some(signals::alarm()))
}

/// The timer's next signal after `time`, both in ns after [`START`].
fn next_signal(clock: &VcpuClock<ManualBackend>, time: u64) -> Option<u64> {
    let next = clock.backend.timer?.next_after(START + time)?;
    Some(next - START)
}

#[test]
fn ticks_in_a_run_delay_are_stolen() {
    let mut clock = ticking();
    assert_eq!(kick(&mut clock, MS), Some(sampled(0, 0, 0)));
    clock.backend.run_delay = 3 * MS;
    let elapsed = kick(&mut clock, 4 * MS + 500 * US);
    assert_eq!(elapsed, Some(unsampled(0, 3, 0)));
    assert_eq!(kick(&mut clock, 5 * MS), Some(sampled(0, 0, 0)));
    // Preempted after the second tick, and back before the fourth.
    clock.backend.run_delay = 2 * MS;
    assert_eq!(kick(&mut clock, 8 * MS + 50 * US), Some(sampled(0, 2, 0)));
    // The growth before the start of the clock doesn't count.
    clock.backend.run_delay = 9 * MS;
    clock.backend.tracer_delay = 9 * MS;
    clock.restart(HZ, START + 20 * MS);
    assert_eq!(kick(&mut clock, 23 * MS), Some(sampled(0, 0, 2)));
}

#[test]
fn ticks_of_a_halted_vcpu_cause_no_wakeup_and_are_idle() {
    let mut clock = halted();
    assert_eq!((clock.backend.timer, clock.backend.alarm), (None, Some(MS)));
    // Requests kick it.
    assert_eq!(kick(&mut clock, 50 * MS), None);
    assert_eq!(clock.on_interrupt(START + 60 * MS, None), None);
    clock.backend.run_time = MS;
    assert_eq!(ring(&mut clock, 101 * MS), Some(sampled(99, 0, 0)));
    assert!(!clock.is_halted());
    assert_eq!(next_signal(&clock, 101 * MS), Some(102 * MS));
    assert_eq!(kick(&mut clock, 102 * MS), Some(sampled(0, 0, 0)));
}

#[test]
fn a_halted_vcpus_account_is_brought_up_to_date_without_a_sample() {
    let mut clock = halted();
    assert_eq!(clock.account_halted(START + 2 * MS - 1), unsampled(0, 0, 0));
    assert_eq!(clock.account_halted(START + 11 * MS), unsampled(10, 0, 0));
    assert_eq!(clock.account_halted(START + 11 * MS), unsampled(0, 0, 0));
    // The guest has run for 0.4 ms since then, in which a tick was due: the alarm's sample is that tick's.
    clock.backend.run_time = 400 * US;
    let now = START + 21 * MS + 100 * US;
    assert_eq!(clock.account_halted(now), unsampled(9, 0, 0));
    clock.backend.run_time = MS;
    let elapsed = ring(&mut clock, 21 * MS + 700 * US);
    assert_eq!(elapsed, Some(sampled(0, 0, 0)));
    // It belongs to no function of a running vCPU.
    assert_eq!(clock.account_halted(START + 40 * MS), unsampled(0, 0, 0));
    assert_eq!(kick(&mut clock, 22 * MS), Some(sampled(0, 0, 0)));
}

#[test]
fn ticks_of_a_halted_vcpu_in_a_run_delay_are_stolen() {
    let mut clock = halted();
    clock.backend.run_delay = 3 * MS;
    assert_eq!(clock.account_halted(START + 11 * MS), unsampled(7, 3, 0));
    clock.backend.run_time = MS;
    clock.backend.run_delay = 2 * MS;
    assert_eq!(ring(&mut clock, 21 * MS), Some(sampled(7, 2, 0)));
    // Its run delay before the halt steals none of its ticks.
    assert_eq!(kick(&mut clock, 22 * MS), Some(sampled(0, 0, 0)));
    clock.backend.run_delay = 4 * MS;
    clock.halt();
    assert_eq!(clock.account_halted(START + 30 * MS), unsampled(8, 0, 0));
}

#[test]
fn a_late_alarm_loses_the_ticks_on_which_the_guest_ran() {
    let mut clock = halted();
    clock.backend.run_time = 6 * MS;
    clock.backend.run_delay = MS;
    assert_eq!(ring(&mut clock, 21 * MS), Some(sampled(13, 1, 5)));
    // Late again while it runs.
    clock.backend.run_delay = 2 * MS;
    assert_eq!(kick(&mut clock, 25 * MS), Some(sampled(0, 2, 1)));
}

/// If a sample takes longer than a period, the guest would not run between two of them.
#[test]
fn a_signal_is_put_off_where_samples_take_longer_than_a_period() {
    let mut clock = ticking();
    assert_eq!(kick(&mut clock, MS), Some(sampled(0, 0, 0)));
    // That sample took 3.5 ms: the signal of the second tick is overdue by 2.5 ms.
    let elapsed = kick(&mut clock, 4 * MS + 500 * US);
    assert_eq!(elapsed, Some(sampled(0, 0, 2)));
    // 5 ms more, and up to the next tick.
    assert_eq!(next_signal(&clock, 4 * MS + 500 * US), Some(10 * MS));
    // That signal is overdue by less than a period, and the postponed ticks are lost; then all continues as
    // usual.
    let now = 10 * MS + 600 * US;
    assert_eq!(kick(&mut clock, now), Some(sampled(0, 0, 5)));
    assert_eq!(next_signal(&clock, now), Some(11 * MS));
    assert_eq!(kick(&mut clock, 11 * MS), Some(sampled(0, 0, 0)));
}

#[test]
fn a_signal_is_not_put_off_for_ticks_that_were_stolen() {
    let mut clock = ticking();
    clock.backend.run_delay = 10 * MS;
    assert_eq!(kick(&mut clock, 10 * MS), Some(unsampled(0, 10, 0)));
    assert_eq!(next_signal(&clock, 10 * MS), Some(11 * MS));
    // Nor for a sample that takes less than a period.
    assert_eq!(kick(&mut clock, 11 * MS + 900 * US), Some(sampled(0, 0, 0)));
    assert_eq!(next_signal(&clock, 11 * MS + 900 * US), Some(12 * MS));
    // One that takes just as long as a period is too slow.
    assert_eq!(kick(&mut clock, 13 * MS), Some(sampled(0, 0, 1)));
    assert_eq!(next_signal(&clock, 13 * MS), Some(15 * MS));
}

#[test]
fn with_jitter_each_tick_has_a_signal_of_its_own() {
    let mut clock = started(true);
    let mut before = START;
    for _ in 0..1_000 {
        let timer = clock.backend.timer.unwrap();
        assert_eq!(timer.period, None);
        assert!((MS / 2..=3 * MS / 2).contains(&(timer.first - before)));
        before = timer.first;
        assert_eq!(clock.on_interrupt(before - 1, None), None);
        assert_eq!(clock.on_interrupt(before, None), Some(sampled(0, 0, 0)));
    }
    // It is put off, too, but not to a tick.
    let due = clock.backend.timer.unwrap().first;
    let late = due + 10 * MS;
    let elapsed = clock.on_interrupt(late, None).unwrap();
    assert!(elapsed.lost > 5 && elapsed.sample, "{elapsed:?}");
    let timer = clock.backend.timer.unwrap();
    assert_eq!(timer.first, late + 2 * (late - due));
}
