//! Recordings through everything that is made of them.
//!
//! The first byte chooses: 0 has the rest be blocks, which get sound headers and checksums, so that what is in them is
//! reached; 1 has it be the file as it is.

use std::io::sink;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use kvmprof_recording::StackEnd;
use kvmprof_recording::file::{
    Block, Contents, HEADER, Kind, Recording, TasksEncoder, Unobserved, header,
};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack};
use kvmprof_report::boot::{Boot, Levels, Summary, compare};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::diff::{changes, folded_changes};
use kvmprof_report::exits;
use kvmprof_report::export::{Events, Format, Source};
use kvmprof_report::graph::Graph;
use kvmprof_report::html::{BesideTicks, Counts, page};
use kvmprof_report::profile::{
    Grouping, Layout, Levels as TableLevels, Profile, Relation, Relatives, Selection, SortBy,
    TableStyle, document, folded, functions, label_keys, print,
};
use kvmprof_report::stalls::{self, StallWatcher, Stalls};
use kvmprof_report::symbolize::{Resolver, SourceTexts};
use kvmprof_report::tasks::{self, TaskSums};
use kvmprof_report::top::Model;

use crate::input::{Input, block};

#[path = "../../../report/tests/exports/recording.rs"]
pub mod example;

const KINDS: [Kind; 16] = [
    Kind::Info,
    Kind::Symbols,
    Kind::Samples,
    Kind::End,
    Kind::Mappings,
    Kind::Binary,
    Kind::Kernel,
    Kind::Reset,
    Kind::Tasks,
    Kind::Details,
    Kind::Times,
    Kind::Labels,
    Kind::Functions,
    Kind::GeneratedCode,
    Kind::Exits,
    Kind::Pause,
];

/// The file that an input stands for.
pub fn file(data: &[u8]) -> Vec<u8> {
    let mut input = Input::new(data);
    if input.u8() % 2 == 1 {
        return input.rest().to_vec();
    }
    let mut bytes = header().to_vec();
    while !input.is_empty() {
        let kind = KINDS[usize::from(input.u8()) % KINDS.len()];
        bytes.extend(Block::encode(kind, input.block()).unwrap_or_default());
    }
    bytes
}

/// Reads the recording, and has all be made of it that can be.
pub fn run(data: &[u8]) {
    let bytes = file(data);
    let mut model = Model::new(Duration::from_secs(10), Duration::ZERO);
    if model.feed(&bytes, Duration::from_secs(1)).is_ok() {
        model.snapshot();
    }
    let Ok(recording) = Recording::from_bytes(Path::new("fuzzed"), bytes) else {
        return;
    };
    let Ok(contents) = recording.contents() else {
        return;
    };
    let resolver = Resolver::from_contents(&contents);
    let selection = Selection::default();
    if let Ok(sums) = TaskSums::read(&recording, &contents, &selection, &Unobserved) {
        tasks::print(&sums, &resolver, 50, &mut sink()).unwrap();
        let room = OutputBudget::new(64 << 20);
        if let Ok(document) = tasks::document(&sums, &resolver, 50, &room) {
            serde_json::to_vec(&document).unwrap();
        }
        if let Ok(lines) = tasks::folded(&sums, &resolver, &room) {
            let _empty = Graph::default().draw(&lines);
        }
    }
    let _none = exits::sum(&recording, &selection.time, &Unobserved);
    stall_tables(&recording, &contents);
    let seen = (Counts::default(), BesideTicks::default());
    let mut watcher = (seen, Events::new(None));
    let read = Profile::read_with(&recording, selection, resolver, &Unobserved, &mut watcher);
    let Ok(profile) = read else {
        return;
    };
    let (seen, events) = watcher;
    report(&profile);
    let side = (&profile, Some(&seen.0));
    changes(side, side, SortBy::Total);
    page(&profile, vec![seen], "title", &SourceTexts::default());
    let Ok(source) = Source::new(recording, profile, events) else {
        return;
    };
    if let Ok(boot) = Boot::read(&source, &Levels::default(), &Unobserved) {
        let summary = Summary::new(&[boot], &Levels::default());
        compare(&summary, &summary);
    }
    // It says itself what it has no room for.
    for format in Format::value_variants() {
        if *format == Format::PerfData {
            let folder = tempfile::tempdir().unwrap();
            let _refused = format.write_file(&source, &folder.path().join("perf.data"));
        } else {
            let _refused = format.write(&source, &mut sink());
        }
    }
}

/// What held the guest up.
fn stall_tables(recording: &Recording, contents: &Contents) {
    let mut watcher = StallWatcher::default();
    let resolver = Resolver::from_contents(contents);
    let selection = Selection::default();
    let read = Profile::read_with(recording, selection, resolver, &Unobserved, &mut watcher);
    let Ok(profile) = read else {
        return;
    };
    let Ok(stalls) = Stalls::new(&profile, watcher, 50, &OutputBudget::new(64 << 20)) else {
        return;
    };
    stalls::print(&profile, &stalls, TableStyle::default(), &mut sink()).unwrap();
    serde_json::to_vec(&stalls).unwrap();
}

/// All tables of it.
pub fn report(profile: &Profile) {
    let tables = Grouping::ALL
        .into_iter()
        .map(|(table, ..)| TableLevels::from(table));
    let labels = label_keys(profile).into_iter().map(str::to_owned);
    let labels = labels.map(|key| TableLevels::from(Grouping::Label(key)));
    let levels = TableLevels::named(["mode", "user", "process", "module", "function", "line"]);
    let layout = Layout {
        tables: tables.chain(labels).chain(levels).collect(),
        sort: SortBy::Total,
        top: 50,
        style: TableStyle {
            bars: true,
            colours: true,
        },
    };
    let all = functions(profile, SortBy::Own);
    let relatives: Vec<Relatives> = all
        .first()
        .into_iter()
        .filter_map(|first| Relatives::new(profile, &first.name, Relation::Callers))
        .collect();
    let room = OutputBudget::new(1 << 30);
    let _too_large = print(profile, &layout, &[], &room, &mut sink());
    print(profile, &layout, &relatives, &room, &mut sink()).unwrap();
    serde_json::to_vec(&document(profile, SortBy::Own, 50)).unwrap();
    let _empty = Graph::default().draw(&folded(profile, &room).unwrap_or_default());
    changes((profile, None), (profile, None), SortBy::Own);
    let _unlike = folded_changes(profile, profile, &room);
}

/// A recording with symbols, mappings, a program and stacks, by its blocks and as it is.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let (_folder, path) = example::recording(1);
    let file = std::fs::read(path).unwrap();
    let mut blocks = vec![0];
    let mut rest = &file[HEADER..];
    while let Some(next) = Block::decode(rest) {
        let kind = KINDS.iter().position(|kind| Some(*kind) == next.kind);
        blocks.push(u8::try_from(kind.unwrap()).unwrap());
        blocks.extend(block(&next.contents));
        rest = &rest[next.length..];
    }
    let mut looks = TasksEncoder::default();
    looks.push(&look(), |_| true);
    let looks = [&blocks[..], &[8], &block(&looks.take())].concat();
    vec![
        ("blocks", blocks),
        ("looks", looks),
        ("file", [vec![1], file].concat()),
    ]
}

/// A look at a task that waits, and at one that runs.
fn look() -> TaskLook {
    let known = TaskStack::Known {
        first: 0,
        count: 2,
        scheduler: 1,
        end: StackEnd::Complete,
    };
    let task = |tid, stack| Task {
        pid: 1,
        tid,
        is_on_vcpu: stack == TaskStack::Absent,
        stack,
        ..Task::default()
    };
    TaskLook {
        is_complete: true,
        tasks: vec![task(1, known), task(2, TaskStack::Absent)],
        frames: vec![0xffff_ffff_8100_0010, 0xffff_ffff_8100_1010],
        ..TaskLook::default()
    }
}
