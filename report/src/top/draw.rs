//! Draws a view of a snapshot on a screen of any size.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use crate::profile::{TREE_HEADING, TreeLine};

use super::lines;
use super::snapshot::{Snapshot, Target};
use super::view::{Order, Table, View, title};

/// Maximum number of lines of stacks.
const MAX_STACK_LINES: usize = 10_000;

const HELP: [&str; 14] = [
    "a p f Tab      all, processes, functions",
    "s              next order",
    "/              filter: type, Enter keeps",
    "Esc            clear the filter, go back",
    "up down k j    select, scroll",
    "PgUp PgDn      likewise; Home, End",
    "Enter          stacks of that row",
    "t              call tree, or the stacks",
    "space          freeze, go on",
    "h ?            this help",
    "q Ctrl-C       quit",
    "",
    "Bars: u user, k kernel, i interrupt,",
    "      . idle. Shares are of these.",
];

/// Draws `view` of the `latest` snapshot, or of the frozen one, with or without colours.
pub fn draw(frame: &mut Frame<'_>, latest: &Snapshot, view: &mut View, colours: bool) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let snapshot = view.choose(latest);
    let painter = Painter {
        snapshot,
        width,
        colours,
    };
    let mut all = vec![
        painter.plain(lines::title(snapshot), Modifier::BOLD),
        painter.rate(view.is_frozen()),
    ];
    let bars = lines::bars(snapshot, width, height.saturating_sub(4) / 3);
    all.extend(bars.into_iter().map(|bar| painter.bar(&bar)));
    let room = height.saturating_sub(all.len() + 2);
    let mut scroll = view.scroll;
    all.extend(match &view.target {
        Some(target) => painter.stacks(target, view.is_tree, &mut scroll, room),
        None => painter.table(view, room),
    });
    all.truncate(height.saturating_sub(1));
    frame.render_widget(Paragraph::new(all), area);
    if height > 0 {
        let last = Rect::new(area.x, area.y + area.height - 1, area.width, 1);
        frame.render_widget(Paragraph::new(painter.footer(view)), last);
    }
    if view.has_help {
        help(frame, area);
    }
    view.scroll = scroll;
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    frame.render_widget(Clear, area);
    let text: Vec<Line<'_>> = HELP.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(text), area);
}

/// Makes the lines of a screen of this width.
struct Painter<'a> {
    snapshot: &'a Snapshot,
    width: usize,
    colours: bool,
}

impl Painter<'_> {
    fn colour(&self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    fn plain(&self, text: String, modifier: Modifier) -> Line<'static> {
        Line::styled(text, Style::new().add_modifier(modifier))
    }

    fn rate(&self, is_frozen: bool) -> Line<'static> {
        let rate = Span::raw(lines::rate(self.snapshot));
        if !is_frozen {
            return Line::from(rate);
        }
        let frozen = self.colour(Color::Cyan).add_modifier(Modifier::REVERSED);
        Line::from(vec![Span::styled("FROZEN", frozen), Span::raw(" "), rate])
    }

    /// The letters of a bar in the colours of their modes.
    fn bar(&self, text: &str) -> Line<'static> {
        let Some((begin, end)) = text.find('[').zip(text.find(']')) else {
            return Line::from(text.to_owned());
        };
        let mut spans = vec![Span::raw(text[..=begin].to_owned())];
        for run in text.as_bytes()[begin + 1..end].chunk_by(|left, right| left == right) {
            let colour = match run.first() {
                Some(b'u') => Color::Green,
                Some(b'k') => Color::Red,
                Some(b'i') => Color::Magenta,
                _ => Color::DarkGray,
            };
            let run = String::from_utf8_lossy(run).into_owned();
            spans.push(Span::styled(run, self.colour(colour)));
        }
        spans.push(Span::raw(text[end..].to_owned()));
        Line::from(spans)
    }

    fn table(&self, view: &View, room: usize) -> Vec<Line<'static>> {
        if view.table == Table::Overview {
            return self.overview(view, room);
        }
        let (snapshot, width) = (self.snapshot, self.width);
        let whole = snapshot.known();
        let cursor = view.cursor(snapshot);
        let first = (cursor + 1).saturating_sub(room);
        let (heading, rows): (String, Vec<String>) = match view.table {
            Table::Overview | Table::Processes => {
                let rows = view.processes(snapshot).into_iter().skip(first).take(room);
                let rows = rows.map(|row| lines::process_line(row, whole, width));
                (lines::process_heading(width), rows.collect())
            }
            Table::Functions => {
                let rows = view.functions(snapshot).into_iter().skip(first).take(room);
                let rows = rows.map(|row| lines::function_line(row, whole, width));
                (lines::function_heading(width), rows.collect())
            }
            Table::Labels => {
                let rows = view.labels(snapshot).into_iter().skip(first).take(room);
                let rows = rows.map(|row| lines::label_line(row, whole, width));
                (lines::label_heading(snapshot, width), rows.collect())
            }
        };
        let mut all = vec![self.heading(heading)];
        for (index, row) in rows.into_iter().enumerate() {
            let row = format!("{row:<width$}");
            all.push(if first + index == cursor {
                self.plain(row, Modifier::REVERSED)
            } else {
                Line::from(row)
            });
        }
        all
    }

    /// Processes with bars, of which one is selected, and below them functions with bars. Processes have at most half of the room.
    fn overview(&self, view: &View, room: usize) -> Vec<Line<'static>> {
        let (snapshot, width) = (self.snapshot, self.width);
        let whole = snapshot.known();
        let cursor = view.cursor(snapshot);
        let processes = view.processes(snapshot);
        let above = (room / 2).min(processes.len());
        let first = (cursor + 1).saturating_sub(above);
        let mut all = vec![self.heading(lines::process_bar_heading())];
        for (index, row) in processes.iter().enumerate().skip(first).take(above) {
            let line = lines::process_bar(row, whole, width);
            all.push(match index == cursor {
                true => self.plain(format!("{line:<width$}"), Modifier::REVERSED),
                false => self.bar(&line),
            });
        }
        all.push(self.heading(lines::function_bar_heading()));
        let left = room.saturating_sub(above + 1);
        let functions = view.functions(snapshot).into_iter().take(left);
        let functions = functions.map(|row| lines::function_bar(row, whole, width));
        all.extend(functions.map(Line::from));
        all
    }

    /// The stacks of `target`, or their call tree. `scroll` is limited to the last screenful.
    fn stacks(
        &self,
        target: &Target,
        is_tree: bool,
        scroll: &mut usize,
        room: usize,
    ) -> Vec<Line<'static>> {
        let title = title(target, self.snapshot);
        let (heading, lines) = match is_tree {
            true => (format!("{TREE_HEADING} of {title}"), self.tree(target)),
            false => (format!("Stacks of {title}"), self.stack_lines(target)),
        };
        *scroll = lines.len().saturating_sub(room).min(*scroll);
        let mut all = vec![self.plain(heading, Modifier::BOLD)];
        all.extend(lines.into_iter().skip(*scroll).take(room));
        all
    }

    fn stack_lines(&self, target: &Target) -> Vec<Line<'static>> {
        let whole = self.snapshot.known();
        let rows = self.snapshot.stacks(target);
        let text = rows.iter().flat_map(|row| lines::stack_lines(row, whole));
        text.take(MAX_STACK_LINES).map(Line::from).collect()
    }

    /// The heaviest path is bold.
    fn tree(&self, target: &Target) -> Vec<Line<'static>> {
        let line = |line: TreeLine| match line.is_heaviest {
            true => self.plain(line.text, Modifier::BOLD),
            false => Line::from(line.text),
        };
        match self.snapshot.tree(target, self.width) {
            Some(lines) => lines.into_iter().map(line).collect(),
            None => vec![Line::from("The names are too long for a tree.")],
        }
    }

    fn heading(&self, text: String) -> Line<'static> {
        let style = self.colour(Color::Yellow).add_modifier(Modifier::BOLD);
        Line::styled(format!("{text:<0$}", self.width), style)
    }

    fn footer(&self, view: &View) -> Line<'static> {
        if view.is_typing {
            return Line::from(format!("filter: {}_", view.filter));
        }
        if view.target.is_some() {
            let other = if view.is_tree { "stacks" } else { "tree" };
            return Line::from(format!(
                "Esc back  up/down scroll  t {other}  space freeze  h help  q quit"
            ));
        }
        let order = match (view.table, view.order) {
            (_, Order::Own) => "self",
            (Table::Overview | Table::Processes | Table::Labels, Order::Total) => "kernel",
            (Table::Functions, Order::Total) => "total",
            (Table::Overview | Table::Processes, Order::Name) => "pid",
            (Table::Functions, Order::Name) => "name",
            (Table::Labels, Order::Name) => "value",
        };
        let filter = if view.filter.is_empty() {
            String::new()
        } else {
            format!(" [{}]", view.filter)
        };
        Line::from(format!(
            "h help  q quit  Tab table  s by {order}  / filter{filter}  Enter stacks  t tree"
        ))
    }
}
