//! How long each initcall took.

use std::collections::BTreeMap;

use super::seen::{Place, Seen};

/// What a call is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// An initcall of the kernel image.
    Initcall,
    /// The init function of this module, whose name is in brackets.
    Module(String),
}

/// An initcall, or a module's init function, in one boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function.
    pub function: String,
    /// What it is.
    pub kind: CallKind,
    /// When it was first seen, in ns from the recording's begin.
    pub began_ns: u64,
    /// How long it took, in ns: from half a tick before its first sample to half a tick after its last one. Time for which the vCPU is halted
    /// then counts, too: the thread waits.
    pub time_ns: u64,
    /// How many samples were in it.
    pub samples: u64,
}

type Key = (String, CallKind);

/// The calls of a boot, by the samples of each thread in the order of time; `tick` is the time between two ticks, in ns.
pub(super) fn calls(seen: &[Seen], tick: u64) -> Vec<Call> {
    let mut threads: BTreeMap<i32, Vec<&Seen>> = BTreeMap::new();
    for sample in seen {
        if !matches!(sample.place, Place::Loader | Place::Idle) {
            threads.entry(sample.tid).or_default().push(sample);
        }
    }
    let idle = Idle::of(seen, tick);
    let mut calls: BTreeMap<Key, Call> = BTreeMap::new();
    for samples in threads.values() {
        add_thread(samples, tick, &idle, &mut calls);
    }
    let mut calls: Vec<Call> = calls.into_values().collect();
    calls.sort_by_key(|call| call.began_ns);
    calls
}

/// When vCPUs were halted.
struct Idle(BTreeMap<u16, Vec<(u64, u64)>>);

impl Idle {
    fn of(seen: &[Seen], tick: u64) -> Self {
        let mut idle: BTreeMap<u16, Vec<(u64, u64)>> = BTreeMap::new();
        for halted in seen.iter().filter(|seen| seen.place == Place::Idle) {
            let time = halted.ticks.saturating_mul(tick);
            let stretches = idle.entry(halted.vcpu).or_default();
            stretches.push((halted.time, time));
        }
        Self(idle)
    }

    /// For how long a vCPU was halted from one moment to another, in ns.
    fn between(&self, vcpu: u16, from: u64, to: u64) -> u64 {
        let Some(stretches) = self.0.get(&vcpu) else {
            return 0;
        };
        let first = stretches.partition_point(|(begin, _)| *begin < from);
        let within = stretches
            .iter()
            .skip(first)
            .take_while(|(begin, _)| *begin < to);
        let sum: u64 = within.map(|(_, time)| time).sum();
        sum.min(to - from)
    }
}

/// Adds the calls of one thread.
fn add_thread(samples: &[&Seen], tick: u64, idle: &Idle, calls: &mut BTreeMap<Key, Call>) {
    let mut previous: Option<&Seen> = None;
    for (index, sample) in samples.iter().enumerate() {
        let last = previous.replace(sample);
        let Some(key) = key_of(&sample.place) else {
            continue;
        };
        let begins = match last {
            Some(last) if last.place == sample.place => last.time,
            Some(last) => sample.time - (sample.time - last.time).min(tick) / 2,
            None => sample.time.saturating_sub(tick / 2),
        };
        let next = samples.get(index + 1);
        let ends = match next {
            Some(next) if next.place == sample.place => sample.time,
            Some(next) => {
                let near = (next.time - sample.time).min(tick) / 2;
                let waited = idle.between(sample.vcpu, sample.time, next.time);
                (sample.time + near + waited).min(next.time)
            }
            None => sample.time + tick / 2,
        };
        let call = calls.entry(key.clone()).or_insert_with(|| Call {
            function: key.0,
            kind: key.1,
            began_ns: begins,
            time_ns: 0,
            samples: 0,
        });
        call.time_ns += ends.saturating_sub(begins);
        call.samples += 1;
    }
}

fn key_of(place: &Place) -> Option<Key> {
    match place {
        Place::Initcall(function) => Some((function.clone(), CallKind::Initcall)),
        Place::Module { function, module } => {
            Some((function.clone(), CallKind::Module(module.clone())))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: u64, tid: i32, name: &str) -> Seen {
        let place = match name {
            "" => Place::Between,
            name => Place::Initcall(name.to_owned()),
        };
        Seen {
            time,
            pid: tid,
            tid,
            vcpu: 0,
            ticks: 1,
            place,
        }
    }

    fn times(seen: &[Seen]) -> Vec<(String, u64, u64)> {
        let calls = calls(seen, 10).into_iter();
        let calls = calls.map(|call| (call.function, call.time_ns, call.samples));
        calls.collect()
    }

    #[test]
    fn a_call_takes_from_halfway_before_it_to_halfway_after_it() {
        let seen = [
            at(0, 1, ""),
            at(10, 1, "one"),
            at(20, 1, "one"),
            at(30, 1, "two"),
            at(40, 1, ""),
        ];
        let expected = [("one".to_owned(), 20, 2), ("two".to_owned(), 10, 1)];
        assert_eq!(times(&seen), expected);
    }

    #[test]
    fn waiting_counts_to_the_call_before_it() {
        let idle = Seen {
            ticks: 80,
            place: Place::Idle,
            ..at(1110, 0, "")
        };
        let on_another = Seen {
            vcpu: 1,
            ..idle.clone()
        };
        let seen = |waiting: Seen| {
            [
                at(100, 1, "one"),
                at(1100, 1, "one"),
                waiting,
                at(2100, 1, "two"),
                at(2110, 1, ""),
            ]
        };
        let expected = |one| [("one".to_owned(), one, 2), ("two".to_owned(), 10, 1)];
        assert_eq!(times(&seen(idle)), expected(1810));
        // Nobody knows what was done in the rest.
        assert_eq!(times(&seen(on_another)), expected(1010));
    }

    #[test]
    fn threads_have_calls_of_their_own() {
        let seen = [
            at(100, 1, "one"),
            at(105, 2, "other"),
            at(110, 1, "one"),
            at(115, 2, "other"),
            at(120, 1, "one"),
        ];
        let expected = [("one".to_owned(), 30, 3), ("other".to_owned(), 20, 2)];
        assert_eq!(times(&seen), expected);
    }
}
