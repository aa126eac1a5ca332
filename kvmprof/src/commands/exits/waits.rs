//! Who took the vCPUs' time: what ran on the host's processors while they waited for one, and the interrupts of those that they had.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use kvmprof_abi::text::task_name;
use kvmprof_cli::table::{Align, percent};
use kvmprof_recording::exits::{Exits, InterruptKind, OfInterrupt, OfThread, OfWait};
use serde_json::{Value, json};

use super::Part;
use super::tables::{MAX_NAME, duration, shortened, unknown, write_part};

/// The time of all vCPUs' waits.
pub fn sum(part: &Part<'_>) -> Exits {
    let mut sum = Exits::default();
    for thread in &part.interval.counts.threads {
        sum.add(thread.waits);
    }
    sum
}

/// The time of all interrupts of processors that vCPUs had.
pub fn interrupts(part: &Part<'_>) -> Exits {
    let mut sum = Exits::default();
    for one in &part.interval.counts.interrupts {
        sum.add(one.time);
    }
    sum
}

/// The interrupts of the processors that `thread` had.
fn interrupts_of<'a>(
    part: &'a Part<'_>,
    thread: &OfThread,
) -> impl Iterator<Item = &'a OfInterrupt> {
    let thread = thread.thread;
    let interrupts = part.interval.counts.interrupts.iter();
    interrupts.filter(move |one| one.thread == thread && one.time.count > 0)
}

/// What ran while `thread` waited.
fn others<'a>(part: &'a Part<'_>, thread: &OfThread) -> impl Iterator<Item = &'a OfWait> {
    let thread = thread.thread;
    let others = part.interval.counts.waits.iter();
    others.filter(move |one| one.thread == thread && one.turns.count > 0)
}

/// A table of what ran, and of interrupts, by vCPU: the share is that of the vCPU's time.
pub fn write(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let mut rows: BTreeMap<(u32, String, Option<u32>), Exits> = BTreeMap::new();
    for thread in &part.interval.counts.threads {
        let mut known = 0_u64;
        for other in others(part, thread) {
            known = known.saturating_add(other.turns.time);
            let label = part.interval.taker(other);
            let key = (thread.vcpu, label, Some(other.other_process));
            rows.entry(key).or_default().add(other.turns);
        }
        let rest = Exits {
            count: 0,
            time: thread.waits.time.saturating_sub(known),
        };
        if rest.time > 0 {
            let key = (thread.vcpu, unknown(), None);
            rows.entry(key).or_default().add(rest);
        }
        for one in interrupts_of(part, thread) {
            let key = (thread.vcpu, part.interval.interrupt(one), None);
            rows.entry(key).or_default().add(one.time);
        }
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|(_, turns)| Reverse(part.sort.key(*turns)));
    let time = part.interval.time();
    let rows = rows.into_iter().take(part.rows);
    let rows = rows.map(|((vcpu, label, process), turns)| {
        let is_known = turns.count > 0;
        [
            shortened(label, MAX_NAME),
            process.map_or_else(|| "-".to_owned(), |process| process.to_string()),
            vcpu.to_string(),
            if is_known {
                turns.count.to_string()
            } else {
                "-".to_owned()
            },
            duration(turns.time),
            percent(turns.time, time),
        ]
    });
    let headings = [
        ("TAKEN BY", Align::Left),
        ("PID", Align::Right),
        ("VCPU", Align::Right),
        ("TURNS", Align::Right),
        ("TIME", Align::Right),
        ("SHARE", Align::Right),
    ];
    write_part(output, &headings, &rows.collect::<Vec<_>>())
}

/// The same for a JSON document, by thread.
pub fn document(part: &Part<'_>) -> Value {
    let other = |other: &OfWait| {
        let guest = part.interval.guest_of(other);
        json!({
            "pid": other.other_process,
            "tid": other.other_thread,
            "name": task_name(&other.name).collect::<String>(),
            "guest": guest.map(|guest| &guest.name),
            "is_vcpu": guest.is_some_and(|guest| guest.vcpus.contains(&other.other_thread)),
            "count": other.turns.count,
            "time_ns": other.turns.time,
        })
    };
    let interrupt = |one: &OfInterrupt| {
        let name =
            (one.kind == InterruptKind::Softirq).then(|| part.interval.softirqs.get(&one.number));
        json!({
            "kind": one.kind.name(),
            "number": one.number,
            "name": name.flatten(),
            "count": one.time.count,
            "time_ns": one.time.time,
        })
    };
    let thread = |thread: &OfThread| {
        let mut others: Vec<&OfWait> = others(part, thread).collect();
        others.sort_by_key(|one| Reverse(part.sort.key(one.turns)));
        let others = others.into_iter().take(part.rows);
        let mut interrupts: Vec<&OfInterrupt> = interrupts_of(part, thread).collect();
        interrupts.sort_by_key(|one| Reverse(part.sort.key(one.time)));
        let interrupts = interrupts.into_iter().take(part.rows);
        json!({
            "vcpu": thread.vcpu,
            "tid": thread.thread,
            "count": thread.waits.count,
            "time_ns": thread.waits.time,
            "migrations": thread.migrations,
            "taken_by": others.map(other).collect::<Vec<_>>(),
            "interrupts": interrupts.map(interrupt).collect::<Vec<_>>(),
        })
    };
    part.interval.counts.threads.iter().map(thread).collect()
}
