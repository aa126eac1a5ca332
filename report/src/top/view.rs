//! The user's view of a snapshot, and the keys that change it.

use std::cmp::Reverse;

use kvmprof_recording::Mode;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::model::sum_modes;
use crate::profile::{LabelRow, ModeCounts, label_name};

use super::snapshot::{FunctionId, FunctionRow, ProcessRow, Snapshot, Target};

/// Number of rows that a page key moves by.
const PAGE: usize = 10;
/// Maximum number of characters of a filter.
const MAX_FILTER: usize = 64;

/// The table that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Table {
    /// Processes, and functions below them, both with bars.
    #[default]
    Overview,
    /// Processes.
    Processes,
    /// Functions.
    Functions,
    /// Values of a label, if there is one.
    Labels,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Most ticks first: of functions, those with the program counter in the function.
    #[default]
    Own,
    /// Most ticks first: in the kernel (processes, labels), or with the function on the stack (functions).
    Total,
    /// Lowest pid first (processes), or by name (functions, labels).
    Name,
}

/// What to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Go on.
    Continue,
    /// Quit.
    Quit,
}

/// The table, order, filter and selection that the user has chosen.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The table that is shown.
    pub table: Table,
    /// Its order.
    pub order: Order,
    /// Only rows with this in their name, pid or process are shown.
    pub filter: String,
    /// True while the filter is being typed.
    pub is_typing: bool,
    /// True while the help is shown.
    pub has_help: bool,
    /// What has its stacks on the screen instead of the table.
    pub target: Option<Target>,
    /// Whether the call tree of these stacks is shown instead.
    pub is_tree: bool,
    /// The first line of the stacks on the screen.
    pub scroll: usize,
    /// The frozen snapshot.
    frozen: Option<Box<Snapshot>>,
    /// The selected row. It stays selected when its position changes.
    selected: Option<Target>,
    cursor: usize,
}

impl View {
    /// The snapshot to show: `latest`, or the frozen one.
    pub fn choose<'a>(&'a self, latest: &'a Snapshot) -> &'a Snapshot {
        self.frozen.as_deref().unwrap_or(latest)
    }

    /// True while the snapshot is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// The processes to show, in order.
    pub fn processes<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a ProcessRow> {
        let mut rows: Vec<&ProcessRow> = snapshot
            .processes
            .iter()
            .filter(|row| self.matches(&[&row.name, &row.pid.to_string()]))
            .collect();
        rows.sort_by_key(|row| (Reverse(self.count(row.modes)), row.pid));
        rows
    }

    /// The values of the label to show, in order.
    pub fn labels<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a LabelRow> {
        let rows = snapshot.labels.iter();
        let rows = rows.filter(|row| self.matches(&[row.shown_value()]));
        let mut rows: Vec<&LabelRow> = rows.collect();
        rows.sort_by_key(|row| (Reverse(self.count(row.modes)), &row.value));
        rows
    }

    /// What rows with ticks by mode are ordered by.
    fn count(&self, modes: ModeCounts) -> u64 {
        match self.order {
            Order::Own => sum_modes(&modes),
            Order::Total => {
                modes[Mode::Kernel.index()].saturating_add(modes[Mode::Interrupt.index()])
            }
            Order::Name => 0,
        }
    }

    /// The functions to show, in order.
    pub fn functions<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a FunctionRow> {
        let mut rows: Vec<&FunctionRow> = snapshot
            .functions
            .iter()
            .filter(|row| self.matches(&[&row.function.name, &row.process]))
            .collect();
        rows.sort_by(|left, right| {
            let counts = |row: &FunctionRow| match self.order {
                Order::Own => (row.own, row.total),
                Order::Total => (row.total, row.own),
                Order::Name => (0, 0),
            };
            counts(right)
                .cmp(&counts(left))
                .then_with(|| left.function.name.cmp(&right.function.name))
                .then_with(|| left.function.cmp(&right.function))
        });
        rows
    }

    fn matches(&self, words: &[&str]) -> bool {
        let filter = self.filter.to_lowercase();
        words
            .iter()
            .any(|word| word.to_lowercase().contains(&filter))
    }

    /// The process, function or value of a label of each row of the table, in order.
    fn targets(&self, snapshot: &Snapshot) -> Vec<Target> {
        match self.table {
            Table::Overview | Table::Processes => self
                .processes(snapshot)
                .into_iter()
                .map(|row| Target::Process(row.pid))
                .collect(),
            Table::Functions => self
                .functions(snapshot)
                .into_iter()
                .map(|row| Target::Function(row.function.clone()))
                .collect(),
            Table::Labels => self
                .labels(snapshot)
                .into_iter()
                .map(|row| Target::Label(row.value.clone()))
                .collect(),
        }
    }

    /// The index of the selected row; the first one until a key selects another.
    pub fn cursor(&self, snapshot: &Snapshot) -> usize {
        self.position(&self.targets(snapshot))
    }

    fn position(&self, targets: &[Target]) -> usize {
        self.selected
            .as_ref()
            .and_then(|selected| targets.iter().position(|target| target == selected))
            .unwrap_or(self.cursor.min(targets.len().saturating_sub(1)))
    }

    /// Handles a key. The screen shows `latest` unless it is frozen.
    pub fn key(&mut self, key: KeyEvent, latest: &Snapshot) -> Action {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }
        if self.is_typing {
            self.type_filter(key);
        } else if self.has_help {
            self.has_help = false;
        } else if self.target.is_some() {
            return self.key_in_stacks(key.code, latest);
        } else {
            return self.key_in_table(key.code, latest);
        }
        Action::Continue
    }

    fn type_filter(&mut self, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.chars().count() < MAX_FILTER => {
                self.filter.push(letter);
            }
            _ => {}
        }
    }

    fn key_in_stacks(&mut self, code: KeyCode, latest: &Snapshot) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left | KeyCode::Enter => {
                self.target = None;
            }
            KeyCode::Char('t') => (self.is_tree, self.scroll) = (!self.is_tree, 0),
            KeyCode::Char(' ') => self.freeze(latest),
            KeyCode::Char('h' | '?') => self.has_help = true,
            _ => {
                if let Some(scroll) = moved(self.scroll, code, usize::MAX) {
                    self.scroll = scroll;
                }
            }
        }
        Action::Continue
    }

    fn key_in_table(&mut self, code: KeyCode, latest: &Snapshot) -> Action {
        match code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('a') => self.show(Table::Overview),
            KeyCode::Char('p') => self.show(Table::Processes),
            KeyCode::Char('f') => self.show(Table::Functions),
            KeyCode::Tab => self.show(match self.table {
                Table::Overview => Table::Functions,
                Table::Functions if latest.by.is_some() => Table::Labels,
                Table::Functions | Table::Labels => Table::Processes,
                Table::Processes => Table::Overview,
            }),
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Own => Order::Total,
                    Order::Total => Order::Name,
                    Order::Name => Order::Own,
                }
            }
            KeyCode::Char('t') => {
                self.target = Some(Target::All);
                (self.is_tree, self.scroll) = (true, 0);
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char(' ') => self.freeze(latest),
            KeyCode::Char('h' | '?') => self.has_help = true,
            _ => self.key_on_rows(code, latest),
        }
        Action::Continue
    }

    fn key_on_rows(&mut self, code: KeyCode, latest: &Snapshot) {
        let mut targets = self.targets(self.choose(latest));
        let cursor = self.position(&targets);
        let last = targets.len().saturating_sub(1);
        if matches!(code, KeyCode::Enter | KeyCode::Right) && cursor < targets.len() {
            let target = targets.swap_remove(cursor);
            self.selected = Some(target.clone());
            self.target = Some(target);
            self.scroll = 0;
        } else if let Some(cursor) = moved(cursor, code, last)
            && cursor < targets.len()
        {
            self.cursor = cursor;
            self.selected = Some(targets.swap_remove(cursor));
        }
    }

    fn show(&mut self, table: Table) {
        if self.table != table {
            self.table = table;
            self.selected = None;
            self.cursor = 0;
        }
    }

    fn freeze(&mut self, latest: &Snapshot) {
        self.frozen = match self.frozen {
            Some(_) => None,
            None => Some(Box::new(latest.clone())),
        };
    }
}

/// The new position after a key, at most `last`; `None` if it isn't a key for moving.
fn moved(position: usize, code: KeyCode, last: usize) -> Option<usize> {
    let position = match code {
        KeyCode::Up | KeyCode::Char('k') => position.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => position.saturating_add(1),
        KeyCode::PageUp => position.saturating_sub(PAGE),
        KeyCode::PageDown => position.saturating_add(PAGE),
        KeyCode::Home => 0,
        KeyCode::End => last,
        _ => return None,
    };
    Some(position.min(last))
}

/// The name of what has its stacks on the screen.
pub fn title(target: &Target, snapshot: &Snapshot) -> String {
    match target {
        Target::All => "all".to_owned(),
        Target::Process(pid) => format!("{pid} {}", snapshot.process_name(*pid)),
        Target::Function(FunctionId { pid, name }) => match pid {
            Some(pid) => format!("{name} of {pid} {}", snapshot.process_name(*pid)),
            None => name.to_string(),
        },
        Target::Label(value) => {
            label_name(snapshot.by.as_deref().unwrap_or_default(), value.as_deref())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::snapshot;
    use super::*;

    fn press(view: &mut View, snapshot: &Snapshot, keys: &[KeyCode]) {
        for code in keys {
            let action = view.key(KeyEvent::from(*code), snapshot);
            assert_eq!(action, Action::Continue, "{code:?}");
        }
    }

    fn pids(view: &View, snapshot: &Snapshot) -> Vec<i32> {
        let rows = view.processes(snapshot);
        rows.iter().map(|row| row.pid).collect()
    }

    fn labels<'a>(view: &View, snapshot: &'a Snapshot) -> Vec<&'a str> {
        let rows = view.functions(snapshot);
        rows.iter().map(|row| &*row.function.name).collect()
    }

    #[test]
    fn rows_are_in_the_selected_order() {
        let (mut view, snapshot) = (View::default(), snapshot());
        assert_eq!(pids(&view, &snapshot), [7, 0, 12]);
        press(&mut view, &snapshot, &[KeyCode::Char('s')]);
        assert_eq!(pids(&view, &snapshot), [7, 0, 12]);
        press(&mut view, &snapshot, &[KeyCode::Char('s')]);
        assert_eq!(pids(&view, &snapshot), [0, 7, 12]);
        press(&mut view, &snapshot, &[KeyCode::Tab, KeyCode::Char('s')]);
        assert_eq!(labels(&view, &snapshot)[..2], ["0x400100", "[halted]"]);
        press(&mut view, &snapshot, &[KeyCode::Char('s')]);
        assert_eq!(labels(&view, &snapshot)[2], "copy_page");
        assert_eq!(labels(&view, &snapshot)[4], "do_syscall");
    }

    #[test]
    fn a_filter_is_typed_kept_and_cleared() {
        let (mut view, snapshot) = (View::default(), snapshot());
        press(
            &mut view,
            &snapshot,
            &['/', 'W', 'E', 'q'].map(KeyCode::Char),
        );
        assert_eq!(pids(&view, &snapshot), [0_i32; 0]);
        press(&mut view, &snapshot, &[KeyCode::Backspace, KeyCode::Enter]);
        assert!(!view.is_typing);
        assert_eq!(pids(&view, &snapshot), [12]);
        press(&mut view, &snapshot, &[KeyCode::Tab]);
        assert_eq!(labels(&view, &snapshot), ["0x400100"]);
        press(&mut view, &snapshot, &[KeyCode::Esc]);
        assert_eq!(labels(&view, &snapshot).len(), 7);
    }

    #[test]
    fn the_selected_row_stays_selected_when_rows_move() {
        let (mut view, snapshot) = (View::default(), snapshot());
        press(&mut view, &snapshot, &[KeyCode::Down; 3]);
        assert_eq!(view.cursor(&snapshot), 2);
        let mut later = snapshot.clone();
        later.processes[2].modes[0] = 1000;
        assert_eq!(pids(&view, &later), [12, 7, 0]);
        assert_eq!(view.cursor(&later), 0);
        later.processes.clear();
        assert_eq!(view.cursor(&later), 0);
        press(&mut view, &later, &[KeyCode::Enter]);
        assert_eq!(view.target, None);
    }

    #[test]
    fn a_row_leads_to_its_stacks_and_back() {
        let (mut view, snapshot) = (View::default(), snapshot());
        press(&mut view, &snapshot, &[KeyCode::Enter, KeyCode::Down]);
        assert_eq!(view.target, Some(Target::Process(7)));
        assert_eq!(view.scroll, 1);
        press(&mut view, &snapshot, &[KeyCode::Esc]);
        assert_eq!(view.target, None);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(control_c, &snapshot), Action::Quit);
        let quit = KeyEvent::from(KeyCode::Char('q'));
        assert_eq!(view.key(quit, &snapshot), Action::Quit);
    }

    #[test]
    fn a_frozen_snapshot_stays_until_it_is_released() {
        let (mut view, snapshot) = (View::default(), snapshot());
        press(&mut view, &snapshot, &[KeyCode::Char(' '), KeyCode::Down]);
        let mut later = snapshot.clone();
        later.processes.clear();
        assert!(view.is_frozen());
        assert_eq!(view.choose(&later).processes.len(), 3);
        press(&mut view, &later, &[KeyCode::Char(' ')]);
        assert!(view.choose(&later).processes.is_empty());
    }
}
