//! Assembles the page.

use std::fmt::Write;

use super::flames::Flames;
use super::timeline::Timeline;
use super::{tables, timeline_svg};
use crate::profile::{Profile, folded, modules_by_name};
use crate::text::escape;
use kvmprof_recording::file::Account;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page must not load anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      base-uri 'none'; form-action 'none'";

/// The page that shows `profile`, with `timeline`, under `title`.
pub fn page(profile: &Profile, timeline: &Timeline, title: &str) -> String {
    let title = escape(title);
    let mut out = String::new();
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n\
         <meta http-equiv=Content-Security-Policy content=\"{POLICY}\">\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <meta name=color-scheme content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    out.push_str(&body(profile, timeline, &title));
    let flames = Flames::new(&folded(profile))
        .with_modules(modules_by_name(profile))
        .json();
    let _ = write!(
        out,
        "<script type=\"application/json\" id=frames>{flames}</script>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    );
    out
}

/// The part of the page that needs no script. `title` is HTML already.
fn body(profile: &Profile, timeline: &Timeline, title: &str) -> String {
    let mut out = format!("<h1>{title}</h1>\n");
    out.push_str(&warnings(profile));
    let _ = write!(
        out,
        "<h2>Timeline</h2>\n{}\
         <h2>Flame graph</h2>\n\
         <noscript><p class=note>The flame graph is drawn by a script, which doesn't run here. \
         The tables below have it all by function.</p></noscript>\n\
         <div id=tools hidden><button id=reset disabled>Whole graph</button> \
         <button id=turn>Icicle</button> \
         <label>Search <input id=search type=search placeholder=\"part of a name\"></label> \
         <span id=found></span></div>\n\
         <div id=graph></div>\n<p id=detail class=note></p>\n\
         <h2>Processes</h2>\n{}\
         <h2>Functions</h2>\n{}\
         <div class=columns><div><h2>Recording</h2>\n{}</div>\n\
         <div><h2>Ticks</h2>\n{}</div></div>\n",
        timeline_svg::draw(timeline, profile),
        tables::processes(profile),
        tables::functions_table(profile),
        tables::info(profile),
        tables::account(profile),
    );
    out
}

/// Warnings that a reader must see first.
fn warnings(profile: &Profile) -> String {
    let contents = &profile.contents;
    let account = contents.account;
    let Account {
        ticks,
        samples,
        idle,
        lost,
        ..
    } = account;
    let mut out = format!("<p>{account}</p>\n");
    let mut warn = |text: &str| {
        let _ = writeln!(out, "<p class=warning>{text}</p>");
    };
    if lost > 0 {
        warn(&format!(
            "{lost} of {ticks} ticks were lost: what ran then is not in the shares."
        ));
    }
    if let Some(incompleteness) = profile.incompleteness() {
        warn(&format!("{incompleteness}."));
    }
    if !profile.selection.time.is_all() {
        warn(
            "Only a part of the time is shown; how many ticks without a sample fall into it is an estimate.",
        );
    }
    if !profile.has_symbols() {
        warn("No symbols of the guest's kernel are in the recording.");
    }
    if profile.samples() == 0 {
        warn("There are no samples: the recording has none, or none of the processes asked for.");
    } else if profile.samples() < samples.saturating_add(idle) {
        warn(&format!(
            "Only some processes are shown, with {} ticks.",
            profile.samples()
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_text() {
        let profile = Profile::default();
        let page = page(&profile, &Timeline::default(), "</title><script>x</script>");
        assert!(
            page.contains("<title>&#60;/title&#62;&#60;script"),
            "{page}"
        );
        assert_eq!(page.matches("<script").count(), 2);
    }
}
