//! Tables of tick accounts, by function of the account.

use super::manual::{MS, ManualBackend, US, sampled, unsampled};
use crate::clock::ElapsedTicks;
use crate::clock::elapsed_ticks::{LATE_NS, REFRESH_RUN_DELAY_TICKS, TickAccount};

/// Ticks of a running vCPU, and the host's times, in ns; the period is 1 ms.
struct Running {
    what: &'static str,
    ticks: u64,
    late: u64,
    run_delay: u64,
    tracer_delay: u64,
    expected: ElapsedTicks,
    // Whether the run delay must be read for that.
    reads: bool,
}

const NONE: Running = Running {
    what: "",
    ticks: 1,
    late: 0,
    run_delay: 0,
    tracer_delay: 0,
    expected: ElapsedTicks {
        idle: 0,
        stolen: 0,
        lost: 0,
        sample: true,
    },
    reads: true,
};

fn check(table: &[Running]) {
    for row in table {
        let mut backend = ManualBackend {
            run_delay: row.run_delay,
            tracer_delay: row.tracer_delay,
            ..ManualBackend::default()
        };
        let elapsed = TickAccount::default().explain(row.ticks, row.late, MS, &mut backend);
        assert_eq!(elapsed, row.expected, "{}", row.what);
        assert_eq!(backend.reads, u32::from(row.reads), "{}", row.what);
    }
}

#[test]
fn a_single_tick_is_sampled_unless_it_fell_into_a_run_delay() {
    check(&[
        Running {
            what: "on time",
            reads: false,
            ..NONE
        },
        Running {
            what: "on time, whatever the delay: it is not read",
            run_delay: 50 * MS,
            tracer_delay: 50 * MS,
            reads: false,
            ..NONE
        },
        Running {
            what: "just not late",
            late: LATE_NS - 1,
            run_delay: MS,
            reads: false,
            ..NONE
        },
        Running {
            what: "late without a delay",
            late: LATE_NS,
            ..NONE
        },
        Running {
            what: "late, but for less than half of that it waited",
            late: 200 * US,
            run_delay: 100 * US - 1,
            ..NONE
        },
        Running {
            what: "late, and for half of that it waited",
            late: 200 * US,
            run_delay: 100 * US,
            expected: unsampled(0, 1, 0),
            ..NONE
        },
        Running {
            what: "late by nearly a period, all of it waited",
            late: MS - 1,
            run_delay: MS - 1,
            expected: unsampled(0, 1, 0),
            ..NONE
        },
        Running {
            what: "late because of the tracer: the guest ran on its tick",
            late: 900 * US,
            tracer_delay: 900 * US,
            ..NONE
        },
    ]);
}

#[test]
fn missed_ticks_are_stolen_up_to_the_run_delay() {
    let missed = |what, run_delay, tracer_delay, expected| Running {
        what,
        ticks: 4,
        late: 20 * US,
        run_delay,
        tracer_delay,
        expected,
        ..NONE
    };
    check(&[
        missed("no delay", 0, 0, sampled(0, 0, 3)),
        missed("less than half a tick", MS / 2 - 1, 0, sampled(0, 0, 3)),
        missed("half a tick", MS / 2, 0, sampled(0, 1, 2)),
        missed("a tick", MS, 0, sampled(0, 1, 2)),
        missed("a tick and a half", 3 * MS / 2, 0, sampled(0, 2, 1)),
        missed("all that were missed", 3 * MS, 0, sampled(0, 3, 0)),
        missed(
            "it ends shortly before now",
            3 * MS + 10 * US - 1,
            0,
            sampled(0, 3, 0),
        ),
        missed("up to now", 3 * MS + 10 * US, 0, unsampled(0, 4, 0)),
        missed("more than there were", 500 * MS, 0, unsampled(0, 4, 0)),
        missed("the tracer's", 0, 2 * MS, sampled(0, 2, 1)),
        missed(
            "longer than the tracer's ticks",
            0,
            500 * MS,
            sampled(0, 3, 0),
        ),
        missed(
            "two delays, both below a tick",
            MS / 4,
            MS / 4,
            sampled(0, 1, 2),
        ),
        missed("both", MS, 2 * MS, sampled(0, 3, 0)),
    ]);
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

#[test]
fn a_run_delay_is_charged_once() {
    let mut account = TickAccount::default();
    let mut backend = ManualBackend {
        run_delay: 2 * MS,
        ..ManualBackend::default()
    };
    assert_eq!(account.explain(3, 0, MS, &mut backend), unsampled(0, 3, 0));
    assert_eq!(account.explain(3, 0, MS, &mut backend), sampled(0, 0, 2));
    backend.tracer_delay = 2 * MS;
    assert_eq!(account.explain(3, 0, MS, &mut backend), sampled(0, 2, 0));
    assert_eq!(account.explain(3, 0, MS, &mut backend), sampled(0, 0, 2));
}

/// Calls one after the other: how many ticks, the growth of the run delay before that, and how many of
/// the ticks are stolen.
fn check_halted(what: &str, period: u64, calls: &[(u64, u64, u64)]) {
    let mut account = TickAccount::default();
    let mut backend = ManualBackend::default();
    for (index, &(ticks, run_delay, stolen)) in calls.iter().enumerate() {
        backend.run_delay += run_delay;
        let elapsed = account.explain_halted(ticks, period, &mut backend);
        let expected = unsampled(ticks - stolen, stolen, 0);
        assert_eq!(elapsed, expected, "{what}, call {index}");
    }
}

#[test]
fn ticks_of_a_halted_vcpu_are_idle_except_for_run_delay() {
    check_halted("no delay", MS, &[(0, 0, 0), (5, 0, 0)]);
    check_halted("less than a tick", MS, &[(5, MS - 1, 0)]);
    check_halted("a tick", MS, &[(5, MS, 1)]);
    check_halted("two ticks and a bit", MS, &[(5, 3 * MS - 1, 2)]);
    check_halted("more than there were", MS, &[(5, 50 * MS, 5)]);
    check_halted("short waits add up", MS, &[(5, MS / 2, 0), (5, MS / 2, 1)]);
    check_halted(
        "the rest is kept",
        MS,
        &[(5, 3 * MS / 2, 1), (5, MS / 2, 1)],
    );
    check_halted("nothing is explained twice", MS, &[(5, MS, 1), (5, 0, 0)]);
    check_halted(
        "no more than a tick is kept",
        MS,
        &[(0, 50 * MS, 0), (5, 0, 1), (5, 0, 0)],
    );
    check_halted("another rate", 10 * MS, &[(5, 29 * MS, 2), (5, MS, 1)]);
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
