//! Tests of `kvmprof report`'s tables and document.

use std::ops::ControlFlow;

use crate::exports::recording::recording;
use crate::shared::data::check;
use crate::shared::read::{opened, profile};
use kvmprof_recording::file::Observer;
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::profile::{
    Grouping, Layout, Profile, Relation, Relatives, Selection, SortBy, TableStyle, document, print,
    relatives_document,
};

fn printed(profile: &Profile, layout: &Layout, relatives: &[Relatives]) -> Vec<u8> {
    let mut out = Vec::new();
    let budget = OutputBudget::new(1 << 20);
    print(profile, layout, relatives, &budget, &mut out).unwrap();
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
    let profile = profile(&path, &[]);
    let plain = layout(TableStyle::default());
    check("report.txt", &printed(&profile, &plain, &[]));
    let by_total = Layout {
        tables: [Grouping::Line, Grouping::Function].map(Into::into).into(),
        sort: SortBy::Total,
        ..plain
    };
    check("report.total.txt", &printed(&profile, &by_total, &[]));
}

#[test]
fn a_terminal_gets_bars_and_colours() {
    let (_folder, path) = recording(2);
    for colours in [false, true] {
        let style = TableStyle {
            bars: true,
            colours,
        };
        let text = printed(&profile(&path, &[]), &layout(style), &[]);
        if colours {
            check("report.colours.txt", &text);
        } else {
            let text = String::from_utf8(text).unwrap();
            assert!(
                text.contains("████████████") && !text.contains('\x1b'),
                "{text}"
            );
        }
    }
}

#[test]
fn callers_and_callees_have_tables() {
    let (_folder, path) = recording(2);
    let profile = profile(&path, &[]);
    assert_eq!(Relatives::new(&profile, "nothing", Relation::Callers), None);
    let function = "Server::serve(std::string const&)";
    let relatives = [Relation::Callers, Relation::Callees];
    let relatives = relatives.map(|one| Relatives::new(&profile, function, one).unwrap());
    for (function, relation, ending) in [
        ("main", Relation::Callers, "[outermost]"),
        ("copy_page_to_iter", Relation::Callees, "[self]"),
    ] {
        let ends = Relatives::new(&profile, function, relation).unwrap().rows;
        assert!(ends.len() == 1 && &*ends[0].key.0 == ending, "{ends:?}");
    }
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
    let (recording, resolver) = opened(&path);
    let all = Selection::default();
    let observers = [&InterruptingObserver as &dyn Observer; 2];
    let read = Profile::read_observed(&recording, all, resolver, observers, &mut ());
    let profile = read.unwrap();
    assert!(profile.contents.unread > 0);
    let text = String::from_utf8(printed(&profile, &layout(TableStyle::default()), &[])).unwrap();
    let why = "Interrupted: this is what was read until then";
    assert!(text.contains(why), "{text}");
    let document = document(&profile, SortBy::Own, 8);
    assert_eq!(document["interrupted"], true);
}

#[test]
fn a_document_is_complete() {
    let (_folder, path) = recording(2);
    let document = document(&profile(&path, &[]), SortBy::Own, 8);
    let text = serde_json::to_vec_pretty(&document).unwrap();
    check("report.json", &text);
}

#[test]
fn a_part_of_the_time_has_its_own_account() {
    let (_folder, path) = recording(2);
    let whole = profile(&path, &[]);
    let times = ["--time=:0.2", "--time=0.2:0.5", "--time=0.5:"];
    let parts = times.map(|time| profile(&path, &[time]));
    for part in &parts {
        assert!(part.contents.account.balances());
        assert!(part.samples() > 0);
    }
    let sum = |count: fn(&Profile) -> u64| parts.iter().map(count).sum::<u64>();
    assert_eq!(sum(Profile::samples), whole.samples());
    let ticks = |part: &Profile| part.contents.account.ticks;
    assert_eq!(sum(ticks), ticks(&whole));
    let text = printed(&parts[1], &layout(TableStyle::default()), &[]);
    check("report.time.txt", &text);
}
