//! Prints the properties of recordings and the accounts of their ticks.

use std::io::{self, Write};
use std::time::Duration;

use kvmprof_recording::file::Account;
use kvmprof_recording::loss_warning;

use super::{Profile, pauses_in_words};
use crate::text::visible;

/// Prints the properties of the recordings of `profile`, the accounts of their ticks, and the selection.
///
/// # Errors
/// Writing to `out` failed.
pub fn print(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    if profile.merged.is_empty() {
        print_account(profile, out)?;
    } else {
        for (number, recording) in (1..).zip(profile.recordings()) {
            write!(out, "({number}) {}: ", visible(&recording.file))?;
            print_account(recording, out)?;
        }
        let count = profile.recordings().count();
        writeln!(out, "All {count} together: {}", profile.account())?;
    }
    if let Some(why) = emptiness(profile) {
        writeln!(out, "{why}")?;
    } else if let Some(warning) = loss(profile) {
        writeln!(out, "{warning}")?;
    }
    let time = profile.selection.time;
    if !time.is_all() {
        writeln!(
            out,
            "Only {time} s from its begin; ticks without a sample are placed there by estimate"
        )?;
    }
    let options = profile.selection.to_string();
    if !options.is_empty() {
        let samples = profile.samples();
        writeln!(
            out,
            "Only {options}: {samples} samples and idle ticks, which all shares are of"
        )?;
    }
    if let Some(incompleteness) = profile.incompleteness() {
        writeln!(out, "{incompleteness}")?;
    }
    let left_out = profile.recordings().map(|one| one.contents.left_out);
    let left_out = left_out.fold(0, u64::saturating_add);
    if left_out > 0 {
        writeln!(
            out,
            "{left_out} blocks of symbols, mappings and files are more than fits: names are missing"
        )?;
    }
    if !profile.has_symbols() {
        writeln!(out, "No symbols of the guest's kernel are in the recording")?;
    }
    Ok(())
}

/// Why there are no samples and no idle ticks; `None` if there are any.
pub(crate) fn emptiness(profile: &Profile) -> Option<String> {
    if profile.samples() > 0 {
        return None;
    }
    let Account {
        ticks,
        samples,
        idle,
        stolen,
        lost,
        ungathered,
    } = profile.account();
    let is_part = profile.selection.is_part();
    let why = if samples > 0 || idle > 0 {
        format!("none of {samples} samples and {idle} idle ticks is selected")
    } else if ticks == 0 && is_part {
        "no tick is in the selected time and of the selected vCPUs".to_owned()
    } else if ticks == 0 {
        "no tick came before the recording's end".to_owned()
    } else {
        let parts = [
            (stolen, "stolen by the host"),
            (lost, "lost"),
            (ungathered, "not asked for"),
        ];
        let parts = parts.iter().filter(|(part, _)| *part > 0);
        let parts: Vec<String> = parts.map(|(part, how)| format!("{part} {how}")).collect();
        format!("of {ticks} ticks, {}", parts.join(", "))
    };
    Some(format!("There are no samples: {why}."))
}

/// A warning if too many ticks have no sample for reliable shares; `None` if the ticks are events.
pub(crate) fn loss(profile: &Profile) -> Option<String> {
    loss_in(profile, &profile.account())
}

/// The same of the first recording of `profile` alone.
pub(crate) fn loss_of_one(profile: &Profile) -> Option<String> {
    loss_in(profile, &profile.contents.account)
}

fn loss_in(profile: &Profile, account: &Account) -> Option<String> {
    match profile.contents.info.event {
        Some(_) => None,
        None => loss_warning(account.ticks, account.lost, account.stolen),
    }
}

/// The properties of a recording, and the account of its ticks.
fn print_account(recording: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let contents = &recording.contents;
    let info = &contents.info;
    let release = contents.kernel.as_ref().map(|kernel| &kernel.release);
    let release = release.filter(|release| !release.is_empty());
    writeln!(
        out,
        "{}{}, {} vCPU{}, {}",
        visible(&info.kernel),
        release.map_or_else(String::new, |release| format!(" ({})", visible(release))),
        info.vcpus,
        if info.vcpus == 1 { "" } else { "s" },
        info.rate()
    )?;
    writeln!(out, "{}", contents.account)?;
    for gap in contents.kernel.iter().flat_map(|kernel| &kernel.gaps) {
        writeln!(out, "{}", visible(gap))?;
    }
    for text in [restarts(recording), pauses_in_words(recording)] {
        text.map_or(Ok(()), |text| writeln!(out, "{text}"))?;
    }
    Ok(())
}

/// How often the guest of one recording was restarted, and when first; `None` if it wasn't.
pub(crate) fn restarts(profile: &Profile) -> Option<String> {
    let (info, resets) = (&profile.contents.info, &profile.contents.resets);
    let first = resets.first()?;
    let after = first.time.saturating_sub(info.began_monotonic_ns);
    let after = Duration::from_nanos(after).as_secs_f64();
    Some(match resets.len() {
        1 => format!("The guest restarted once, {after:.3} s from its begin"),
        count => format!("The guest restarted {count} times, first {after:.3} s from its begin"),
    })
}
