//! Tables of tick accounts, by function of the account.

use super::manual::{MS, ManualBackend, US, sampled, unsampled};
use crate::clock::ElapsedTicks;
use crate::clock::elapsed_ticks::{LATE_NS, REFRESH_RUN_DELAY_TICKS, TickAccount};

/// Asserts the account of this many ticks of a running vCPU, the last one late by this many ns. `delays` are the run delay and the tracer's, in ns;
/// `reads` is how often the run delay has to be read for that.
fn check(what: &str, ticks: u64, late: u64, delays: [u64; 2], expected: ElapsedTicks, reads: u32) {
    let [run_delay, tracer_delay] = delays;
    let mut backend = ManualBackend {
        run_delay,
        tracer_delay,
        ..ManualBackend::default()
    };
    let elapsed = TickAccount::default().explain(ticks, late, MS, &mut backend);
    assert_eq!((elapsed, backend.reads), (expected, reads), "{what}");
}

#[test]
fn a_single_tick_is_sampled_unless_it_fell_into_a_run_delay() {
    for (what, late, delays, stolen, reads) in [
        ("on time", 0, [0, 0], 0, 0),
        ("on time, whatever the delay", 0, [50 * MS; 2], 0, 0),
        ("just not late", LATE_NS - 1, [MS, 0], 0, 0),
        ("late without a delay", LATE_NS, [0, 0], 0, 1),
        (
            "it waited for less than half",
            200 * US,
            [100 * US - 1, 0],
            0,
            1,
        ),
        ("it waited for half of that", 200 * US, [100 * US, 0], 1, 1),
        ("it waited nearly a period", MS - 1, [MS - 1, 0], 1, 1),
        // The guest ran on its tick.
        ("because of the tracer", 900 * US, [0, 900 * US], 0, 1),
    ] {
        let expected = [sampled(0, 0, 0), unsampled(0, 1, 0)][stolen];
        check(what, 1, late, delays, expected, reads);
    }
}

#[test]
fn missed_ticks_are_stolen_up_to_the_run_delay() {
    let to_now = 3 * MS + 10 * US;
    for (what, delays, stolen) in [
        ("no delay", [0, 0], 0),
        ("less than half a tick", [MS / 2 - 1, 0], 0),
        ("half a tick", [MS / 2, 0], 1),
        ("a tick", [MS, 0], 1),
        ("a tick and a half", [3 * MS / 2, 0], 2),
        ("all that were missed", [3 * MS, 0], 3),
        ("it ends shortly before now", [to_now - 1, 0], 3),
        ("up to now", [to_now, 0], 4),
        ("more than there were", [500 * MS, 0], 4),
        ("the tracer's", [0, 2 * MS], 2),
        ("longer than the tracer's ticks", [0, 500 * MS], 3),
        ("two delays, both below a tick", [MS / 4; 2], 1),
        ("both", [MS, 2 * MS], 3),
    ] {
        let expected = match stolen {
            4 => unsampled(0, 4, 0),
            _ => sampled(0, stolen, 3 - stolen),
        };
        check(what, 4, 20 * US, delays, expected, 1);
    }
}

/// Reading it takes a system call, which a tick in time should avoid. But an unread run delay explains
/// ticks that are lost much later.
#[test]
fn the_run_delay_is_read_at_intervals() {
    let mut account = TickAccount::default();
    let mut backend = ManualBackend {
        run_delay: 3 * MS,
        tracer_delay: 3 * MS,
        ..ManualBackend::default()
    };
    for round in 1..=3 {
        for tick in 1..=REFRESH_RUN_DELAY_TICKS {
            assert_eq!(backend.reads, round - 1, "tick {tick}");
            assert_eq!(account.explain(1, 0, MS, &mut backend), sampled(0, 0, 0));
        }
        assert_eq!(backend.reads, round);
        assert_eq!((backend.run_delay, backend.tracer_delay), (0, 0));
    }
    assert_eq!(account.explain(3, 0, MS, &mut backend), sampled(0, 0, 2));
    // Those that read it, too.
    for _ in 1..REFRESH_RUN_DELAY_TICKS {
        account.explain(1, 0, MS, &mut backend);
    }
    assert_eq!(backend.reads, 4);
}

/// Each of calls one after the other has how many ticks, the growth of the run delay before that, and how many of the ticks are stolen.
#[test]
fn ticks_of_a_halted_vcpu_are_idle_except_for_run_delay() {
    let half = MS / 2;
    for (what, period, calls) in [
        ("no delay", MS, &[(0, 0, 0), (5, 0, 0)][..]),
        ("less than a tick", MS, &[(5, MS - 1, 0)]),
        ("a tick", MS, &[(5, MS, 1)]),
        ("two ticks and a bit", MS, &[(5, 3 * MS - 1, 2)]),
        ("more than there were", MS, &[(5, 50 * MS, 5)]),
        ("short waits add up", MS, &[(5, half, 0), (5, half, 1)]),
        ("the rest is kept", MS, &[(5, 3 * half, 1), (5, half, 1)]),
        ("nothing is explained twice", MS, &[(5, MS, 1), (5, 0, 0)]),
        (
            "a tick is kept",
            MS,
            &[(0, 50 * MS, 0), (5, 0, 1), (5, 0, 0)],
        ),
        ("another rate", 10 * MS, &[(5, 29 * MS, 2), (5, MS, 1)]),
    ] {
        let mut account = TickAccount::default();
        let mut backend = ManualBackend::default();
        for &(ticks, run_delay, stolen) in calls {
            backend.run_delay += run_delay;
            let elapsed = account.explain_halted(ticks, period, &mut backend);
            assert_eq!(elapsed, unsampled(ticks - stolen, stolen, 0), "{what}");
        }
    }
}

/// Missed ticks, the thread's run time since the halt and its run delay, in ns; the account of those
/// ticks.
#[test]
fn after_the_alarm_ticks_on_which_the_guest_ran_are_lost() {
    for (missed, run_time, run_delay, expected) in [
        (0, MS, 0, sampled(0, 0, 0)),
        (5, 0, 0, sampled(5, 0, 0)),
        (5, MS, 0, sampled(5, 0, 0)),
        (5, 2 * MS - 1, 0, sampled(5, 0, 0)),
        (5, 2 * MS, 0, sampled(4, 0, 1)),
        (5, 4 * MS, 0, sampled(2, 0, 3)),
        (5, 50 * MS, 0, sampled(0, 0, 5)),
        (5, MS, 2 * MS, sampled(3, 2, 0)),
        (5, 3 * MS, 2 * MS, sampled(1, 2, 2)),
        (5, 50 * MS, 2 * MS, sampled(0, 2, 3)),
        (5, 50 * MS, 50 * MS, sampled(0, 5, 0)),
        (0, 50 * MS, 50 * MS, sampled(0, 0, 0)),
    ] {
        let mut backend = ManualBackend {
            run_delay,
            ..ManualBackend::default()
        };
        let elapsed = TickAccount::default().explain_alarm(missed, run_time, MS, &mut backend);
        assert_eq!(elapsed, expected, "{missed} {run_time} {run_delay}");
    }
}
