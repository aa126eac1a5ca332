//! Blocks of a guest's exits in an interval. Each stands for itself, and consists of what follows, in this order. *Numbers* and *signed numbers* are those of
//! `FORMAT.md`; a *text* is the number of its bytes, and these, in UTF-8; *exits* are two numbers: how many, and how long all of them together took, in ns; a
//! process of the guest is a signed number, -1 when unknown; a thread or process of the host is a number.
//!
//! - numbers: when the interval began, in ns of CLOCK_MONOTONIC; its length in ns; the number of vCPUs,
//! - byte: 1 if exits have processes, else 0,
//! - numbers: by which processor's reasons they are named (1 VT-x, 2 SVM, 0 before the first exit); vCPUs whose exit isn't over at the end; how often KVM handed
//!   something to the VMM,
//! - eight numbers: what is missing: exits of threads that are too many; exits among the reasons; among the accesses; among the functions; among the processes;
//!   turns of other threads; waits of which only the time is known; interrupts,
//! - exits: in how many periods control groups of the VMM's threads had no quota left, and for how long; numbers: for how long the host's processors waited for those
//!   of its own host, in ns; how many processors it has,
//! - a number, and so many texts: tracepoints that the host lacks,
//! - a number, and so many names of reasons: number: the reason; byte: 1 if it is a halt; text,
//! - a number, and so many names of the host's softirqs: number; text,
//! - a number, and so many processes whose containers are known: the process; text: its container, empty if it is in none,
//! - a number, and so many guests of the host: the VMM's process; byte: 1 if it is the recorded guest, plus 2 if it has a name; its name, if it has one; the VMM's
//!   program, a text; a number, and so many threads of vCPUs,
//! - a number, and so many reasons of vCPUs: numbers: the reason, as the processor gives it, and the vCPU; exits; exits that KVM handed to the VMM; number: the
//!   longest one, in ns, known within 12 %; a number, and so many classes of the histogram: numbers: how many classes without exits come before it, and how many
//!   exits are in it,
//! - a number, and so many accesses: numbers: the reason; the kind (1 port read, 2 port write, 3 MMIO read, 4 MMIO write, 5 MSR read, 6 MSR write, 7 hypercall);
//!   the port, address, register or number; exits,
//! - a number, and so many functions: number: the reason; the process; signed: the instruction's address; exits,
//! - a number, and so many processes: number: the reason; the process; number: length of the name of its thread that left last, the name; exits,
//! - a number, and so many threads of vCPUs: the thread; number: the vCPU that it ran last; exits: its waits for a processor; number: how often it was moved to
//!   another processor,
//! - a number, and so many that ran while vCPUs waited: the thread that waited; the thread and the process that ran, both 0 for an idle processor; number: length
//!   of its name, the name; exits: its turns,
//! - a number, and so many interrupts: the thread that had the processor; numbers: the kind (1 device, 2 softirq, 3 timer, 4 reschedule, 5 call, 6 call of one
//!   processor); which one; exits: how often and how long.
//!
//! Class *c* of a histogram has the times from *t(c)* to *t(c + 1)*, in ns, with *t(c)* = *c* for *c* < 8, else (8 + *c* mod 8) * 2^(*c* div 8 - 1). There are
//! 304; the last one has all longer times, too.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::varint::{Numbers, push, push_comm, push_signed};
use super::{Block, Kind};
use crate::exits::{
    AccessKind, Counts, ExitInterval, Exits, Histogram, HostGuest, HostTimes, InterruptKind, Lost,
    OfAccess, OfFunction, OfInterrupt, OfProcess, OfReason, OfThread, OfWait, ReasonName,
};

/// Maximum number of pairs of a reason and a vCPU in a block, each of which has a histogram, and of threads of vCPUs.
const MAX_REASONS: usize = 8192;
/// Maximum number of bytes of these pairs.
const MAX_REASON_BYTES: usize = 3 << 20;
/// Maximum number of entries of other tables that are written: those with the longest times.
const MAX_ENTRIES: usize = 1024;
/// Maximum number of guests, of softirqs, and of missing tracepoints.
const MAX_NAMES: usize = 1024;
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 256;

/// In an interval's flags: exits have processes.
const KNOWS_PROCESSES: u8 = 1;
/// In a guest's flags: its exits are counted.
const IS_COUNTED: u8 = 1;
/// In a guest's flags: it has a name.
const HAS_NAME: u8 = 2;

impl ExitInterval {
    /// The block for it. `None` when it would be too long.
    pub fn to_block(&self) -> Option<Vec<u8>> {
        Block::encode(Kind::Exits, &encode(self))
    }
}

/// The contents of a block. What there are too many of counts as lost.
fn encode(interval: &ExitInterval) -> Vec<u8> {
    let counts = &interval.counts;
    let mut lost = counts.lost;
    let mut tables = Vec::new();
    push_exits(&mut tables, counts, &mut lost);
    push_waits(&mut tables, counts, &mut lost);
    let mut bytes = Vec::new();
    push(&mut bytes, interval.begin);
    push(&mut bytes, interval.time());
    push(&mut bytes, interval.vcpus.into());
    let knows_processes = interval.knows_processes;
    bytes.push(if knows_processes { KNOWS_PROCESSES } else { 0 });
    push(&mut bytes, counts.isa);
    push(&mut bytes, counts.unfinished);
    push(&mut bytes, counts.left_kvm);
    for number in lost.all() {
        push(&mut bytes, number);
    }
    push_pair(&mut bytes, interval.host.throttled);
    push(&mut bytes, interval.host.stolen);
    push(&mut bytes, interval.host.processors.into());
    push_names(&mut bytes, interval);
    bytes.append(&mut tables);
    bytes
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    let ends = text.char_indices().map(|(at, one)| at + one.len_utf8());
    let end = ends.take_while(|end| *end <= MAX_NAME).last();
    let text = text.get(..end.unwrap_or_default()).unwrap_or_default();
    push(bytes, text.len() as u64);
    bytes.extend(text.as_bytes());
}

/// Appends how many of `all` there are, and each of them.
fn push_all<T>(
    bytes: &mut Vec<u8>,
    most: usize,
    all: impl ExactSizeIterator<Item = T>,
    mut each: impl FnMut(&mut Vec<u8>, T),
) {
    push(bytes, all.len().min(most) as u64);
    for one in all.take(most) {
        each(bytes, one);
    }
}

fn push_names(bytes: &mut Vec<u8>, interval: &ExitInterval) {
    push_all(bytes, MAX_NAMES, interval.missing.iter(), |bytes, name| {
        push_text(bytes, name);
    });
    let names = interval.names.iter();
    push_all(bytes, MAX_REASONS, names, |bytes, (reason, known)| {
        push(bytes, (*reason).into());
        bytes.push(known.is_halt.into());
        push_text(bytes, &known.name);
    });
    let softirqs = interval.softirqs.iter();
    push_all(bytes, MAX_NAMES, softirqs, |bytes, (number, name)| {
        push(bytes, (*number).into());
        push_text(bytes, name);
    });
    let containers = interval.containers.iter();
    push_all(bytes, MAX_REASONS, containers, |bytes, (process, name)| {
        push_signed(bytes, i64::from(*process));
        push_text(bytes, name);
    });
    push_all(bytes, MAX_NAMES, interval.guests.iter(), |bytes, guest| {
        push(bytes, guest.process.into());
        let flags = [
            (guest.is_counted, IS_COUNTED),
            (guest.name.is_some(), HAS_NAME),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        bytes.push(set.map(|(_, flag)| flag).sum());
        if let Some(name) = &guest.name {
            push_text(bytes, name);
        }
        push_text(bytes, &guest.program);
        push_all(bytes, MAX_REASONS, guest.vcpus.iter(), |bytes, thread| {
            push(bytes, (*thread).into());
        });
    });
}

fn push_pair(bytes: &mut Vec<u8>, exits: Exits) {
    push(bytes, exits.count);
    push(bytes, exits.time);
}

/// Appends the entries that have exits, those with the longest times first, as many as there may be. Adds the others to `lost`.
fn push_longest<T>(
    bytes: &mut Vec<u8>,
    all: &[T],
    lost: &mut u64,
    exits: impl Fn(&T) -> Exits,
    mut each: impl FnMut(&mut Vec<u8>, &T),
) {
    let mut entries: Vec<&T> = all.iter().filter(|one| exits(one).count > 0).collect();
    entries.sort_by_key(|one| Reverse(exits(one).time));
    for one in entries.iter().skip(MAX_ENTRIES) {
        *lost = lost.saturating_add(exits(one).count);
    }
    push_all(bytes, MAX_ENTRIES, entries.into_iter(), |bytes, one| {
        each(bytes, one);
        push_pair(bytes, exits(one));
    });
}

fn push_exits(bytes: &mut Vec<u8>, counts: &Counts, lost: &mut Lost) {
    let mut reasons: Vec<&OfReason> = counts.reasons.iter().collect();
    reasons.retain(|one| one.exits.count > 0);
    reasons.sort_by_key(|one| Reverse(one.exits.time));
    let (mut body, mut count) = (Vec::new(), 0);
    for one in reasons {
        let mut entry = Vec::new();
        push_reason(&mut entry, one);
        if count < MAX_REASONS && body.len() + entry.len() <= MAX_REASON_BYTES {
            body.append(&mut entry);
            count += 1;
        } else {
            lost.reasons = lost.reasons.saturating_add(one.exits.count);
        }
    }
    push(bytes, count as u64);
    bytes.append(&mut body);
    push_longest(
        bytes,
        &counts.accesses,
        &mut lost.accesses,
        |one| one.exits,
        |bytes, one| {
            push(bytes, one.reason.into());
            push(bytes, one.kind as u64);
            push(bytes, one.place);
        },
    );
    push_longest(
        bytes,
        &counts.functions,
        &mut lost.functions,
        |one| one.exits,
        |bytes, one| {
            push(bytes, one.reason.into());
            push_signed(bytes, one.process.map_or(-1, i64::from));
            push_signed(bytes, one.address.cast_signed());
        },
    );
    push_longest(
        bytes,
        &counts.processes,
        &mut lost.processes,
        |one| one.exits,
        |bytes, one| {
            push(bytes, one.reason.into());
            push_signed(bytes, one.process.map_or(-1, i64::from));
            push_comm(bytes, &one.name);
        },
    );
}

fn push_reason(bytes: &mut Vec<u8>, one: &OfReason) {
    push(bytes, one.reason.into());
    push(bytes, one.vcpu.into());
    push_pair(bytes, one.exits);
    push_pair(bytes, one.left);
    push(bytes, one.longest);
    let classes = one.histogram.classes().iter().enumerate();
    let classes: Vec<(usize, &u64)> = classes.filter(|(_, count)| **count > 0).collect();
    push(bytes, classes.len() as u64);
    let mut next = 0;
    for (class, count) in classes {
        push(bytes, (class - next) as u64);
        push(bytes, *count);
        next = class + 1;
    }
}

fn push_waits(bytes: &mut Vec<u8>, counts: &Counts, lost: &mut Lost) {
    push_all(bytes, MAX_REASONS, counts.threads.iter(), |bytes, one| {
        push(bytes, one.thread.into());
        push(bytes, one.vcpu.into());
        push_pair(bytes, one.waits);
        push(bytes, one.migrations);
    });
    push_longest(
        bytes,
        &counts.waits,
        &mut lost.waits,
        |one| one.turns,
        |bytes, one| {
            push(bytes, one.thread.into());
            push(bytes, one.other_thread.into());
            push(bytes, one.other_process.into());
            push_comm(bytes, &one.name);
        },
    );
    push_longest(
        bytes,
        &counts.interrupts,
        &mut lost.interrupts,
        |one| one.time,
        |bytes, one| {
            push(bytes, one.thread.into());
            push(bytes, one.kind as u64);
            push(bytes, one.number.into());
        },
    );
}

/// Reads a block. `None` when it is invalid.
pub fn decode(bytes: &[u8]) -> Option<ExitInterval> {
    let mut numbers = Numbers(bytes);
    let begin = numbers.next()?;
    let end = begin.checked_add(numbers.next()?)?;
    let vcpus = numbers.next_as()?;
    let knows_processes = numbers.byte()? & KNOWS_PROCESSES != 0;
    let mut counts = Counts {
        isa: numbers.next()?,
        unfinished: numbers.next()?,
        left_kvm: numbers.next()?,
        ..Counts::default()
    };
    for number in counts.lost.all_mut() {
        *number = numbers.next()?;
    }
    let host = HostTimes {
        throttled: pair(&mut numbers)?,
        stolen: numbers.next()?,
        processors: numbers.next_as()?,
    };
    let mut interval = ExitInterval {
        begin,
        end,
        vcpus,
        knows_processes,
        host,
        missing: all(&mut numbers, MAX_NAMES, text)?,
        names: map(&mut numbers, MAX_REASONS, reason_name)?,
        softirqs: map(&mut numbers, MAX_NAMES, |numbers| {
            Some((numbers.next_as()?, text(numbers)?))
        })?,
        containers: map(&mut numbers, MAX_REASONS, |numbers| {
            Some((numbers.pid()?, text(numbers)?))
        })?,
        guests: all(&mut numbers, MAX_NAMES, guest)?,
        counts: Counts::default(),
    };
    let no_limit = bytes.len();
    counts.reasons = all(&mut numbers, MAX_REASONS, of_reason)?;
    counts.accesses = all(&mut numbers, no_limit, of_access)?;
    counts.functions = all(&mut numbers, no_limit, of_function)?;
    counts.processes = all(&mut numbers, no_limit, of_process)?;
    counts.threads = all(&mut numbers, MAX_REASONS, of_thread)?;
    counts.waits = all(&mut numbers, no_limit, of_wait)?;
    counts.interrupts = all(&mut numbers, no_limit, of_interrupt)?;
    interval.counts = counts;
    numbers.is_empty().then_some(interval)
}

/// The next number, and so many of what `each` reads; `None` if there are more than `most`.
fn all<T>(
    numbers: &mut Numbers<'_>,
    most: usize,
    each: impl Fn(&mut Numbers<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count: usize = numbers.next_as()?;
    if count > most {
        return None;
    }
    (0..count).map(|_| each(numbers)).collect()
}

fn map<K: Ord, T>(
    numbers: &mut Numbers<'_>,
    most: usize,
    each: impl Fn(&mut Numbers<'_>) -> Option<(K, T)>,
) -> Option<BTreeMap<K, T>> {
    Some(all(numbers, most, each)?.into_iter().collect())
}

fn text(numbers: &mut Numbers<'_>) -> Option<String> {
    let length = numbers.next_as()?;
    String::from_utf8(numbers.bytes(length)?.to_vec()).ok()
}

fn reason_name(numbers: &mut Numbers<'_>) -> Option<(u32, ReasonName)> {
    let reason = numbers.next_as()?;
    let is_halt = numbers.byte()? & 1 != 0;
    let name = text(numbers)?;
    Some((reason, ReasonName { name, is_halt }))
}

fn guest(numbers: &mut Numbers<'_>) -> Option<HostGuest> {
    let process = numbers.next_as()?;
    let flags = numbers.byte()?;
    Some(HostGuest {
        process,
        name: match flags & HAS_NAME {
            0 => None,
            _ => Some(text(numbers)?),
        },
        program: text(numbers)?,
        vcpus: all(numbers, MAX_REASONS, |numbers| numbers.next_as())?
            .into_iter()
            .collect(),
        is_counted: flags & IS_COUNTED != 0,
    })
}

fn pair(numbers: &mut Numbers<'_>) -> Option<Exits> {
    Some(Exits {
        count: numbers.next()?,
        time: numbers.next()?,
    })
}

fn of_reason(numbers: &mut Numbers<'_>) -> Option<OfReason> {
    let (reason, vcpu) = (numbers.next_as()?, numbers.next_as()?);
    let (exits, left, longest) = (pair(numbers)?, pair(numbers)?, numbers.next()?);
    let mut classes = vec![0; Histogram::CLASSES];
    let mut next = 0_usize;
    for _ in 0..numbers.next()? {
        let class = next.checked_add(numbers.next_as()?)?;
        *classes.get_mut(class)? = numbers.next()?;
        next = class + 1;
    }
    Some(OfReason {
        reason,
        vcpu,
        exits,
        longest,
        left,
        histogram: Histogram::new(classes),
    })
}

fn of_access(numbers: &mut Numbers<'_>) -> Option<OfAccess> {
    Some(OfAccess {
        reason: numbers.next_as()?,
        kind: AccessKind::of(numbers.next_as()?)?,
        place: numbers.next()?,
        exits: pair(numbers)?,
    })
}

/// The id of a guest's process: -1 if it isn't known.
fn process(numbers: &mut Numbers<'_>) -> Option<Option<i32>> {
    Some(Some(numbers.pid()?).filter(|pid| *pid != -1))
}

fn of_function(numbers: &mut Numbers<'_>) -> Option<OfFunction> {
    Some(OfFunction {
        reason: numbers.next_as()?,
        process: process(numbers)?,
        address: numbers.next_signed()?.cast_unsigned(),
        exits: pair(numbers)?,
    })
}

fn of_process(numbers: &mut Numbers<'_>) -> Option<OfProcess> {
    Some(OfProcess {
        reason: numbers.next_as()?,
        process: process(numbers)?,
        name: numbers.comm()?,
        exits: pair(numbers)?,
    })
}

fn of_thread(numbers: &mut Numbers<'_>) -> Option<OfThread> {
    Some(OfThread {
        thread: numbers.next_as()?,
        vcpu: numbers.next_as()?,
        waits: pair(numbers)?,
        migrations: numbers.next()?,
    })
}

fn of_wait(numbers: &mut Numbers<'_>) -> Option<OfWait> {
    Some(OfWait {
        thread: numbers.next_as()?,
        other_thread: numbers.next_as()?,
        other_process: numbers.next_as()?,
        name: numbers.comm()?,
        turns: pair(numbers)?,
    })
}

fn of_interrupt(numbers: &mut Numbers<'_>) -> Option<OfInterrupt> {
    Some(OfInterrupt {
        thread: numbers.next_as()?,
        kind: InterruptKind::of(numbers.next_as()?)?,
        number: numbers.next_as()?,
        time: pair(numbers)?,
    })
}

#[cfg(test)]
mod tests;
