//! Formats rows as text, for screens of any width and for pipes.

use kvmprof_recording::{Mode, misleads};

use crate::model::sum_modes;
use crate::profile::{LabelRow, ModeCounts, VcpuTicks};
use crate::text::visible;

use super::snapshot::{FunctionId, FunctionRow, ProcessRow, Snapshot, StackRow};

/// The letters of the modes in a bar, which make it readable without colours.
pub const MODE_LETTERS: [char; Mode::ALL.len()] = ['u', 'k', 'i', '.'];
/// Width of a screen in characters below which tables have fewer columns.
const WIDE: usize = 72;
/// The minimum width of a bar with numbers.
const MIN_BAR: usize = 12;
/// The longest bar of a function.
const BAR: usize = 16;

/// `part` of `whole` in %; 0 if `whole` is 0.
#[expect(
    clippy::cast_precision_loss,
    reason = "it is shown with one digit behind the point"
)]
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64 * 100.0
    }
}

/// The title of the screen.
pub fn title(snapshot: &Snapshot) -> String {
    let info = &snapshot.info;
    if info.vcpus == 0 {
        return "kvmprof top: waiting for the guest".to_owned();
    }
    let plural = if info.vcpus == 1 { "" } else { "s" };
    // The guest's owner chose this name.
    let kernel = visible(&info.kernel);
    let ended = if snapshot.has_ended {
        "the guest has ended: "
    } else {
        ""
    };
    let symbols = if snapshot.has_symbols() {
        ""
    } else {
        ", no symbols yet"
    };
    format!(
        "kvmprof top: {ended}{kernel}, {} vCPU{plural}, {}{symbols}",
        info.vcpus,
        info.rate()
    )
}

/// The rate and the losses.
#[expect(
    clippy::cast_precision_loss,
    reason = "it is shown without a digit behind the point"
)]
pub fn rate(snapshot: &Snapshot) -> String {
    let (ticks, seconds) = (snapshot.ticks(), snapshot.span.as_secs_f64());
    if ticks == 0 {
        return "no ticks in the window".to_owned();
    }
    let rate = if seconds > 0.0 {
        ticks as f64 / seconds
    } else {
        0.0
    };
    let mut text = format!(
        "{rate:.0} ticks/s  lost {:.1} %  stolen {:.1} %  window {seconds:.1} s, {ticks} ticks",
        percent(snapshot.sum(|vcpu| vcpu.lost), ticks),
        percent(snapshot.sum(|vcpu| vcpu.stolen), ticks),
    );
    let gone = |of: fn(&VcpuTicks) -> u64| snapshot.sum(of);
    if misleads(ticks, gone(|vcpu| vcpu.lost), gone(|vcpu| vcpu.stolen)) {
        text.push_str(": shares mislead");
    }
    if snapshot.elsewhere > 0 {
        text.push_str(&format!(", {} not told apart", snapshot.elsewhere));
    }
    text
}

/// A vCPU's bar in `width` characters: label, letters of modes, numbers where there is room.
pub fn bar(label: &str, ticks: &VcpuTicks, width: usize) -> String {
    let known = ticks.known();
    let shares = ticks.modes.map(|count| percent(count, known));
    let numbers = format!(
        " u {:>3.0}  k {:>3.0}  i {:>3.0}  idle {:>3.0} %",
        shares[0], shares[1], shares[2], shares[3]
    );
    let label = format!("{label:<8} ");
    let around = label.len() + 2;
    let has_numbers = width >= around + MIN_BAR + numbers.len();
    let length = width.saturating_sub(around + if has_numbers { numbers.len() } else { 0 });
    let mut text = label;
    text.push('[');
    text.push_str(&letters(ticks, length));
    text.push(']');
    if has_numbers {
        text.push_str(&numbers);
    }
    text
}

/// `length` letters, in the proportions of the modes.
fn letters(ticks: &VcpuTicks, length: usize) -> String {
    let known = u128::from(ticks.known());
    if known == 0 {
        return " ".repeat(length);
    }
    let (mut text, mut sum, mut done) = (String::with_capacity(length), 0_u128, 0);
    for (count, letter) in ticks.modes.iter().zip(MODE_LETTERS) {
        sum = (sum + u128::from(*count)).min(known);
        let end = (sum * length as u128 + known / 2) / known;
        let end = usize::try_from(end).unwrap_or(length).min(length);
        text.extend(std::iter::repeat_n(letter, end.saturating_sub(done)));
        done = end;
    }
    text
}

/// The bars of all vCPUs in at most `room` lines. If they don't fit, the first line is the sum of all vCPUs, and the
/// last line counts those that are left out.
pub fn bars(snapshot: &Snapshot, width: usize, room: usize) -> Vec<String> {
    let vcpus = &snapshot.vcpus;
    let one = |(index, ticks): (usize, &VcpuTicks)| bar(&format!("vCPU {index}"), ticks, width);
    if vcpus.len() <= room {
        return vcpus.iter().enumerate().map(one).collect();
    }
    let mut all = VcpuTicks::default();
    vcpus.iter().for_each(|vcpu| all.add(vcpu));
    let shown = room.saturating_sub(2);
    let mut lines = vec![bar("all", &all, width)];
    lines.extend(vcpus.iter().enumerate().take(shown).map(one));
    lines.push(format!("and {} vCPUs more", vcpus.len() - shown));
    lines.truncate(room);
    lines
}

/// The heading above processes.
pub fn process_heading(width: usize) -> String {
    mode_heading(&format!("{:>7} {:<16}", "PID", "PROCESS"), width)
}

/// The heading above values of the label that is shown.
pub fn label_heading(snapshot: &Snapshot, width: usize) -> String {
    let key = snapshot.by.as_deref().unwrap_or_default();
    mode_heading(&visible(&key.to_uppercase()), width)
}

fn mode_heading(name: &str, width: usize) -> String {
    let mut text = format!("{name:<24} {:>7} {:>7}", "TICKS", "SHARE");
    if width >= WIDE {
        text.push_str(&format!(
            " {:>7} {:>7} {:>7} {:>7}",
            "USER", "KERNEL", "INTRPT", "IDLE"
        ));
    }
    text
}

/// A line for a process, with its share of `whole`.
pub fn process_line(row: &ProcessRow, whole: u64, width: usize) -> String {
    let name = format!("{:>7} {:<16}", row.pid, row.name);
    mode_line(&name, row.modes, whole, width)
}

/// A line for a value of a label, with its share of `whole`.
pub fn label_line(row: &LabelRow, whole: u64, width: usize) -> String {
    mode_line(row.shown_value(), row.modes, whole, width)
}

fn mode_line(name: &str, modes: ModeCounts, whole: u64, width: usize) -> String {
    let ticks = sum_modes(&modes);
    let share = percent(ticks, whole);
    let mut text = format!("{name:<24} {ticks:>7} {share:>5.1} %");
    if width >= WIDE {
        for count in modes {
            text.push_str(&format!(" {count:>7}"));
        }
    }
    text
}

/// The heading above functions.
pub fn function_heading(width: usize) -> String {
    if width >= WIDE {
        format!(
            "{:>7} {:>7} {:>7} {:>7}   {}",
            "SELF", "SHARE", "TOTAL", "SHARE", "FUNCTION"
        )
    } else {
        format!("{:>7} {:>7}   {}", "SELF", "TOTAL", "FUNCTION")
    }
}

/// A line for a function, with its shares of `whole`.
pub fn function_line(row: &FunctionRow, whole: u64, width: usize) -> String {
    let (own, total) = (percent(row.own, whole), percent(row.total, whole));
    let mut text = if width >= WIDE {
        format!(
            "{:>7} {own:>5.1} % {:>7} {total:>5.1} %",
            row.own, row.total
        )
    } else {
        format!("{own:>5.1} % {total:>5.1} %")
    };
    text.push(' ');
    text.push_str(&name_of(row));
    text
}

/// The heading above processes with bars.
pub fn process_bar_heading() -> String {
    format!("{:>7} {:<16} {:>7}", "PID", "PROCESS", "SHARE")
}

/// A line for a process in `width` characters: its share of `whole` as a number, and as a bar of the letters of modes.
pub fn process_bar(row: &ProcessRow, whole: u64, width: usize) -> String {
    let ticks = sum_modes(&row.modes);
    let share = percent(ticks, whole);
    let name: String = row.name.chars().take(16).collect();
    let text = format!("{:>7} {name:<16} {share:>5.1} %", row.pid);
    let of_process = VcpuTicks {
        modes: row.modes,
        ..VcpuTicks::default()
    };
    let length = bar_length(ticks, whole, width.saturating_sub(text.chars().count() + 3));
    format!("{text} [{}]", letters(&of_process, length))
}

/// The heading above functions with bars.
pub fn function_bar_heading() -> String {
    format!("{:>7} {:>7} {:<BAR$}   FUNCTION", "SELF", "TOTAL", "")
}

/// A line for a function: its shares of `whole` as numbers, that of its own samples as a bar, and its name, marked as by [`function_line`].
pub fn function_bar(row: &FunctionRow, whole: u64, width: usize) -> String {
    let (own, total) = (percent(row.own, whole), percent(row.total, whole));
    let bar = "█".repeat(bar_length(row.own, whole, BAR));
    let text = format!("{own:>5.1} % {total:>5.1} % {bar:<BAR$} {}", name_of(row));
    text.chars().take(width).collect()
}

/// The length of a bar for `part` of `whole`, at most `longest`.
fn bar_length(part: u64, whole: u64, longest: usize) -> usize {
    let length = u128::from(part) * longest as u128 / u128::from(whole.max(1));
    usize::try_from(length).unwrap_or(longest).min(longest)
}

/// A function's name: `k` marks kernel functions, `u` user functions, with their process at the end.
fn name_of(row: &FunctionRow) -> String {
    let FunctionId { pid, name } = &row.function;
    match pid {
        None => format!("k {name}"),
        Some(pid) => format!("u {name}  {pid} {}", row.process),
    }
}

/// The lines of a stack, innermost frame first.
pub fn stack_lines(row: &StackRow, whole: u64) -> Vec<String> {
    let mut lines = vec![format!(
        "{:>7} {:>5.1} %  {} {}",
        row.ticks,
        percent(row.ticks, whole),
        row.pid,
        row.process
    )];
    for frame in &row.frames {
        let mark = if frame.pid.is_some() { 'u' } else { 'k' };
        lines.push(format!("{:>17} {mark} {}", "", frame.name));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_full_for_any_shares() {
        for modes in [[1, 1, 1, 0], [0, 0, 0, 1], [u64::MAX, 5, u64::MAX, 1]] {
            let ticks = VcpuTicks {
                modes,
                ..VcpuTicks::default()
            };
            for length in 0..40 {
                assert_eq!(letters(&ticks, length).len(), length);
            }
        }
        let ticks = VcpuTicks {
            modes: [5, 3, 0, 2],
            ..VcpuTicks::default()
        };
        assert_eq!(letters(&ticks, 10), "uuuuukkk..");
        assert_eq!(letters(&VcpuTicks::default(), 3), "   ");
    }
    #[test]
    fn vcpus_that_do_not_fit_are_shown_together() {
        let mut snapshot = super::super::testing::snapshot();
        snapshot.vcpus.resize(64, VcpuTicks::default());
        assert_eq!(bars(&snapshot, 80, 64).len(), 64);
        let lines = bars(&snapshot, 40, 4);
        let begins: Vec<&str> = lines.iter().map(|line| &line[..7]).collect();
        assert_eq!(begins, ["all    ", "vCPU 0 ", "vCPU 1 ", "and 62 "]);
        assert!(bars(&snapshot, 40, 0).is_empty());
    }
}
