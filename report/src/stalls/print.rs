//! Prints the tables of `kvmprof stalls`.

use std::io::{self, Write};

use super::{Stalls, StolenRow, StretchRow};
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
    let mut tables = Tables {
        profile,
        stalls,
        style,
        out,
    };
    tables.interrupts_off()?;
    tables.preemption_off()?;
    tables.waits()?;
    tables.locks()?;
    tables.stolen()
}

/// The tables that are printed.
struct Tables<'a> {
    profile: &'a Profile,
    stalls: &'a Stalls,
    style: TableStyle,
    out: &'a mut dyn Write,
}

impl Tables<'_> {
    fn heading(&mut self, title: &str, columns: &str) -> io::Result<()> {
        writeln!(self.out, "\n{title}\n{}", self.style.heading(columns))
    }

    fn row(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", text.trim_end())
    }

    fn interrupts_off(&mut self) -> io::Result<()> {
        let stalls = self.stalls;
        if !stalls.interrupts_known {
            return writeln!(
                self.out,
                "\nWhether interrupts were off isn't known: the host's kernel has taken the samples (--clock kernel, --capture kernel)"
            );
        }
        let title = format!(
            "Interrupts were off in {} of {} samples, in {} stretches; the longest:",
            stalls.samples_with_interrupts_off,
            self.profile.samples(),
            stalls.stretches
        );
        self.stretches(&title, &stalls.interrupts_off, stalls.stretches)
    }

    fn preemption_off(&mut self) -> io::Result<()> {
        let stalls = self.stalls;
        if stalls.preemption_known == 0 {
            return writeln!(
                self.out,
                "\nWhether preemption was off isn't known: the guest's kernel doesn't count what forbids it, or the recording is of an older kvmprof"
            );
        }
        let title = format!(
            "Preemption was off in {} of {} samples, in {} stretches; the longest:",
            stalls.samples_with_preemption_off,
            self.profile.samples(),
            stalls.preemption_stretches
        );
        self.stretches(&title, &stalls.preemption_off, stalls.preemption_stretches)
    }

    /// Prints the rows, which are the longest of this number of stretches. One sample has no length: such rows would be
    /// useless.
    fn stretches(&mut self, title: &str, rows: &[StretchRow], stretches: u64) -> io::Result<()> {
        let columns = format!(
            "         SEEN      AT MOST  SAMPLES  STOLEN  VCPU           AT  {:<PROCESS$}  {:<FUNCTION$}  ALL ITS SAMPLES ARE IN",
            "PROCESS", "FIRST IN"
        );
        self.heading(title, &columns)?;
        let shown = rows.iter().take_while(|row| row.seen_ns > 0).count();
        for row in rows.iter().take(shown) {
            self.row(&format!(
                "  {}  {}  {:>7} {:>7} {:>5}  {:>9.4} s  {}  {}  {}",
                milliseconds(row.seen_ns),
                milliseconds(row.at_most_ns),
                row.samples,
                row.stolen,
                row.vcpu,
                seconds(row.begin_ns),
                column(&row.first.process, PROCESS),
                column(&row.first.function, FUNCTION),
                column(row.common.as_deref().unwrap_or("-"), 0),
            ))?;
        }
        if let Some(longest) = rows.iter().skip(shown).map(|row| row.at_most_ns).max() {
            let others = stretches.saturating_sub(shown as u64);
            writeln!(
                self.out,
                "  {others} with one sample each: how long they took isn't known, at most {}",
                milliseconds(longest).trim_start()
            )?;
        }
        Ok(())
    }

    fn waits(&mut self) -> io::Result<()> {
        let title = "Waits in a loop for locks and other vCPUs; BESIDE STOLEN: the host didn't run another vCPU meanwhile";
        let columns = format!(
            "  SAMPLES    SHARE    95 %      BESIDE STOLEN  {:<12}  {:<FUNCTION$}  THAT VCPU WAS LAST SEEN IN",
            "WAITS FOR", "WANTED BY"
        );
        self.heading(title, &columns)?;
        let all = self.profile.samples();
        for row in &self.stalls.waits {
            let from = row.stolen_from.as_ref().map_or_else(String::new, |from| {
                format!(
                    "{} ({})",
                    column(&from.function, 0),
                    column(&from.process, 0)
                )
            });
            self.row(&format!(
                "  {:>7}  {}  {:>13}  {:<12}  {}  {from}",
                row.samples,
                shares(Share::new(row.samples, all)),
                row.beside_stolen,
                row.kind.name(),
                column(&row.function, FUNCTION),
            ))?;
        }
        if !self.profile.has_symbols() {
            self.row("  not known: the recording has no symbols of the guest's kernel")?;
        } else if self.stalls.waits.is_empty() {
            self.row("  none were seen")?;
        }
        let more = self.stalls.waits_not_compared;
        if more > 0 {
            writeln!(
                self.out,
                "  {more} further waits are counted, but not compared with stolen ticks"
            )?;
        }
        Ok(())
    }

    /// Prints the locks that samples waited for, if any are known.
    fn locks(&mut self) -> io::Result<()> {
        if self.stalls.locks.is_empty() {
            return Ok(());
        }
        let title = "Locks that these waited for, as far as they are known; OWNER STOLEN: the host didn't run the vCPU of the lock's owner";
        let columns = "  SAMPLES  OWNER STOLEN  WAITS FOR     ADDRESS             OWNERS  HELD MOST OFTEN BY        VARIABLE";
        self.heading(title, columns)?;
        for row in &self.stalls.locks {
            let owner = row.owner.as_ref().map_or_else(
                || "[unknown]".to_owned(),
                |owner| format!("{} (tid {})", owner.name, owner.tid),
            );
            self.row(&format!(
                "  {:>7}  {:>12}  {:<12}  {:#018x}  {:>6}  {owner:<24}  {}",
                row.samples,
                row.owner_stolen,
                row.kind.name(),
                row.address,
                row.owners,
                row.variable.as_deref().unwrap_or("-"),
            ))?;
        }
        let more = self.stalls.locks_left_out;
        if more > 0 {
            writeln!(self.out, "  {more} further samples wait for others")?;
        }
        Ok(())
    }

    fn stolen(&mut self) -> io::Result<()> {
        let account = &self.profile.contents.account;
        let title = format!(
            "The host ran something else on {} of {} ticks; the vCPU was last seen in:",
            account.stolen, account.ticks
        );
        let columns = format!(
            "    TICKS    SHARE    95 %      {:<PROCESS$}  {:<FUNCTION$}  MODULE",
            "PROCESS", "FUNCTION"
        );
        self.heading(&title, &columns)?;
        for StolenRow { ticks, last_seen } in &self.stalls.stolen {
            self.row(&format!(
                "  {ticks:>7}  {}  {}  {}  {}",
                shares(Share::new(*ticks, account.stolen.max(*ticks))),
                column(&last_seen.process, PROCESS),
                column(&last_seen.function, FUNCTION),
                column(&last_seen.module, 0),
            ))?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn milliseconds(ns: u64) -> String {
    format!("{:>8.3} ms", ns as f64 / 1e6)
}

#[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
