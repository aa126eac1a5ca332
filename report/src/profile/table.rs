//! The report as people read it.

use std::io::{self, Write};

use super::{Function, Process, Profile, Share, SortBy, functions};
use crate::file::Account;

/// Characters of the longest bar.
const BAR: usize = 24;
/// Characters of the longest function name that is kept whole.
const NAME: usize = 40;

/// How it is to look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// With bars beside the shares.
    pub bars: bool,
    /// With colours (ECMA-48).
    pub colours: bool,
}

impl Look {
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

    fn heading(self, text: &str) -> String {
        if self.colours {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Prints `profile`: at most `top` rows of each table.
///
/// # Errors
/// When `out` takes no more.
pub fn print(
    profile: &Profile,
    sort: SortBy,
    top: usize,
    look: Look,
    out: &mut dyn Write,
) -> io::Result<()> {
    print_account(profile, out)?;
    let whole = profile.samples();
    print_modes(profile, whole, look, out)?;
    print_processes(profile, whole, top, look, out)?;
    print_functions(&functions(profile, sort), whole, top, look, out)
}

fn print_account(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let facts = &profile.contents.facts;
    let Account {
        ticks,
        samples,
        idle,
        stolen,
        lost,
    } = profile.contents.account;
    writeln!(
        out,
        "{}, {} vCPU{}, {} Hz",
        facts.kernel,
        facts.vcpus,
        if facts.vcpus == 1 { "" } else { "s" },
        facts.hz
    )?;
    writeln!(
        out,
        "{ticks} ticks = {samples} samples + {idle} idle + {stolen} stolen + {lost} lost"
    )?;
    if profile.contents.closed.is_none() {
        writeln!(
            out,
            "The recording was cut off: this is what was written until then ({} bytes more are no whole block)",
            profile.contents.cut_off
        )?;
    }
    if profile.symbols.is_empty() {
        writeln!(out, "No symbols of the guest's kernel are in the recording")?;
    }
    Ok(())
}

/// A count as a share, and its 95 % confidence interval.
fn shares(share: Share) -> String {
    format!(
        "{:>5.1} %  {:>4.1}-{:<5.1}",
        share.value * 100.0,
        share.low * 100.0,
        share.high * 100.0
    )
}

fn print_modes(profile: &Profile, whole: u64, look: Look, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    writeln!(
        out,
        "{}",
        look.heading("  MODE       SAMPLES    SHARE    95 %")
    )?;
    for (index, name) in ["user", "kernel", "interrupt", "idle"].iter().enumerate() {
        let count = profile
            .processes
            .values()
            .map(|process| process.modes[index])
            .sum();
        let share = Share::of(count, whole);
        let row = format!(
            "  {name:<9}  {count:>7}  {}{}",
            shares(share),
            look.bar(share)
        );
        writeln!(out, "{}", row.trim_end())?;
    }
    Ok(())
}

fn print_processes(
    profile: &Profile,
    whole: u64,
    top: usize,
    look: Look,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut rows: Vec<(&i32, &Process)> = profile.processes.iter().collect();
    rows.sort_by_key(|(pid, process)| (u64::MAX - process.samples(), **pid));
    writeln!(out)?;
    writeln!(
        out,
        "{}",
        look.heading(
            "      PID  NAME              SAMPLES    SHARE    95 %         USER  KERNEL  INTERRUPT    IDLE"
        )
    )?;
    for (pid, process) in rows.iter().take(top) {
        let name = match (**pid, process.name.as_str()) {
            (-1, "") => "[unknown]",
            (0, "") => "[idle]",
            (_, name) => name,
        };
        let [user, kernel, interrupt, idle] = process.modes;
        let share = Share::of(process.samples(), whole);
        let row = format!(
            "  {pid:>7}  {name:<16}  {:>7}  {}  {user:>7} {kernel:>7}  {interrupt:>9} {idle:>7}{}",
            process.samples(),
            shares(share),
            look.bar(share)
        );
        writeln!(out, "{}", row.trim_end())?;
    }
    rest(rows.len(), top, "processes", out)
}

fn print_functions(
    rows: &[Function],
    whole: u64,
    top: usize,
    look: Look,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out)?;
    let heading = format!(
        "     SELF    SHARE    95 %        TOTAL    SHARE     {:<NAME$}",
        "FUNCTION"
    );
    writeln!(out, "{}", look.heading(heading.trim_end()))?;
    for function in rows.iter().take(top) {
        let own = Share::of(function.own, whole);
        let total = Share::of(function.total, whole);
        let row = format!(
            "  {:>7}  {}  {:>7}  {:>5.1} %  {}  {:<NAME$}{}",
            function.own,
            shares(own),
            function.total,
            total.value * 100.0,
            if function.is_kernel { 'k' } else { 'u' },
            function.name,
            look.bar(own)
        );
        writeln!(out, "{}", row.trim_end())?;
    }
    rest(rows.len(), top, "functions", out)
}

fn rest(rows: usize, top: usize, what: &str, out: &mut dyn Write) -> io::Result<()> {
    match rows.checked_sub(top) {
        Some(more) if more > 0 => writeln!(out, "  and {more} other {what} (--top shows more)"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::collect::testing::profile;
    use super::*;

    fn printed(top: usize, look: Look) -> String {
        let mut out = Vec::new();
        print(&profile(&[]), SortBy::Own, top, look, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_pipe_gets_plain_text() {
        let expected = "\
, 0 vCPUs, 0 Hz
0 ticks = 0 samples + 0 idle + 0 stolen + 0 lost
The recording was cut off: this is what was written until then (0 bytes more are no whole block)

  MODE       SAMPLES    SHARE    95 %
  user             1   16.7 %   3.0-56.4
  kernel           2   33.3 %   9.7-70.0
  interrupt        1   16.7 %   3.0-56.4
  idle             2   33.3 %   9.7-70.0

      PID  NAME              SAMPLES    SHARE    95 %         USER  KERNEL  INTERRUPT    IDLE
        7  main;one                3   50.0 %  18.8-81.2         1       2          0       0
        0  [idle]                  2   33.3 %   9.7-70.0         0       0          0       2
  and 1 other processes (--top shows more)

     SELF    SHARE    95 %        TOTAL    SHARE     FUNCTION
        2   33.3 %   9.7-70.0         2   33.3 %  k  [halted]
        2   33.3 %   9.7-70.0         2   33.3 %  k  copy
  and 3 other functions (--top shows more)
";
        assert_eq!(printed(2, Look::default()), expected);
    }

    #[test]
    fn a_terminal_gets_bars_and_colours() {
        let look = Look {
            bars: true,
            colours: true,
        };
        let text = printed(9, look);
        assert!(text.contains("\x1b[33m████████████\x1b[0m"), "{text}");
        let plain = Look {
            colours: false,
            ..look
        };
        assert!(!printed(9, plain).contains('\x1b'));
    }
}
