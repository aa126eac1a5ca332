//! Tests of `kvmprof report`'s tables and document.

use std::ops::ControlFlow;
use std::path::Path;

use crate::exports::recording::recording;
use crate::shared::data::check;
use kvmprof_recording::file::{Observer, Recording, Unobserved};
use kvmprof_report::profile::{
    Layout, Profile, Relation, Relatives, Section, Selection, SortBy, TableStyle, document, print,
    relatives_document,
};
use kvmprof_report::symbolize::Resolver;

fn profile(path: &Path, time: &str) -> Profile {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let selection = Selection {
        time: time.parse().unwrap(),
        ..Selection::default()
    };
    Profile::read(&recording, selection, resolver, &Unobserved).unwrap()
}

fn printed(profile: &Profile, layout: &Layout, relatives: &[Relatives]) -> Vec<u8> {
    let mut out = Vec::new();
    print(profile, layout, relatives, &mut out).unwrap();
    out
}

fn layout(style: TableStyle) -> Layout {
    Layout {
        top: 8,
        style,
        ..Layout::default()
    }
}

#[test]
fn a_pipe_gets_plain_tables() {
    let (_folder, path) = recording(2);
    let profile = profile(&path, ":");
    check(
        "report.txt",
        &printed(&profile, &layout(TableStyle::default()), &[]),
    );
    let by_total = Layout {
        sections: vec![Section::Line, Section::Function],
        sort: SortBy::Total,
        ..layout(TableStyle::default())
    };
    check("report.total.txt", &printed(&profile, &by_total, &[]));
}

#[test]
fn a_terminal_gets_bars_and_colours() {
    let (_folder, path) = recording(2);
    let style = TableStyle {
        bars: true,
        colours: true,
    };
    let text = printed(&profile(&path, ":"), &layout(style), &[]);
    check("report.colours.txt", &text);
}

#[test]
fn callers_and_callees_have_tables() {
    let (_folder, path) = recording(2);
    let profile = profile(&path, ":");
    let relatives = [Relation::Callers, Relation::Callees].map(|relation| {
        Relatives::new(&profile, "Server::serve(std::string const&)", relation).unwrap()
    });
    let text = printed(&profile, &layout(TableStyle::default()), &relatives);
    check("report.callers.txt", &text);
    let document = relatives_document(&relatives[0], 8);
    let text = serde_json::to_vec_pretty(&document).unwrap();
    check("report.callers.json", &text);
}

/// Interrupts the work at its first step.
struct InterruptingObserver;

impl Observer for InterruptingObserver {
    fn advance(&self, _done: u64, _whole: u64) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

#[test]
fn an_interrupted_run_is_marked() {
    let (_folder, path) = recording(2);
    let recording = Recording::open(&path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let (all, observers) = (
        Selection::default(),
        [&InterruptingObserver as &dyn Observer; 2],
    );
    let read = Profile::read_observed(&recording, all, resolver, observers, &mut ());
    let profile = read.unwrap();
    assert!(profile.contents.unread > 0);
    let text = String::from_utf8(printed(&profile, &layout(TableStyle::default()), &[])).unwrap();
    assert!(
        text.contains("Interrupted: this is what was read until then"),
        "{text}"
    );
    let document = document(&profile, SortBy::Own, 8);
    assert_eq!(document["interrupted"], true);
}

#[test]
fn a_document_is_complete() {
    let (_folder, path) = recording(2);
    let document = document(&profile(&path, ":"), SortBy::Own, 8);
    let text = serde_json::to_vec_pretty(&document).unwrap();
    check("report.json", &text);
}

#[test]
fn a_part_of_the_time_has_its_own_account() {
    let (_folder, path) = recording(2);
    let whole = profile(&path, ":");
    let parts = [":0.2", "0.2:0.5", "0.5:"].map(|time| profile(&path, time));
    for part in &parts {
        assert!(part.contents.account.balances());
        assert!(part.samples() > 0);
    }
    let sum = |count: fn(&Profile) -> u64| parts.iter().map(count).sum::<u64>();
    assert_eq!(sum(Profile::samples), whole.samples());
    assert_eq!(
        sum(|part| part.contents.account.ticks),
        whole.contents.account.ticks
    );
    let text = printed(&parts[1], &layout(TableStyle::default()), &[]);
    check("report.time.txt", &text);
}
