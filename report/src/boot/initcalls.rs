//! The duration of each initcall.

use std::collections::BTreeMap;

use kvmprof_recording::IDLE_PID;

use super::levels::Levels;
use super::samples::{BootSample, SampledCode};

/// The kind of a call.
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
    /// The kind of the call.
    pub kind: CallKind,
    /// The time of its first sample, in ns from the recording's start.
    pub began_ns: u64,
    /// The estimate of its duration, in ns: from halfway between the last sample before it and its first one, to halfway between its last one
    /// and the next. Time in which the vCPU was halted or ran other threads counts, too: the thread waits, and looks at tasks say in which call.
    pub time_ns: u64,
    /// The lower bound of its duration, in ns: from its first sample to its last one.
    pub at_least_ns: u64,
    /// The upper bound of its duration, in ns: from its thread's last sample before it to the next one after it that is surely not in a function
    /// that it jumped to as its last call. Lost or stolen ticks make the bound larger.
    pub at_most_ns: u64,
    /// The number of its samples, and of looks at tasks in which its thread waits in it.
    pub samples: u64,
}

/// The function, and the module if it is the init function of one.
type Key<'a> = (&'a str, Option<&'a str>);

/// The calls of a boot that ends at `end`, from its samples in the order of time; `tick` is the time between two ticks, both in ns. `levels` has
/// the functions that are initcalls.
pub(super) fn calls(seen: &[BootSample], levels: &Levels, tick: u64, end: u64) -> Vec<Call> {
    let others = OtherActivity::of(seen, tick);
    let mut calls: BTreeMap<Key<'_>, Call> = BTreeMap::new();
    for samples in threads(seen).values() {
        add_thread(samples, levels, &others, tick, end, &mut calls);
    }
    let mut calls: Vec<Call> = calls.into_values().collect();
    calls.sort_by_key(|call| call.began_ns);
    calls
}

/// The samples of each thread.
fn threads(seen: &[BootSample]) -> BTreeMap<i32, Vec<&BootSample>> {
    let mut threads: BTreeMap<i32, Vec<&BootSample>> = BTreeMap::new();
    for sample in seen {
        if !matches!(sample.place, SampledCode::Loader | SampledCode::Idle) {
            threads.entry(sample.tid).or_default().push(sample);
        }
    }
    threads
}

/// Whether the sample is in a function that `levels` doesn't have: an initcall has jumped to it, and it counts as part of that initcall.
fn is_jumped_to(place: &SampledCode, levels: &Levels) -> bool {
    matches!(place, SampledCode::Initcall(function) if levels.of(function).is_none())
}

/// How long an initcall can have run without a sample of its own, in ns: the longest time between two samples of a thread that makes initcalls
/// which aren't in the same initcall, up to the sample after the last initcall. Samples of an unknown thread don't count.
pub(super) fn longest_unseen(seen: &[BootSample], levels: &Levels) -> u64 {
    let is_call = |sample: &BootSample| matches!(sample.place, SampledCode::Initcall(_));
    let mut threads = threads(seen);
    for samples in threads.values_mut() {
        samples.retain(|sample| !is_jumped_to(&sample.place, levels));
        // Afterwards a thread may do anything. The first one waits for other threads, and then becomes init.
        let last = samples.iter().rposition(|sample| is_call(sample));
        samples.truncate(last.map_or(0, |last| last + 2));
    }
    let pairs = threads.values().flat_map(|samples| samples.windows(2));
    let unseen = pairs.filter_map(|pair| match pair {
        [one, next] if is_call(one) && one.place == next.place => None,
        [one, next] => Some(next.time - one.time),
        _ => None,
    });
    unseen.max().unwrap_or(0)
}

/// When the vCPUs did something else than run one thread: they were halted, or ran other threads.
struct OtherActivity(BTreeMap<u16, Vec<(u64, u64, i32)>>);

impl OtherActivity {
    fn of(seen: &[BootSample], tick: u64) -> Self {
        let mut others: BTreeMap<u16, Vec<(u64, u64, i32)>> = BTreeMap::new();
        for sample in seen.iter().filter(|sample| !sample.is_waiting) {
            let (until, tid) = match sample.place {
                SampledCode::Idle => {
                    let more = sample.ticks.saturating_sub(1).saturating_mul(tick);
                    (sample.time.saturating_add(more), IDLE_PID)
                }
                _ => (sample.time, sample.tid),
            };
            let stretches = others.entry(sample.vcpu).or_default();
            stretches.push((sample.time, until, tid));
        }
        Self(others)
    }

    /// The last time between `sample` and `next`, the thread's next sample, at which the vCPU of `sample` did something else; the time of
    /// `sample` if there is none.
    fn until(&self, sample: &BootSample, next: u64) -> u64 {
        let stretches = self.0.get(&sample.vcpu).map(Vec::as_slice);
        let stretches = stretches.unwrap_or_default();
        let end = stretches.partition_point(|(begin, ..)| *begin < next);
        let last = stretches[..end].iter().rev();
        // A thread that waits has been seen in the middle of what its vCPU does meanwhile.
        let mut last = last.take_while(|(begin, until, _)| {
            *begin > sample.time || sample.is_waiting && *until > sample.time
        });
        let other = last.find(|(.., tid)| *tid != sample.tid);
        other.map_or(sample.time, |(_, until, _)| (*until).min(next))
    }
}

/// Adds the calls of one thread of a boot with this `tick` that ends at `end`.
fn add_thread<'a>(
    samples: &[&'a BootSample],
    levels: &Levels,
    others: &OtherActivity,
    tick: u64,
    end: u64,
    calls: &mut BTreeMap<Key<'a>, Call>,
) {
    let halfway = |one: &BootSample, next: &BootSample| {
        // Where the next one waits, it is known that it waited in another call.
        let known = match next.is_waiting {
            true => one.time,
            false => others.until(one, next.time),
        };
        known + (next.time - known) / 2
    };
    let known = next_known(samples, levels);
    let (mut before, mut done): (Option<&BootSample>, usize) = (None, 0);
    for visit in samples.chunk_by(|one, next| one.place == next.place) {
        done += visit.len();
        let ([first, ..], [.., last]) = (visit, visit) else {
            continue;
        };
        let before = before.replace(last);
        let Some(key) = key_of(&first.place) else {
            continue;
        };
        let begins = match before {
            Some(before) => halfway(before, first),
            None => first.time.saturating_sub(tick / 2),
        };
        let ends = match samples.get(done) {
            Some(next) => halfway(last, next),
            // A thread without further samples has most probably ended.
            None => last.time.saturating_add(tick / 2),
        };
        let next = known.get(done).copied().flatten();
        let next = next.unwrap_or_else(|| end.max(last.time));
        let call = calls
            .entry(key)
            .or_insert_with(|| Call::beginning(key, begins));
        let add = |sum: &mut u64, time: u64| *sum = sum.saturating_add(time);
        add(&mut call.time_ns, ends - begins);
        add(&mut call.at_least_ns, last.time - first.time);
        let before = before.map_or(0, |before| before.time);
        add(&mut call.at_most_ns, next - before);
        call.samples += visit.len() as u64;
    }
}

/// For each of the `samples` of a thread, the time of the first one from it on that isn't in a function that an initcall may have jumped to.
fn next_known(samples: &[&BootSample], levels: &Levels) -> Vec<Option<u64>> {
    let mut next = None;
    let backwards = samples.iter().rev().map(|sample| {
        if !is_jumped_to(&sample.place, levels) {
            next = Some(sample.time);
        }
        next
    });
    let mut known: Vec<Option<u64>> = backwards.collect();
    known.reverse();
    known
}

impl Call {
    /// A call that hasn't taken any time yet.
    fn beginning((function, module): Key<'_>, began_ns: u64) -> Self {
        let module = module.map(str::to_owned);
        Self {
            function: function.to_owned(),
            kind: module.map_or(CallKind::Initcall, CallKind::Module),
            began_ns,
            time_ns: 0,
            at_least_ns: 0,
            at_most_ns: 0,
            samples: 0,
        }
    }
}

fn key_of(place: &SampledCode) -> Option<Key<'_>> {
    match place {
        SampledCode::Initcall(function) => Some((function, None)),
        SampledCode::Module { function, module } => Some((function, Some(module))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: u64, tid: i32, name: &str) -> BootSample {
        let place = match name {
            "" => SampledCode::Between,
            name => SampledCode::Initcall(name.into()),
        };
        BootSample::at(time, tid, place)
    }

    /// Name, time and bounds of the calls of a boot that ends at 3000.
    fn times(seen: &[BootSample]) -> Vec<(String, u64, (u64, u64))> {
        let names = ["one", "two", "other"].map(|name| format!("__initcall__kmod_m__1_1_{name}6"));
        let levels = Levels::from_symbols(names.iter().map(String::as_str));
        let calls = calls(seen, &levels, 10, 3000).into_iter();
        let bounds = |call: &Call| (call.at_least_ns, call.at_most_ns);
        let calls = calls.map(|call| (call.function.clone(), call.time_ns, bounds(&call)));
        calls.collect()
    }

    fn named(name: &str, time: u64, bounds: (u64, u64)) -> (String, u64, (u64, u64)) {
        (name.to_owned(), time, bounds)
    }

    /// Samples of thread 1 at these times, each with the function that it is in, if any.
    fn thread(seen: &str) -> Vec<BootSample> {
        let sample = |(time, name): (&str, &str)| at(time.parse().unwrap(), 1, name);
        let words = seen.split(' ').map(|word| word.split_once(':').unwrap());
        words.map(sample).collect()
    }

    #[test]
    fn a_call_takes_from_halfway_before_it_to_halfway_after_it() {
        let seen = thread("0: 10:one 20:one 30:two 40:");
        let expected = [named("one", 20, (10, 30)), named("two", 10, (0, 20))];
        assert_eq!(times(&seen), expected);
    }

    /// Eight ticks were lost.
    #[test]
    fn unsampled_time_widens_the_bounds() {
        let seen = thread("0: 10:one 20:one 110:two 120:");
        let expected = [named("one", 60, (10, 110)), named("two", 50, (0, 100))];
        assert_eq!(times(&seen), expected);
        let levels = Levels::from_symbols(["__initcall__kmod_m__1_1_two6"].into_iter());
        // It is unknown to which initcall "one" belongs.
        assert_eq!(longest_unseen(&seen, &levels), 110);
    }

    /// Between two samples that are in none, and after one that is in one.
    #[test]
    fn an_initcall_may_have_run_in_any_unsampled_time() {
        let levels = Levels::from_symbols(["__initcall__kmod_m__1_1_one6"].into_iter());
        let mut seen = thread("100: 140: 150:one 250:one 260:");
        // Init, and another thread.
        seen.extend([at(960, 1, ""), at(970, 7, ""), at(1970, 7, "")]);
        assert_eq!(longest_unseen(&seen, &levels), 40);
        seen[4].time = 300;
        assert_eq!(longest_unseen(&seen, &levels), 50);
        assert_eq!(longest_unseen(&[], &levels), 0);
    }

    #[test]
    fn the_target_of_a_tail_call_may_belong_to_the_initcall() {
        let seen = thread("0: 10:one 20:helper 30:helper 40:two");
        let expected = [
            named("one", 10, (0, 40)),
            named("helper", 20, (10, 30)),
            named("two", 10, (0, 2970)),
        ];
        assert_eq!(times(&seen), expected);
    }

    #[test]
    fn waiting_counts_to_the_call_before_it() {
        let idle = BootSample {
            ticks: 80,
            place: SampledCode::Idle,
            ..at(1110, 0, "")
        };
        let on_another = BootSample {
            vcpu: 1,
            ..idle.clone()
        };
        for (waiting, one, two) in [
            // It was halted from 1110 to 1900.
            (idle, 1905, 105),
            // The activity in all of that time is unknown.
            (on_another, 1505, 505),
            (at(2000, 7, ""), 1955, 55),
        ] {
            let mut seen = thread("100:one 1100:one 2100:two 2110:");
            seen.insert(2, waiting);
            let one = named("one", one, (1000, 2100));
            assert_eq!(times(&seen), [one, named("two", two, (0, 1010))]);
        }
    }

    /// The second call has slept all the time, and its vCPU was halted, or ran another thread, except for its first and last instructions.
    #[test]
    fn waiting_counts_to_the_call_that_a_look_has_seen() {
        let waiting = |time: u64, name: &str| BootSample {
            is_waiting: true,
            ..at(time, 1, name)
        };
        let idle = BootSample {
            ticks: 80,
            place: SampledCode::Idle,
            ..at(1110, 0, "")
        };
        let seen = [
            at(1090, 1, "one"),
            at(1100, 1, "one"),
            idle,
            waiting(1112, "two"),
            at(1910, 7, ""),
            waiting(1912, "two"),
            at(1920, 1, "one"),
        ];
        let calls = times(&seen);
        // From halfway between 1100 and 1112, to halfway between 1912 and 1920.
        assert_eq!(calls[1], named("two", 810, (800, 820)));
        // A look at a waiting task isn't a sample of its vCPU, which has run thread 7 only.
        let others = OtherActivity::of(&seen, 10);
        assert_eq!(others.until(&at(1910, 7, ""), 1920), 1910);
    }

    /// The writer of a recording chooses its times.
    #[test]
    fn times_saturate() {
        let seen = [
            at(1, 1, "one"),
            at(1, 2, "one"),
            at(u64::MAX - 1, 1, ""),
            at(u64::MAX, 1, "one"),
            at(u64::MAX, 2, "one"),
        ];
        let calls = times(&seen);
        let (name, time, bounds) = &calls[0];
        assert_eq!((name.as_str(), *time), ("one", u64::MAX));
        assert_eq!(*bounds, (u64::MAX - 1, u64::MAX));
    }

    /// They would be 10^12 steps if each searched the rest.
    #[test]
    fn a_million_visits_take_a_million_steps() {
        let names = ["helper", "other helper"].into_iter().cycle();
        let seen = (0..1_000_000).zip(names);
        let seen: Vec<_> = seen.map(|(time, name)| at(time, 1, name)).collect();
        let calls = calls(&seen, &Levels::default(), 1, 1_000_000);
        let samples = calls.iter().map(|call| call.samples);
        assert_eq!(samples.collect::<Vec<_>>(), [500_000, 500_000]);
    }

    #[test]
    fn calls_are_by_thread() {
        let mut seen = thread("100:one 110:one 120:one");
        seen.insert(1, at(105, 2, "other"));
        seen.insert(3, at(115, 2, "other"));
        let expected = [named("one", 30, (20, 3000)), named("other", 20, (10, 3000))];
        assert_eq!(times(&seen), expected);
    }
}
