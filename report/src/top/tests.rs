//! Screens of several sizes against golden text.

#[path = "../../tests/shared/data.rs"]
mod data;

use std::time::Duration;

use kvmprof_recording::file::ProcessLabels;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::style::Color;

use super::draw::draw;
use super::plain::print;
use super::testing::{HOSTILE, hostile_model, model, snapshot};
use super::{Model, Target, View};

const SIZES: [(u16, u16); 3] = [(80, 24), (40, 10), (200, 50)];

fn screen(terminal: &mut Terminal<TestBackend>, view: &View, colours: bool) -> String {
    let (snapshot, mut view) = (snapshot(), view.clone());
    terminal
        .draw(|frame| draw(frame, &snapshot, &mut view, colours))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let mut text = String::new();
    for row in buffer.content.chunks(width) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn view(keys: &[KeyCode]) -> View {
    let (mut view, snapshot) = (View::default(), snapshot());
    for code in keys {
        view.key(KeyEvent::from(*code), &snapshot);
    }
    view
}

fn assert_golden(name: &str, text: &str) {
    data::check(&format!("top/{name}"), text.as_bytes());
}

#[test]
fn screens_look_as_they_should_in_all_sizes() {
    let views = [
        ("overview", vec![]),
        ("processes", vec![KeyCode::Char('p')]),
        ("functions", vec![KeyCode::Tab, KeyCode::Down]),
        ("stacks", vec![KeyCode::Char(' '), KeyCode::Enter]),
        ("tree", vec![KeyCode::Char('t')]),
        (
            "tree-of-process",
            vec![KeyCode::Enter, KeyCode::Char('t'), KeyCode::Down],
        ),
        ("filter", "/wea".chars().map(KeyCode::Char).collect()),
        ("help", vec![KeyCode::Char('h')]),
    ];
    for (width, height) in SIZES {
        for (name, keys) in &views {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let text = screen(&mut terminal, &view(keys), false);
            assert_golden(&format!("{name}-{width}x{height}.txt"), &text);
        }
    }
}

#[test]
fn tables_for_pipes_look_as_they_should() {
    let mut out = Vec::new();
    print(&snapshot(), 20, &mut out).unwrap();
    assert_golden("plain.txt", &String::from_utf8(out).unwrap());
}

/// The live view with `--by user`: pid 7 has a label.
#[test]
fn values_of_a_label_are_a_table_of_their_own() {
    let labels = ProcessLabels {
        pid: 7,
        time: 0,
        labels: [("user".to_owned(), "1000\x1b".to_owned())].into(),
    };
    let mut stream = super::testing::stream();
    let [seven, eight] = [7, 8].map(|pid| super::testing::process(pid, &[0x2004, 0x1008]));
    let samples = stream.samples(&[seven.clone(), seven, eight]);
    let bytes = [stream.begin(), labels.to_block().unwrap(), samples].concat();
    let second = Duration::from_secs(1);
    let mut model = Model::new(second, Duration::ZERO).with_label(Some("user".into()));
    model.feed(&bytes, second).unwrap();
    let snapshot = model.snapshot();
    let mut out = Vec::new();
    print(&snapshot, 20, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    let (_, table) = out.split_once("USER                       TICKS").unwrap();
    let mut lines = table.lines().skip(1);
    for row in [
        "1000\u{fffd}                          2  66.7 %",
        "[none]                         1  33.3 %",
    ] {
        assert!(lines.next().unwrap().starts_with(row), "{out}");
    }
    let mut view = View::default();
    for code in [KeyCode::Tab, KeyCode::Tab, KeyCode::Down, KeyCode::Enter] {
        view.key(KeyEvent::from(code), &snapshot);
    }
    let target = view.target.clone().unwrap();
    assert_eq!(target, Target::Label(None));
    assert_eq!(super::view::title(&target, &snapshot), "user=[none]");
    let stacks = snapshot.stacks(&target);
    assert!(stacks.len() == 1 && stacks[0].pid == 8);
}

#[test]
fn colours_are_used_only_where_they_may() {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let has_colour = |terminal: &Terminal<TestBackend>| {
        let mut cells = terminal.backend().buffer().content.iter();
        cells.any(|cell| [cell.fg, cell.bg] != [Color::Reset; 2])
    };
    let plain = screen(&mut terminal, &view(&[]), false);
    assert!(!has_colour(&terminal));
    let coloured = screen(&mut terminal, &view(&[]), true);
    assert!(has_colour(&terminal));
    assert_eq!(plain, coloured);
}

#[test]
fn any_size_can_be_drawn_and_a_resize_clears_the_screen() {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let tables = [view(&[]), view(&[KeyCode::Tab]), view(&[KeyCode::Enter])];
    let first = screen(&mut terminal, &tables[0], false);
    for width in [1, 2, 7, 10, 39, 72, 80, 300] {
        for height in [1, 2, 3, 5, 24, 80] {
            terminal.backend_mut().resize(width, height);
            for view in &tables {
                screen(&mut terminal, view, true);
            }
        }
    }
    terminal.backend_mut().resize(80, 24);
    assert_eq!(screen(&mut terminal, &tables[0], false), first);
}

#[test]
fn there_is_a_screen_before_the_first_ticks() {
    let empty = Model::new(Duration::from_secs(1), Duration::ZERO);
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    for keys in [vec![], vec![KeyCode::Tab, KeyCode::Enter, KeyCode::End]] {
        let mut view = view(&keys);
        let snapshot = empty.snapshot();
        terminal
            .draw(|frame| draw(frame, &snapshot, &mut view, true))
            .unwrap();
    }
    let mut model = model();
    model.advance(Duration::from_secs(100));
    let snapshot = model.snapshot();
    assert_eq!(super::lines::rate(&snapshot), "no ticks in the window");
}

#[test]
fn high_losses_are_shown_with_the_rate() {
    let second = Duration::from_secs(1);
    let mut model = Model::new(10 * second, Duration::ZERO);
    let mut stream = super::testing::stream();
    let gap = kvmprof_recording::Ticks {
        stolen: 90,
        lost: 10,
        ..kvmprof_recording::Ticks::default()
    };
    let bytes = [stream.begin(), stream.samples(&[(gap, Vec::new())])].concat();
    model.feed(&bytes, second).unwrap();
    let rate = super::lines::rate(&model.snapshot());
    assert!(rate.ends_with(": shares mislead"), "{rate}");
    assert!(!super::lines::rate(&snapshot()).contains("mislead"));
}

#[test]
fn stacks_scroll_to_their_end_and_back() {
    let mut terminal = Terminal::new(TestBackend::new(40, 10)).unwrap();
    let (mut view, snapshot) = (view(&[KeyCode::Enter, KeyCode::End]), snapshot());
    let mut draw = |view: &mut View| {
        terminal
            .draw(|frame| draw(frame, &snapshot, view, false))
            .unwrap();
        view.scroll
    };
    // Four of eight lines fit.
    assert_eq!(draw(&mut view), 4);
    view.key(KeyEvent::from(KeyCode::Up), &snapshot);
    assert_eq!(draw(&mut view), 3);
}

/// Neither on the screen nor for a pipe, for any names of the guest's kernel and programs.
#[test]
fn hostile_names_are_escaped() {
    let hostile = hostile_model().snapshot();
    let mut out = Vec::new();
    print(&hostile, 20, &mut out).unwrap();
    let mut shown = String::from_utf8(out).unwrap();
    let mut terminal = Terminal::new(TestBackend::new(200, 50)).unwrap();
    for keys in [vec![], vec![KeyCode::Tab], vec![KeyCode::Enter]] {
        let mut view = View::default();
        for code in keys {
            view.key(KeyEvent::from(code), &hostile);
        }
        let drawn = terminal.draw(|frame| draw(frame, &hostile, &mut view, false));
        let cells = &drawn.unwrap().buffer.content;
        shown.extend(cells.iter().map(|cell| cell.symbol()));
    }
    // The names are there, without their hostile characters.
    for part in ["vmlinuz-a\u{fffd}a", "copy_a\u{fffd}a", "n?[2J"] {
        assert!(shown.contains(part), "{part:?} in {shown:?}");
    }
    for evil in HOSTILE {
        assert!(!shown.contains(evil), "{evil:?} in {shown:?}");
    }
}
