//! Parquet files and the queries that go with them, in DuckDB: each answer is known.

use std::collections::BTreeMap;
use std::path::Path;

use kvmprof_collect::batch::Batch;
use kvmprof_collect::config::SinkKind;
use kvmprof_recording::Mode;
use serde_json::Value;

use super::fleet::{self, DAYS, HOSTS, HZ, Known, WINDOWS};
use super::{hand_over, python, root};

/// The rows of a query: what is in the first column, and the number in another one.
type Answer = Vec<(String, f64)>;

fn ticks(known: &[Known], is: impl Fn(&Known) -> bool) -> f64 {
    let ticks = known
        .iter()
        .filter(|known| is(known))
        .map(|known| known.ticks);
    f64::from(u32::try_from(ticks.sum::<u64>()).unwrap())
}

fn is_busy(known: &Known) -> bool {
    known.mode != Mode::Idle
}

/// Ticks, or what `of` makes of them, by a name, the most first.
fn by<K: Ord + ToString>(
    known: &[Known],
    key: impl Fn(&Known) -> Option<K>,
    of: impl Fn(&[Known]) -> f64,
) -> Answer {
    let mut groups: BTreeMap<K, Vec<Known>> = BTreeMap::new();
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
    answer
}

fn seconds(known: &[Known]) -> f64 {
    ticks(known, |_| true) / f64::from(HZ)
}

fn percent(known: &[Known], part: impl Fn(&Known) -> bool, of: impl Fn(&Known) -> bool) -> f64 {
    ticks(known, part) * 100.0 / ticks(known, of)
}

fn expected() -> BTreeMap<&'static str, Answer> {
    let all = fleet::all();
    let busy: Vec<Known> = all.iter().filter(|known| is_busy(known)).cloned().collect();
    let function = |known: &Known| known.stack.first().copied();
    let host = |known: &Known| Some(format!("host-{}", known.host));
    let days = |known: &[Known], of: &dyn Fn(&[Known]) -> f64| {
        let day = |day| -> Vec<Known> {
            known
                .iter()
                .filter(|known| known.day == day)
                .cloned()
                .collect()
        };
        of(&day(1)) - of(&day(0))
    };
    let of_kernel = |kernel: &'static str| move |known: &Known| known.kernel == kernel;
    let share = |known: &[Known], kernel| {
        ticks(known, of_kernel(kernel)) * 100.0 / ticks(&busy, of_kernel(kernel))
    };
    let is_interrupt = |known: &Known| known.mode == Mode::Interrupt;
    let in_kernel = |known: &Known| matches!(known.mode, Mode::Kernel | Mode::Interrupt);
    let zone = |known: &Known| {
        Some(if known.host.is_multiple_of(2) {
            "north"
        } else {
            "south"
        })
    };
    let fault = |known: &Known| known.stack.contains(&"do_fault").then(|| host(known))?;
    let caller = |known: &Known| (function(known) == Some("copy_page")).then(|| known.stack[1]);
    BTreeMap::from([
        ("top_functions", by(&busy, function, seconds)),
        ("hosts_with_function", by(&busy, fault, seconds)),
        (
            "by_process",
            by(&busy, |known| Some(known.process), seconds),
        ),
        (
            "by_host",
            by(&all, host, |known| percent(known, is_busy, |_| true)),
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
            "hosts_whose_interrupts_grew",
            by(&all, host, |known| {
                days(known, &|known| percent(known, is_interrupt, |_| true))
            }),
        ),
        ("callers_of", by(&busy, caller, seconds)),
    ])
}

#[test]
fn duckdb_answers_every_query_as_the_fleet_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let lake = folder.path().join("lake");
    for host in 0..HOSTS {
        let mut batches: Vec<Batch> = Vec::new();
        for day in 0..DAYS.len() {
            batches.extend((0..WINDOWS).map(|window| fleet::batch(day, host, window)));
        }
        let ticks: u64 = batches.iter().map(Batch::ticks).sum();
        let kind = SinkKind::Parquet {
            folder: lake.clone(),
            seconds: 30,
        };
        // The last ones wait for more, until the spool is closed.
        let progress = hand_over(kind, &batches, |progress| {
            progress.delivered.ticks > ticks / 2
        });
        assert!(progress.delivered.ticks < ticks);
    }
    check_answers(&lake);
}

/// Has DuckDB answer all queries on the fleet's files below `lake`.
pub fn check_answers(lake: &Path) {
    let queries = root().join("packaging/kvmprof-collect/queries.sql");
    let output = python("query.py").arg(queries).arg(lake).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut answers: BTreeMap<String, Vec<Vec<Value>>> =
        serde_json::from_slice(&output.stdout).unwrap();
    for (name, expected) in expected() {
        let rows = answers.remove(name).unwrap();
        let found: Answer = rows
            .iter()
            .map(|row| {
                let mut numbers = row.iter().skip(1).filter_map(Value::as_f64);
                (row[0].as_str().unwrap().to_owned(), numbers.next().unwrap())
            })
            .collect();
        let is_same = found.len() == expected.len()
            && found.iter().zip(&expected).all(|(found, expected)| {
                found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6
            });
        assert!(
            is_same && (found.len() > 1 || name == "callers_of"),
            "{name}: {found:?}, not {expected:?}"
        );
    }
    assert!(answers.is_empty(), "{answers:?}");
}
