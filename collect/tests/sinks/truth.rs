//! The answers to the queries of queries.sql about a fleet with known ticks.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_recording::Mode;

/// Maximum number of rows of an answer.
const ROWS: usize = 20;

/// Ticks of a guest that have all of these properties.
#[derive(Clone, Debug)]
pub struct KnownTicks {
    /// 0 for 2026-03-01, 1 for the day after.
    pub day: usize,
    /// The number in the host's name. Even ones are in the north.
    pub host: usize,
    pub kernel: &'static str,
    pub process: &'static str,
    pub mode: Mode,
    /// The functions of the stack, innermost first; none for halted vCPUs.
    pub stack: &'static [&'static str],
    pub ticks: u64,
    /// How many of the ticks had interrupts off; `None` for guests that the host's kernel samples.
    pub interrupts_off: Option<u64>,
}

/// The rows of an answer: the text of the first column, and the number of another one.
pub type Answer = Vec<(String, f64)>;

/// `number` as a float. It has to be below 2^53.
#[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 are exact")]
fn exact(number: u64) -> f64 {
    number as f64
}

fn ticks(known: &[KnownTicks], is: impl Fn(&KnownTicks) -> bool) -> f64 {
    let ticks = known
        .iter()
        .filter(|known| is(known))
        .map(|known| known.ticks);
    exact(ticks.sum())
}

fn is_busy(known: &KnownTicks) -> bool {
    known.mode != Mode::Idle
}

/// Groups `known` by `key`. Returns for each group the number that `of` computes, largest first.
fn by<K: Ord + ToString>(
    known: &[KnownTicks],
    key: impl Fn(&KnownTicks) -> Option<K>,
    of: impl Fn(&[KnownTicks]) -> f64,
) -> Answer {
    let mut groups: BTreeMap<K, Vec<KnownTicks>> = BTreeMap::new();
    for one in known {
        if let Some(key) = key(one) {
            groups.entry(key).or_default().push(one.clone());
        }
    }
    let groups = groups.into_iter();
    let mut answer: Answer = groups
        .map(|(key, known)| (key.to_string(), of(&known)))
        .collect();
    answer.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    answer.truncate(ROWS);
    answer
}

fn seconds(known: &[KnownTicks], hz: u32) -> f64 {
    let ticks: u64 = known.iter().map(|known| known.ticks).sum();
    exact(ticks * (1_000_000_000 / u64::from(hz))) / 1e9
}

fn percent(
    known: &[KnownTicks],
    part: impl Fn(&KnownTicks) -> bool,
    of: impl Fn(&KnownTicks) -> bool,
) -> f64 {
    ticks(known, part) * 100.0 / ticks(known, of)
}

/// The share of the ticks that had interrupts off, in per cent.
fn percent_off(known: &[KnownTicks]) -> f64 {
    let off: u64 = known.iter().filter_map(|known| known.interrupts_off).sum();
    exact(off) * 100.0 / ticks(known, |_| true)
}

/// The answers by the names of the queries, if `all` are the fleet's ticks and `hz` is the rate of its clocks.
pub fn expected(all: &[KnownTicks], hz: u32) -> BTreeMap<&'static str, Answer> {
    let seconds = |known: &[KnownTicks]| seconds(known, hz);
    let busy: Vec<KnownTicks> = all.iter().filter(|known| is_busy(known)).cloned().collect();
    let function = |known: &KnownTicks| known.stack.first().copied();
    let host = |known: &KnownTicks| Some(format!("host-{}", known.host));
    let days = |known: &[KnownTicks], of: &dyn Fn(&[KnownTicks]) -> f64| {
        let day = |day| -> Vec<KnownTicks> {
            known
                .iter()
                .filter(|known| known.day == day)
                .cloned()
                .collect()
        };
        of(&day(1)) - of(&day(0))
    };
    let of_kernel = |kernel: &'static str| move |known: &KnownTicks| known.kernel == kernel;
    let share = |known: &[KnownTicks], kernel| {
        ticks(known, of_kernel(kernel)) * 100.0 / ticks(&busy, of_kernel(kernel))
    };
    let in_kernel = |known: &KnownTicks| matches!(known.mode, Mode::Kernel | Mode::Interrupt);
    let both_days: BTreeSet<usize> = (0..2)
        .map(|day| all.iter().filter(move |known| known.day == day))
        .map(|known| known.map(|known| known.host).collect())
        .reduce(|one: BTreeSet<usize>, other| &one & &other)
        .unwrap_or_default();
    let known_on_both_days = |known: &KnownTicks| {
        let is_known = known.interrupts_off.is_some() && both_days.contains(&known.host);
        is_known.then(|| host(known))?
    };
    let zone = |known: &KnownTicks| {
        Some(if known.host.is_multiple_of(2) {
            "north"
        } else {
            "south"
        })
    };
    let fault = |known: &KnownTicks| known.stack.contains(&"do_fault").then(|| host(known))?;
    let caller =
        |known: &KnownTicks| (function(known) == Some("copy_page")).then(|| known.stack[1]);
    BTreeMap::from([
        ("top_functions", by(&busy, function, seconds)),
        ("hosts_with_function", by(&busy, fault, seconds)),
        (
            "by_process",
            by(&busy, |known| Some(known.process), seconds),
        ),
        (
            "by_host",
            by(all, host, |known| percent(known, is_busy, |_| true)),
        ),
        ("by_label", by(&busy, zone, seconds)),
        (
            "kernel_share_by_release",
            by(
                &busy,
                |known| Some(known.kernel),
                |known| percent(known, in_kernel, |_| true),
            ),
        ),
        (
            "functions_that_regressed",
            by(&busy, function, |known| {
                share(known, "6.12.2") - share(known, "6.12.1")
            }),
        ),
        (
            "diff_of_two_days",
            by(&busy, function, |known| days(known, &seconds)),
        ),
        (
            "hosts_whose_interrupts_off_time_grew",
            by(all, known_on_both_days, |known| days(known, &percent_off)),
        ),
        ("callers_of", by(&busy, caller, seconds)),
    ])
}
