//! The page's data: for any recording and selection their sums equal `kvmprof report`'s.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::shared::pages::count;
use crate::shared::read::opened;
use crate::shared::walk;
use kvmprof_recording::Mode;
use kvmprof_recording::file::Unobserved;
use kvmprof_report::html::{BesideTicks, Counts, page};
use kvmprof_report::profile::{Criteria, Profile, Selection, SortBy, TimeRange, document};
use kvmprof_report::symbolize::SourceTexts;
use proptest::prelude::*;
use serde_json::Value;

/// The offset of each recording's vCPU numbers.
const RECORDING: u64 = 1 << 16;
const MODES: [&str; 4] = ["user", "kernel", "interrupt", "idle"];

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn read(path: &Path, selection: Selection, seen: &mut (Counts, BesideTicks)) -> Profile {
    let (recording, resolver) = opened(path);
    Profile::read_with(&recording, selection, resolver, &Unobserved, seen).unwrap()
}

/// The numbers of a packed text: LEB128 in base64.
fn unpacked(text: &str) -> Vec<u64> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut have) = (0_u64, 0);
    let (mut numbers, mut number, mut shift) = (Vec::new(), 0, 0);
    for letter in text.chars().filter(|letter| *letter != '=') {
        bits = bits << 6 | DIGITS.find(letter).unwrap() as u64;
        have += 6;
        if have >= 8 {
            have -= 8;
            let byte = bits >> have & 0xff;
            number |= (byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                numbers.push(number);
                (number, shift) = (0, 0);
            }
        }
    }
    numbers
}

fn signed(number: u64) -> i64 {
    let half = i64::try_from(number / 2).unwrap();
    if number % 2 == 1 { -half - 1 } else { half }
}

struct Cell {
    bin: u64,
    vcpu: u64,
    mode: usize,
    thread: usize,
    node: usize,
    ticks: u64,
}

/// The data of a page, as its script reads them.
struct Data {
    document: Value,
    cells: Vec<Cell>,
    /// By node: its parent and its function.
    nodes: Vec<(usize, usize)>,
    missed: Vec<u64>,
}

impl Data {
    fn of(page: &str) -> Self {
        let (_, rest) = page.split_once("id=data>").unwrap();
        let document: Value =
            serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
        let packed = |name: &str| unpacked(document[name].as_str().unwrap());
        let mut cells = Self::cells(&packed("cells"));
        let missed = packed("missed");
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let halted = &document["halted"];
        let gaps = missed.chunks_exact(6).filter(|numbers| numbers[2] > 0);
        cells.extend(gaps.map(|numbers| {
            let recording = usize::try_from(numbers[1] / RECORDING).unwrap();
            Cell {
                bin: numbers[0],
                vcpu: numbers[1] % RECORDING,
                mode: 3,
                thread: number(&halted["threads"][recording]),
                node: number(&halted["node"]),
                ticks: numbers[2],
            }
        }));
        let mut nodes = vec![(0, usize::MAX)];
        for numbers in packed("nodes")[1..].chunks_exact(2) {
            let back = usize::try_from(numbers[0]).unwrap();
            nodes.push((nodes.len() - back, usize::try_from(numbers[1] / 4).unwrap()));
        }
        Self {
            missed,
            document,
            cells,
            nodes,
        }
    }

    /// The cells of samples.
    fn cells(numbers: &[u64]) -> Vec<Cell> {
        let mut numbers = numbers.iter().copied();
        let length = usize::try_from(numbers.next().unwrap()).unwrap();
        let mut cells = Vec::with_capacity(length);
        let (mut bin, mut thread) = (0, 0);
        while let Some(difference) = numbers.next() {
            let mut number = || numbers.next().unwrap();
            bin += difference;
            let (place, thread_difference, count) = (number(), number(), number());
            thread += signed(thread_difference);
            let mut node = 0;
            for _ in 0..count {
                node += usize::try_from(number()).unwrap();
                cells.push(Cell {
                    bin,
                    vcpu: place / 4,
                    mode: usize::try_from(place % 4).unwrap(),
                    thread: thread.try_into().unwrap(),
                    node,
                    ticks: number(),
                });
            }
        }
        assert_eq!(cells.len(), length);
        cells
    }

    fn number(&self, name: &str) -> u64 {
        self.document[name].as_u64().unwrap()
    }

    fn pid(&self, thread: usize) -> i64 {
        self.document["threads"]["pid"][thread].as_i64().unwrap()
    }

    /// The time from an edge of bins to another one; open at the ends.
    fn time(&self, begin: u64, end: u64) -> TimeRange {
        let [first, width] = ["begin", "width"].map(|name| self.number(name));
        let edge = |edge: u64| Duration::from_nanos(first + edge * width);
        TimeRange {
            begin: (begin > 0).then(|| edge(begin)),
            end: (end < self.number("bins")).then(|| edge(end)),
        }
    }

    /// The data of some bins and of a process, in the form of [`essence`].
    fn sums(&self, begin: u64, end: u64, pid: Option<i32>) -> CommonData {
        let mut sums = CommonData::default();
        for cell in &self.cells {
            let own = self.pid(cell.thread);
            if !(begin..end).contains(&cell.bin) || pid.is_some_and(|pid| i64::from(pid) != own) {
                continue;
            }
            sums.samples += cell.ticks;
            sums.processes.entry(own).or_default()[cell.mode] += cell.ticks;
            sums.vcpus.entry(cell.vcpu).or_default()[cell.mode] += cell.ticks;
            self.add_functions(&mut sums, cell);
        }
        for numbers in self.missed.chunks_exact(6) {
            if (begin..end).contains(&numbers[0]) {
                for (sum, part) in sums.missed.iter_mut().zip(&numbers[3..]) {
                    *sum += part;
                }
            }
        }
        sums
    }

    fn add_functions(&self, sums: &mut CommonData, cell: &Cell) {
        let functions = &self.document["functions"];
        let mut seen = Vec::new();
        let (mut node, mut is_innermost) = (cell.node, true);
        while node != 0 {
            let (parent, function) = self.nodes[node];
            let module = usize::try_from(count(&functions["module"][function])).unwrap();
            let name = text(&functions["name"][function]);
            let module = text(&self.document["modules"]["name"][module]);
            let key = (name, module, functions["kernel"][function] == 1);
            let is_first = !seen.contains(&key);
            let (own, total) = sums.functions.entry(key.clone()).or_default();
            *own += if is_innermost { cell.ticks } else { 0 };
            *total += if is_first { cell.ticks } else { 0 };
            seen.push(key);
            (node, is_innermost) = (parent, false);
        }
    }
}

/// The common part of page and report.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommonData {
    samples: u64,
    processes: BTreeMap<i64, [u64; 4]>,
    vcpus: BTreeMap<u64, [u64; 4]>,
    functions: BTreeMap<(String, String, bool), (u64, u64)>,
    /// Stolen, lost, ungathered.
    missed: [u64; 3],
}

/// The same from a report.
fn essence(report: &Value) -> CommonData {
    let rows = |name: &str| report[name].as_array().unwrap().clone();
    let modes = |row: &Value| MODES.map(|mode| row[mode].as_u64().unwrap());
    let process = |row: &Value| (row["pid"].as_i64().unwrap(), modes(row));
    let vcpu = |row: &Value| (count(&row["vcpu"]), modes(row));
    let function = |row: &Value| {
        let (name, module) = (text(&row["name"]), text(&row["module"]));
        let ticks = (count(&row["self"]), count(&row["total"]));
        ((name, module, row["kernel"] == true), ticks)
    };
    CommonData {
        samples: count(&report["samples"]),
        processes: rows("processes").iter().map(process).collect(),
        vcpus: rows("vcpus").iter().map(vcpu).collect(),
        functions: rows("functions").iter().map(function).collect(),
        missed: ["stolen", "lost", "ungathered"].map(|name| count(&report["account"][name])),
    }
}

fn report_of(path: &Path, selection: Selection) -> CommonData {
    let profile = read(path, selection, &mut Default::default());
    essence(&document(&profile, SortBy::Own, usize::MAX))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any time between edges of bins and any process is selected, in the page or by the command that made it, with its other
    /// filters.
    #[test]
    fn the_page_agrees_with_the_report(
        seed in 1..u64::MAX,
        ticks in 0..2500_u64,
        (from, to) in (0..10_000_u64, 0..10_000_u64),
        chosen in prop::option::of(prop::sample::select(vec![-1, 0, 31, 32, 99])),
        first in prop::option::of((0..4000_u64, 1..4000_u64)),
        pids in prop::sample::select(vec![vec![], vec![31], vec![0, 32]]),
        vcpus in prop::sample::select(vec![vec![], vec![1]]),
        modes in prop::sample::select(vec![vec![], vec![Mode::Kernel, Mode::Idle]]),
        grep in prop::sample::select(vec![None, Some("^(copy|walk)_"), Some("halted")]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        walk::write(&path, seed, ticks);
        let ms = |(begin, length): (u64, u64)| TimeRange {
            begin: Some(Duration::from_millis(begin)),
            end: Some(Duration::from_millis(begin + length)),
        };
        let of_command = Selection {
            only: Criteria {
                pids: pids.clone(),
                vcpus,
                modes,
                greps: grep.iter().map(|grep| grep.parse().unwrap()).collect(),
                ..Criteria::default()
            },
            time: first.map_or(TimeRange::default(), ms),
            ..Selection::default()
        };
        let mut seen = Default::default();
        let profile = read(&path, of_command.clone(), &mut seen);
        let data = Data::of(&page(&profile, vec![seen], "A test", &SourceTexts::default()));
        let bins = data.number("bins");
        let edge = |part: u64| part * (bins + 1) / 10_000;
        let (begin, end) = (edge(from.min(to)), edge(from.max(to)));

        let whole = data.sums(0, bins, None);
        prop_assert_eq!(&whole, &report_of(&path, of_command.clone()));

        prop_assume!(begin < end);
        let mut time = data.time(begin, end);
        time.begin = time.begin.or(of_command.time.begin);
        time.end = match (time.end, of_command.time.end) {
            (Some(end), Some(limit)) => Some(end.min(limit)),
            (end, limit) => end.or(limit),
        };
        prop_assume!(chosen.is_none_or(|pid| pids.is_empty() || pids.contains(&pid)));
        let pids = chosen.map_or(pids, |pid| vec![pid]);
        let only = Criteria { pids, ..of_command.only };
        let expected = report_of(&path, Selection { only, time, ..of_command });
        prop_assert_eq!(data.sums(begin, end, chosen), expected);
    }
}
