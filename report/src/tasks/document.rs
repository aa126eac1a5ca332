//! The sums of looks as a JSON document.

use serde_json::{Value, json};

use super::{TaskSums, state_name, wait_rows};
use crate::budget::{OutputBudget, TooMuch};
use crate::symbolize::Resolver;

/// The document of `sums`, with the first `top` rows of waits.
///
/// # Errors
/// It doesn't fit into `budget`.
pub fn document(
    sums: &TaskSums,
    resolver: &Resolver,
    top: usize,
    budget: &OutputBudget,
) -> Result<Value, TooMuch> {
    let states = sums.states.iter();
    let states = states.map(|(state, seen)| {
        json!({ "state": state.letter().to_string(), "name": state_name(*state), "seen": seen })
    });
    let vcpus = sums.vcpus.iter().map(|(vcpu, queue)| {
        json!({
            "vcpu": vcpu,
            "waiting": queue.waiting,
            "most_waiting": queue.most,
            "looks_with_waiting": queue.looks,
            "looks_free": queue.free,
            "looks_free_while_waiting": queue.free_while_waiting,
            "run_delay_ns": queue.delay,
        })
    });
    let rows = wait_rows(sums, resolver);
    for row in rows.iter().take(top) {
        budget.take_row(row.functions.iter().map(|name| &**name), 1)?;
    }
    for _ in 0..sums.delays.len() + sums.free_waits.len() {
        budget.take_row([], 1)?;
    }
    let waits = rows.iter().take(top).map(|row| {
        json!({
            "state": row.state.letter().to_string(),
            "functions": row.functions.iter().map(AsRef::as_ref).collect::<Vec<&str>>(),
            "seen": row.seen,
            "tasks": row.tasks,
            "longest_ns": row.longest,
            "most": { "pid": row.most.pid, "tid": row.most.tid, "name": sums.name(row.most) },
        })
    });
    let delays = sums.delays.iter().map(|(thread, delay)| {
        json!({ "pid": thread.pid, "tid": thread.tid, "name": sums.name(*thread), "guest_ns": delay })
    });
    let free_waits = sums.free_waits.iter().map(|((thread, vcpu), wait)| {
        json!({
            "pid": thread.pid,
            "tid": thread.tid,
            "name": sums.name(*thread),
            "vcpu": vcpu,
            "looks": wait.looks,
            "looks_own_free": wait.own,
        })
    });
    Ok(json!({
        "looks": sums.looks,
        "looks_complete": sums.complete,
        "stood_still_ns": sums.duration,
        "stood_still_most_ns": sums.longest,
        "on_vcpu": sums.on_vcpu,
        "states": states.collect::<Vec<_>>(),
        "without_stack": sums.without_stack,
        "vcpus": vcpus.collect::<Vec<_>>(),
        "waits": waits.collect::<Vec<_>>(),
        "waits_left_out": rows.len().saturating_sub(top),
        "run_delays": delays.collect::<Vec<_>>(),
        "waits_while_free": free_waits.collect::<Vec<_>>(),
    }))
}
