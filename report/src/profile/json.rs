//! The report as a document.

use serde_json::{Value, json};

use super::{Profile, Share, SortBy, functions};

/// All of `profile`: what it is about, the account, processes and functions.
pub fn document(profile: &Profile, sort: SortBy, top: usize) -> Value {
    let whole = profile.samples();
    let share = |count| {
        let share = Share::of(count, whole);
        json!({ "value": share.value, "low": share.low, "high": share.high })
    };
    let processes = profile.processes.iter().map(|(pid, process)| {
        let [user, kernel, interrupt, idle] = process.modes;
        json!({
            "pid": pid,
            "name": process.name,
            "samples": process.samples(),
            "share": share(process.samples()),
            "user": user,
            "kernel": kernel,
            "interrupt": interrupt,
            "idle": idle,
        })
    });
    let functions = functions(profile, sort)
        .into_iter()
        .take(top)
        .map(|function| {
            json!({
                "name": function.name,
                "kernel": function.is_kernel,
                "self": function.own,
                "self_share": share(function.own),
                "total": function.total,
                "total_share": share(function.total),
            })
        });
    json!({
        "facts": profile.contents.facts,
        "account": profile.contents.account,
        "complete": profile.contents.closed.is_some(),
        "bytes_cut_off": profile.contents.cut_off,
        "samples": whole,
        "processes": processes.collect::<Vec<_>>(),
        "functions": functions.collect::<Vec<_>>(),
    })
}
