//! The part of the page that needs no script: the recording's properties and the account of its ticks.

use crate::markup::Markup;
use crate::profile::{Profile, Share};
use crate::text::utc;
use kvmprof_recording::file::Account;

/// The tables of the recordings' properties.
pub fn info(profile: &Profile) -> Markup {
    let mut tables = Markup::default();
    for (number, recording) in (1..).zip(profile.recordings()) {
        let file = (!profile.merged.is_empty()).then(|| format!("({number}) {}", recording.file));
        tables.join(&info_of(recording, file));
    }
    tables
}

fn info_of(profile: &Profile, file: Option<String>) -> Markup {
    let info = &profile.contents.info;
    let began = utc(info.began_ns).unwrap_or_default();
    let stacks = match (info.stacks.kernel, info.stacks.user) {
        (true, true) => "kernel, user",
        (true, false) => "kernel",
        (false, true) => "user",
        (false, false) => "none",
    };
    let phase = if info.jitter { ", random phase" } else { "" };
    let source = match info.event {
        None => ("clock", format!("{}, {} Hz{phase}", info.clock, info.hz)),
        Some(event) => ("samples", event.describe()),
    };
    let file = file.map(|file| ("file", file));
    let kernel = profile.contents.kernel.as_ref();
    let kernel = kernel.map_or([None, None], |kernel| {
        [
            ("release", &kernel.release),
            ("build id of the kernel", &kernel.build_id),
        ]
        .map(|(name, value)| Some((name, value.clone())).filter(|(_, value)| !value.is_empty()))
    });
    let first = file.into_iter().chain([("kernel", info.kernel.clone())]);
    let first = first.chain(kernel.into_iter().flatten());
    let mut out = Markup::default();
    out.add("<table class=facts><tbody>\n");
    for (name, value) in first.chain([
        ("began", began),
        ("vCPUs", info.vcpus.to_string()),
        ("memory", format!("{} MiB", info.memory_bytes >> 20)),
        source,
        ("stacks", stacks.to_owned()),
        ("recorded by", format!("kvmprof {}", info.program)),
    ]) {
        out.add("<tr><th scope=row>").text(name);
        out.add("</th><td class=name>").text(value);
        out.add("</td></tr>\n");
    }
    out.add("</tbody></table>\n");
    out
}

/// The table of an account.
pub fn account(account: &Account) -> Markup {
    let mut out = Markup::default();
    out.add("<table class=facts><tbody>\n");
    let ungathered = (account.ungathered > 0).then_some(("not asked for", account.ungathered));
    let rows = [
        ("samples", account.samples),
        ("idle without a sample", account.idle),
        ("stolen: the host ran something else", account.stolen),
        ("lost", account.lost),
    ];
    let all = ("all ticks", account.ticks);
    for (name, count) in rows.into_iter().chain(ungathered).chain([all]) {
        let share = Share::new(count.min(account.ticks), account.ticks).value;
        out.add("<tr><th scope=row>").text(name);
        out.add("</th><td class=n>").text(count);
        out.add("</td><td class=n>")
            .text(format_args!("{:.1} %", share * 100.0));
        out.add("</td></tr>\n");
    }
    out.add("</tbody></table>\n");
    out
}
