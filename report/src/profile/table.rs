//! Prints the report as text.

use std::io::{self, Write};

use kvmprof_recording::Mode;

use super::groups::Value;
use super::levels::{Group, groups};
use super::{
    Grouping, Levels, ModeCounts, Process, Profile, Relatives, Row, Share, SortBy, by_label,
    functions, lines, modules,
};
use crate::budget::OutputBudget;
use crate::model::sum_modes;
use crate::symbolize::SourceLine;
use crate::text::visible;

/// Maximum length of a bar, in characters.
const BAR: usize = 24;
/// Width of a column with names of functions if further columns follow; longer names take more.
const NAME: usize = 40;
/// Width of a column with names of modules.
const MODULE: usize = 20;
/// Width of a column with values of a label, and of one with names of all levels.
const LABEL: usize = 24;
const LEVELS: usize = 32;

/// The contents, the order and the style of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The tables; if empty, those with contents.
    pub tables: Vec<Levels>,
    /// The order of rows of modules, functions and lines.
    pub sort: SortBy,
    /// Maximum number of rows of a table.
    pub top: usize,
    /// Bars and colours.
    pub style: TableStyle,
}

/// Bars and colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStyle {
    /// Whether there are bars beside the shares.
    pub bars: bool,
    /// Whether there are colours (ECMA-48).
    pub colours: bool,
}

impl TableStyle {
    /// The style for standard output: bars and colours on a terminal, no colours if the environment forbids them
    /// (<https://no-color.org>).
    pub fn for_terminal(is_terminal: bool) -> Self {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            bars: is_terminal,
            colours: is_terminal && !is_plain,
        }
    }

    fn bar(self, share: Share) -> String {
        if !self.bars {
            return String::new();
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share is 0 to 1"
        )]
        let length = (share.value * BAR as f64).round() as usize;
        let bar = "█".repeat(length);
        if self.colours {
            format!("  \x1b[33m{bar}\x1b[0m")
        } else {
            format!("  {bar}")
        }
    }

    pub(crate) fn heading(self, text: &str) -> String {
        let text = text.trim_end();
        if self.colours {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Prints `profile`, or `relatives` instead of the tables if there are any.
///
/// # Errors
/// Writing to `out` failed, or levels don't fit into `budget`.
pub fn print(
    profile: &Profile,
    layout: &Layout,
    relatives: &[Relatives],
    budget: &OutputBudget,
    out: &mut dyn Write,
) -> io::Result<()> {
    super::accounts::print(profile, out)?;
    if profile.samples() == 0 {
        return Ok(());
    }
    let mut table = Table {
        profile,
        layout,
        whole: profile.samples(),
        out,
    };
    for relatives in relatives {
        table.relatives(relatives)?;
    }
    let tables = match layout.tables.as_slice() {
        _ if !relatives.is_empty() => Vec::new(),
        [] => telling(profile).into_iter().map(Levels::from).collect(),
        tables => tables.to_vec(),
    };
    for levels in &tables {
        match levels.groupings() {
            [grouping] => table.section(grouping)?,
            _ => table.levels(levels, &groups(profile, levels, layout.sort, budget)?)?,
        }
    }
    Ok(())
}

/// The tables with contents.
fn telling(profile: &Profile) -> Vec<Grouping> {
    let mut tables = vec![Grouping::Mode];
    if profile.recordings().any(|one| one.contents.info.vcpus > 1) {
        tables.push(Grouping::Vcpu);
    }
    tables.extend([Grouping::Process, Grouping::Module, Grouping::Function]);
    if !lines(profile, SortBy::Own).is_empty() {
        tables.push(Grouping::Line);
    }
    tables
}

/// A count as a share, and its 95 % confidence interval.
pub(crate) fn shares(share: Share) -> String {
    format!(
        "{:>5.1} %  {:>4.1}-{:<5.1}",
        share.value * 100.0,
        share.low * 100.0,
        share.high * 100.0
    )
}

/// `text` padded to `width` columns.
pub(crate) fn column(text: &str, width: usize) -> String {
    format!("{:<width$}", visible(text))
}

/// Prints tables.
struct Table<'a> {
    profile: &'a Profile,
    layout: &'a Layout,
    whole: u64,
    out: &'a mut dyn Write,
}

impl Table<'_> {
    fn section(&mut self, grouping: &Grouping) -> io::Result<()> {
        match grouping {
            Grouping::Mode => self.modes(),
            Grouping::Vcpu => self.vcpus(),
            Grouping::Process => self.processes(),
            Grouping::Thread => self.threads(),
            Grouping::Module => self.modules(),
            Grouping::Function => self.functions(),
            Grouping::Line => self.lines(),
            Grouping::Label(key) => self.labels(key),
        }
    }

    fn heading(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out)?;
        writeln!(self.out, "{}", self.layout.style.heading(text))
    }

    fn row(&mut self, text: &str, share: Share) -> io::Result<()> {
        let row = format!("{text}{}", self.layout.style.bar(share));
        writeln!(self.out, "{}", row.trim_end())
    }

    fn share(&self, count: u64) -> Share {
        Share::new(count.min(self.whole), self.whole)
    }

    fn rest(&mut self, rows: usize, what: &str) -> io::Result<()> {
        match rows.checked_sub(self.layout.top) {
            Some(more) if more > 0 => {
                writeln!(self.out, "  and {more} other {what} (--top shows more)")
            }
            _ => Ok(()),
        }
    }

    fn modes(&mut self) -> io::Result<()> {
        self.heading("  MODE       SAMPLES    SHARE    95 %")?;
        for (mode, count) in Mode::ALL.into_iter().zip(self.profile.by_mode()) {
            let name = mode.name();
            let share = self.share(count);
            self.row(
                &format!("  {name:<9}  {count:>7}  {}", shares(share)),
                share,
            )?;
        }
        Ok(())
    }

    fn vcpus(&mut self) -> io::Result<()> {
        self.heading(
            "     VCPU  SAMPLES    SHARE    95 %         USER  KERNEL  INTERRUPT    IDLE",
        )?;
        let vcpus = self.profile.all_vcpus();
        for (vcpu, modes) in vcpus.iter().take(self.layout.top) {
            self.by_mode(&format!("  {vcpu:>7}"), *modes)?;
        }
        self.rest(vcpus.len(), "vCPUs")
    }

    fn processes(&mut self) -> io::Result<()> {
        let mut rows: Vec<(usize, i32, &Process)> = self.profile.all_processes().collect();
        rows.sort_by_key(|(recording, pid, process)| {
            (u64::MAX - process.samples(), *recording, *pid)
        });
        self.heading(&format!(
            "{}      PID  NAME              SAMPLES    SHARE    95 %         USER  KERNEL  INTERRUPT    IDLE",
            if self.profile.merged.is_empty() { "" } else { "    FILE" }
        ))?;
        for (recording, pid, process) in rows.iter().take(self.layout.top) {
            let name = column(process.shown_name(*pid), 16);
            let row = format!("{}  {pid:>7}  {name}", self.recording(*recording));
            self.by_mode(&row, process.modes)?;
        }
        self.rest(rows.len(), "processes")
    }

    fn threads(&mut self) -> io::Result<()> {
        let mut rows = self.profile.all_threads();
        rows.sort_by_key(|(_, thread)| u64::MAX - sum_modes(&thread.modes));
        // Ids of threads as their containers know them.
        let has_inner = rows.iter().any(|(_, thread)| thread.inner_tid.is_some());
        self.heading(&format!(
            "{}      PID      TID{}  THREAD            SAMPLES    SHARE    95 %         USER  KERNEL  INTERRUPT    IDLE",
            if self.profile.merged.is_empty() { "" } else { "    FILE" },
            if has_inner { "    INNER" } else { "" }
        ))?;
        for (recording, thread) in rows.iter().take(self.layout.top) {
            let name = column(&thread.shown_name(), 16);
            let (pid, tid) = (thread.pid, thread.tid);
            let inner = thread
                .inner_tid
                .map_or("-".to_owned(), |own| own.to_string());
            let inner = if has_inner {
                format!("  {inner:>7}")
            } else {
                String::new()
            };
            let row = format!(
                "{}  {pid:>7}  {tid:>7}{inner}  {name}",
                self.recording(*recording)
            );
            self.by_mode(&row, thread.modes)?;
        }
        self.rest(rows.len(), "threads")
    }

    fn labels(&mut self, key: &str) -> io::Result<()> {
        let rows = by_label(self.profile, key);
        let key = column(&key.to_uppercase(), LABEL);
        self.heading(&format!(
            "  {key}  SAMPLES    SHARE    95 %         USER  KERNEL  INTERRUPT    IDLE"
        ))?;
        for row in rows.iter().take(self.layout.top) {
            self.by_mode(
                &format!("  {}", column(row.shown_value(), LABEL)),
                row.modes,
            )?;
        }
        self.rest(rows.len(), "values")
    }

    /// A column with a recording's number, if there are several.
    fn recording(&self, number: usize) -> String {
        if self.profile.merged.is_empty() {
            String::new()
        } else {
            format!("  {:>6}", format!("({})", number + 1))
        }
    }

    fn by_mode(&mut self, what: &str, modes: ModeCounts) -> io::Result<()> {
        let count = sum_modes(&modes);
        let [user, kernel, interrupt, idle] = modes;
        let share = self.share(count);
        let row = format!(
            "{what}  {count:>7}  {}  {user:>7} {kernel:>7}  {interrupt:>9} {idle:>7}",
            shares(share)
        );
        self.row(&row, share)
    }

    fn modules(&mut self) -> io::Result<()> {
        let rows = modules(self.profile, self.layout.sort);
        self.heading("     SELF    SHARE    95 %        TOTAL    SHARE  MODULE")?;
        for row in rows.iter().take(self.layout.top) {
            let name = column(&row.key, MODULE);
            self.own_and_total(row.own, row.total, &name)?;
        }
        self.rest(rows.len(), "modules")
    }

    fn functions(&mut self) -> io::Result<()> {
        let rows = functions(self.profile, self.layout.sort);
        let head = "     SELF    SHARE    95 %        TOTAL    SHARE     ";
        self.heading(&format!("{head}{:<NAME$}  MODULE", "FUNCTION"))?;
        for function in rows.iter().take(self.layout.top) {
            let name = format!(
                "{}  {}  {}",
                if function.is_kernel { 'k' } else { 'u' },
                column(&function.name, NAME),
                column(&function.module, MODULE)
            );
            self.own_and_total(function.own, function.total, &name)?;
        }
        self.rest(rows.len(), "functions")
    }

    fn lines(&mut self) -> io::Result<()> {
        let rows: Vec<Row<SourceLine>> = lines(self.profile, self.layout.sort);
        self.heading("     SELF    SHARE    95 %        TOTAL    SHARE  SOURCE LINE")?;
        for row in rows.iter().take(self.layout.top) {
            let line = format!("{}:{}", row.key.file, row.key.line);
            self.own_and_total(row.own, row.total, &column(&line, NAME + MODULE))?;
        }
        if rows.is_empty() {
            writeln!(
                self.out,
                "  none are known: kvmprof report --vmlinux and --sysroot bring them"
            )?;
        }
        self.rest(rows.len(), "lines")
    }

    fn own_and_total(&mut self, own: u64, total: u64, what: &str) -> io::Result<()> {
        let (own_share, total_share) = (self.share(own), self.share(total));
        let row = format!(
            "  {own:>7}  {}  {total:>7}  {:>5.1} %  {what}",
            shares(own_share),
            total_share.value * 100.0,
        );
        self.row(&row, own_share)
    }

    /// The table of the groups by `levels`: the rows of a group's own groups are below its row.
    fn levels(&mut self, levels: &Levels, groups: &[Group<'_>]) -> io::Result<()> {
        let names = levels.groupings().iter().map(Grouping::name);
        let names = names.collect::<Vec<_>>().join(" > ").to_uppercase();
        let is_of_code = levels.are_of_code();
        self.heading(&match is_of_code {
            true => format!(
                "     SELF    SHARE    95 %        TOTAL    SHARE  {}",
                visible(&names)
            ),
            false => format!(
                "  {}  SAMPLES    SHARE    95 %         USER  KERNEL  INTERRUPT    IDLE",
                column(&names, LEVELS)
            ),
        })?;
        self.groups(groups, 0, is_of_code)
    }

    fn groups(&mut self, groups: &[Group<'_>], level: usize, is_of_code: bool) -> io::Result<()> {
        let margin = "  ".repeat(level);
        for group in groups.iter().take(self.layout.top) {
            let name = format!("{margin}{}", group.name);
            match (is_of_code, group.value) {
                (false, _) => self.by_mode(&format!("  {}", column(&name, LEVELS)), group.modes)?,
                (true, Value::Function(_, module, _)) => {
                    let module = column(self.profile.code.text(module), MODULE);
                    let name = format!("{}  {module}", column(&name, NAME));
                    self.own_and_total(group.own, group.total, &name)?;
                }
                (true, _) => {
                    self.own_and_total(group.own, group.total, &column(&name, NAME + MODULE))?;
                }
            }
            self.groups(&group.groups, level + 1, is_of_code)?;
        }
        let others = groups.get(self.layout.top..).unwrap_or_default();
        if !others.is_empty() {
            let own = others.iter().map(|group| group.own);
            let own = own.fold(0, u64::saturating_add);
            let count = others.len();
            writeln!(
                self.out,
                "  {margin}and {count} others with {own} samples (--top shows more)"
            )?;
        }
        Ok(())
    }

    fn relatives(&mut self, relatives: &Relatives) -> io::Result<()> {
        let what = relatives.relation.name();
        writeln!(self.out)?;
        writeln!(
            self.out,
            "The {what} of {}, which is on the stack in {} samples, {:.1} % of all",
            visible(&relatives.function),
            relatives.samples,
            self.share(relatives.samples).value * 100.0
        )?;
        let name = what.trim_end_matches('s').to_uppercase();
        self.heading(&format!(
            "  SAMPLES    SHARE    95 %      {name:<NAME$}  MODULE"
        ))?;
        for row in relatives.rows.iter().take(self.layout.top) {
            let share = Share::new(row.total, relatives.samples);
            let text = format!(
                "  {:>7}  {}  {}  {}",
                row.total,
                shares(share),
                column(&row.key.0, NAME),
                column(&row.key.1, MODULE)
            );
            self.row(&text, share)?;
        }
        self.rest(relatives.rows.len(), what)
    }
}
