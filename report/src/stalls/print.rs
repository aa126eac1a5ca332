//! Prints the tables of `kvmprof stalls`.

use std::io::{self, Write};

use super::{LockRow, Stalls, StolenRow, StretchRow, WaitRow};
use crate::profile::{Profile, Share, TableStyle, column, print_accounts, shares};

/// Width of the column with names of processes.
const PROCESS: usize = 16;
/// Width of a column with names of functions if further columns follow; longer names take more.
const FUNCTION: usize = 32;

/// Prints `stalls` of `profile`.
///
/// # Errors
/// Writing to `out` failed.
pub fn print(
    profile: &Profile,
    stalls: &Stalls,
    style: TableStyle,
    out: &mut dyn Write,
) -> io::Result<()> {
    print_accounts(profile, out)?;
    print_interrupts_off(profile, stalls, style, out)?;
    print_preemption_off(profile, stalls, style, out)?;
    print_waits(profile, stalls, style, out)?;
    print_locks(stalls, style, out)?;
    print_stolen(profile, stalls, style, out)
}

fn heading(style: TableStyle, title: &str, columns: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    writeln!(out, "{title}")?;
    writeln!(out, "{}", style.heading(columns))
}

fn print_interrupts_off(
    profile: &Profile,
    stalls: &Stalls,
    style: TableStyle,
    out: &mut dyn Write,
) -> io::Result<()> {
    if !stalls.interrupts_known {
        writeln!(out)?;
        return writeln!(
            out,
            "Whether interrupts were off isn't known: the host's kernel has taken the samples (--clock kernel, --capture kernel)"
        );
    }
    let title = format!(
        "Interrupts were off in {} of {} samples, in {} stretches; the longest:",
        stalls.samples_with_interrupts_off,
        profile.samples(),
        stalls.stretches
    );
    print_stretches(&title, &stalls.interrupts_off, stalls.stretches, style, out)
}

fn print_preemption_off(
    profile: &Profile,
    stalls: &Stalls,
    style: TableStyle,
    out: &mut dyn Write,
) -> io::Result<()> {
    if stalls.preemption_known == 0 {
        writeln!(out)?;
        return writeln!(
            out,
            "Whether preemption was off isn't known: the guest's kernel doesn't count what forbids it, or the recording is of an older kvmprof"
        );
    }
    let title = format!(
        "Preemption was off in {} of {} samples, in {} stretches; the longest:",
        stalls.samples_with_preemption_off,
        profile.samples(),
        stalls.preemption_stretches
    );
    print_stretches(
        &title,
        &stalls.preemption_off,
        stalls.preemption_stretches,
        style,
        out,
    )
}

/// Prints the rows, which are the longest of this number of stretches. One sample has no length: such rows would be
/// useless.
fn print_stretches(
    title: &str,
    rows: &[StretchRow],
    stretches: u64,
    style: TableStyle,
    out: &mut dyn Write,
) -> io::Result<()> {
    let columns = format!(
        "         SEEN      AT MOST  SAMPLES  STOLEN  VCPU           AT  {:<PROCESS$}  {:<FUNCTION$}  ALL ITS SAMPLES ARE IN",
        "PROCESS", "FIRST IN"
    );
    heading(style, title, &columns, out)?;
    let shown = rows.iter().take_while(|row| row.seen_ns > 0).count();
    for row in rows.iter().take(shown) {
        let StretchRow {
            samples,
            stolen,
            vcpu,
            ..
        } = row;
        let text = format!(
            "  {}  {}  {samples:>7} {stolen:>7} {vcpu:>5}  {:>9.4} s  {}  {}  {}",
            milliseconds(row.seen_ns),
            milliseconds(row.at_most_ns),
            seconds(row.begin_ns),
            column(&row.first.process, PROCESS),
            column(&row.first.function, FUNCTION),
            column(row.common.as_deref().unwrap_or("-"), 0),
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    if let Some(longest) = rows.iter().skip(shown).map(|row| row.at_most_ns).max() {
        let others = stretches.saturating_sub(shown as u64);
        writeln!(
            out,
            "  {others} with one sample each: how long they took isn't known, at most {}",
            milliseconds(longest).trim_start()
        )?;
    }
    Ok(())
}

fn print_waits(
    profile: &Profile,
    stalls: &Stalls,
    style: TableStyle,
    out: &mut dyn Write,
) -> io::Result<()> {
    let title = "Waits in a loop for locks and other vCPUs; BESIDE STOLEN: the host didn't run another vCPU meanwhile";
    let columns = format!(
        "  SAMPLES    SHARE    95 %      BESIDE STOLEN  {:<12}  {:<FUNCTION$}  THAT VCPU WAS LAST SEEN IN",
        "WAITS FOR", "WANTED BY"
    );
    heading(style, title, &columns, out)?;
    let all = profile.samples();
    for row in &stalls.waits {
        let WaitRow {
            samples,
            beside_stolen,
            ..
        } = row;
        let from = row.stolen_from.as_ref().map_or_else(String::new, |from| {
            format!(
                "{} ({})",
                column(&from.function, 0),
                column(&from.process, 0)
            )
        });
        let text = format!(
            "  {samples:>7}  {}  {beside_stolen:>13}  {:<12}  {}  {from}",
            shares(Share::new(*samples, all)),
            row.kind.name(),
            column(&row.function, FUNCTION),
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    if profile.has_symbols() && stalls.waits.is_empty() {
        writeln!(out, "  none were seen")?;
    }
    if !profile.has_symbols() {
        writeln!(
            out,
            "  not known: the recording has no symbols of the guest's kernel"
        )?;
    }
    if stalls.waits_not_compared > 0 {
        let more = stalls.waits_not_compared;
        writeln!(
            out,
            "  {more} further waits are counted, but not compared with stolen ticks"
        )?;
    }
    Ok(())
}

/// Prints the locks that samples waited for, if any are known.
fn print_locks(stalls: &Stalls, style: TableStyle, out: &mut dyn Write) -> io::Result<()> {
    if stalls.locks.is_empty() {
        return Ok(());
    }
    let title = "Locks that these waited for, as far as they are known; OWNER STOLEN: the host didn't run the vCPU of the lock's owner";
    let columns = "  SAMPLES  OWNER STOLEN  WAITS FOR     ADDRESS             OWNERS  HELD MOST OFTEN BY        VARIABLE";
    heading(style, title, columns, out)?;
    for row in &stalls.locks {
        let LockRow {
            samples,
            owner_stolen,
            address,
            owners,
            ..
        } = row;
        let owner = row.owner.as_ref().map_or_else(
            || "[unknown]".to_owned(),
            |owner| format!("{} (tid {})", owner.name, owner.tid),
        );
        writeln!(
            out,
            "  {samples:>7}  {owner_stolen:>12}  {:<12}  {address:#018x}  {owners:>6}  {owner:<24}  {}",
            row.kind.name(),
            row.variable.as_deref().unwrap_or("-"),
        )?;
    }
    if stalls.locks_left_out > 0 {
        let more = stalls.locks_left_out;
        writeln!(out, "  {more} further samples wait for others")?;
    }
    Ok(())
}

fn print_stolen(
    profile: &Profile,
    stalls: &Stalls,
    style: TableStyle,
    out: &mut dyn Write,
) -> io::Result<()> {
    let account = &profile.contents.account;
    let title = format!(
        "The host ran something else on {} of {} ticks; the vCPU was last seen in:",
        account.stolen, account.ticks
    );
    let columns = format!(
        "    TICKS    SHARE    95 %      {:<PROCESS$}  {:<FUNCTION$}  MODULE",
        "PROCESS", "FUNCTION"
    );
    heading(style, &title, &columns, out)?;
    for StolenRow { ticks, last_seen } in &stalls.stolen {
        let text = format!(
            "  {ticks:>7}  {}  {}  {}  {}",
            shares(Share::new(*ticks, account.stolen.max(*ticks))),
            column(&last_seen.process, PROCESS),
            column(&last_seen.function, FUNCTION),
            column(&last_seen.module, 0),
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn milliseconds(ns: u64) -> String {
    format!("{:>8.3} ms", ns as f64 / 1e6)
}

#[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
