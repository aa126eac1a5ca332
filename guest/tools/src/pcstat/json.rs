//! The report as JSON.

use serde_json::{Map, Value, json};

use super::profile::TYPES;
use super::{Profile, loss};
use kvmprof_abi::pcs::Format;

/// The version of the object's format. New members don't change it.
const SCHEMA: u32 = 1;

/// `profile` as a JSON object with at most `top` program counters. Unknown values are null; program counters are
/// hexadecimal strings.
pub fn to_json(profile: &Profile, top: usize) -> Value {
    let types = TYPES
        .iter()
        .map(|(kind, name)| ((*name).to_owned(), profile.tally.count(*kind).into()));
    json!({
        "schema": SCHEMA,
        "format": match profile.format {
            Format::Native => "native",
            Format::Classic => "classic",
        },
        "start": profile.start,
        "stop": profile.stop,
        "seconds": profile.span(),
        "hz": profile.pstat.map(|pstat| pstat.status.hz),
        "real_hz": profile.real_rate(),
        "vcpus": profile.pstat.map(|pstat| pstat.status.vcpus),
        "calls": profile.calls.iter().map(|call| json!({
            "command": call.command,
            "data": call.data,
        })).collect::<Vec<_>>(),
        "ledger": profile.pstat.map(|pstat| {
            let fields = pstat.status.ledger.fields().into_iter();
            fields
                .map(|(name, value)| (name.to_owned(), Value::from(value)))
                .collect::<Map<_, _>>()
        }),
        "hits": profile.tally.total(),
        "types": types.collect::<Map<_, _>>(),
        "processes": profile.ranked_processes().into_iter().map(|(pid, hits)| json!({
            "pid": pid,
            "name": profile.name(pid),
            "hits": hits.total(),
            "user": hits.user,
            "kernel": hits.kernel,
            "interrupt": hits.interrupt,
        })).collect::<Vec<_>>(),
        "program_counters": profile.ranked_program_counters(top).into_iter().map(|(counter, hits)| json!({
            "pc": format!("{:#x}", counter.pc),
            "hits": hits,
            "mode": counter.mode.name(),
            "pid": counter.pid,
        })).collect::<Vec<_>>(),
        "problems": profile.problems,
        "warnings": loss::warning(profile).into_iter().collect::<Vec<_>>(),
    })
}
