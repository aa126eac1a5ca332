//! Assembles the page.

use std::fmt::Write;

use super::{data, properties};
use crate::model::Counts;
use crate::profile::{Profile, Selection, emptiness, loss, loss_of_one, restarts};
use crate::symbolize::{Resolver, SourceTexts};
use crate::text::escape;
use kvmprof_recording::file::{Account, FileError, Recording, Unobserved};
use kvmprof_recording::without_sample;

/// The views, which the script fills in.
const VIEWS: &str = include_str!("script/views.html");

const STYLES: [&str; 3] = [
    include_str!("script/base.css"),
    include_str!("script/views.css"),
    include_str!("script/palette.css"),
];

/// The script's files. Each comes after those that it needs.
const SCRIPTS: [&str; 13] = [
    include_str!("script/data.js"),
    include_str!("script/state.js"),
    include_str!("script/sums.js"),
    include_str!("script/change.js"),
    include_str!("script/tree.js"),
    include_str!("script/flames.js"),
    include_str!("script/code.js"),
    include_str!("script/details.js"),
    include_str!("script/views.js"),
    include_str!("script/timeline.js"),
    include_str!("script/filters.js"),
    include_str!("script/tables.js"),
    include_str!("script/main.js"),
];

/// The page must not load anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      base-uri 'none'; form-action 'none'";

/// The page that shows `profile` under `title`, with the `counts` of the same ticks of each of its recordings. Where the resolver has the guest's
/// files, the functions with the most ticks are shown with their code, and their lines as far as `texts` has them.
pub fn page(profile: &Profile, counts: Vec<Counts>, title: &str, texts: &SourceTexts) -> String {
    assemble(profile, counts, title, texts, false)
}

/// The page that compares `after` with `before`, with the `counts` of the ticks of each.
pub fn comparison_page(
    before: Profile,
    after: Profile,
    counts: Vec<Counts>,
    title: &str,
) -> String {
    let mut both = Profile {
        merged: vec![after],
        ..before
    };
    both.share_code();
    assemble(&both, counts, title, &SourceTexts::default(), true)
}

fn assemble(
    profile: &Profile,
    counts: Vec<Counts>,
    title: &str,
    texts: &SourceTexts,
    is_comparison: bool,
) -> String {
    let title = escape(title);
    let data = data::json(profile, counts, texts, is_comparison);
    let mut out = String::with_capacity(data.len() + (1 << 18));
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n\
         <meta http-equiv=Content-Security-Policy content=\"{POLICY}\">\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <meta name=color-scheme content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n",
        STYLES.concat()
    );
    out.push_str(&body(profile, &title, is_comparison));
    let _ = write!(
        out,
        "<script type=\"application/json\" id=data>{data}</script>\n\
         <script>\n\"use strict\";\n{}</script>\n</body>\n</html>\n",
        SCRIPTS.concat()
    );
    out
}

/// The page of `recording`: all of it, or only the processes `pids` if there are any. Names are the recording's own.
///
/// # Errors
/// As [`Recording::read`].
pub fn page_of(recording: &Recording, pids: &[i32], title: &str) -> Result<String, FileError> {
    let (profile, counts) = counted(recording, pids)?;
    let texts = SourceTexts::default();
    Ok(page(&profile, vec![counts], title, &texts))
}

/// The sums of `recording`, or of the processes `pids` if there are any, and its counts for a page. Names are the recording's own.
///
/// # Errors
/// As [`Recording::read`].
pub fn counted(recording: &Recording, pids: &[i32]) -> Result<(Profile, Counts), FileError> {
    let resolver = Resolver::from_contents(&recording.contents()?);
    let selection = Selection::from_pids(pids);
    let mut counts = Counts::default();
    let profile = Profile::read_with(recording, selection, resolver, &Unobserved, &mut counts)?;
    Ok((profile, counts))
}

/// The part of the page that needs no script. `title` is HTML already.
fn body(profile: &Profile, title: &str, is_comparison: bool) -> String {
    let accounts: String = if is_comparison {
        let sides = ["before", "after"].into_iter().zip(profile.recordings());
        sides
            .map(|(side, recording)| {
                let account = recording.contents.account;
                format!("<h3>{side}</h3>\n{}", properties::account(&account))
            })
            .collect()
    } else {
        properties::account(&profile.account())
    };
    format!(
        "<header><h1>{title}</h1>\n{}</header>\n<main>\n\
         <noscript><p class=warning>This page is drawn by a script, which doesn't run here. \
         <code>kvmprof report</code> prints the same numbers.</p></noscript>\n\
         {VIEWS}\
         <section class=columns aria-label=\"About the recording\"><div><h2>Recording</h2>\n{}</div>\n\
         <div><h2>Ticks</h2>\n{}</div></section>\n</main>\n",
        warnings(profile, is_comparison),
        properties::info(profile),
        accounts,
    )
}

/// Warnings, which come first on the page.
fn warnings(profile: &Profile, is_comparison: bool) -> String {
    let account = profile.account();
    let Account {
        ticks,
        samples,
        idle,
        stolen,
        lost,
        ..
    } = account;
    let mut out = if is_comparison {
        let sides = ["before", "after"].into_iter().zip(profile.recordings());
        let lines = sides.map(|(side, one)| format!("<p>{side}: {}</p>\n", one.contents.account));
        lines.collect()
    } else {
        format!("<p>{account}</p>\n")
    };
    // The text has names of files and processes.
    let mut warn = |text: &str| {
        let _ = writeln!(out, "<p class=warning>{}</p>", escape(text));
    };
    if is_comparison {
        for (side, one) in ["before", "after"].into_iter().zip(profile.recordings()) {
            if let Some(misleading) = loss_of_one(one) {
                warn(&format!("{side}: {misleading}"));
            }
        }
    } else if let Some(misleading) = loss(profile).filter(|_| profile.samples() > 0) {
        warn(&misleading);
    } else if lost > 0 {
        warn(&format!(
            "{}: what the guest did in them is not in the shares.",
            without_sample(ticks, lost, stolen)
        ));
    }
    for recording in profile.recordings() {
        if let Some(restarts) = restarts(recording) {
            let file = match recording.file.as_str() {
                "" => String::new(),
                file => format!("{file}: "),
            };
            warn(&format!("{file}{restarts}."));
        }
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
    if let Some(why) = emptiness(profile) {
        warn(&why);
    } else if profile.samples() < samples.saturating_add(idle) {
        warn(&format!(
            "Only {} is shown, {} ticks.",
            profile.selection,
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
        let page = page(
            &profile,
            vec![Counts::default()],
            "</title><script>x</script>",
            &SourceTexts::default(),
        );
        assert!(
            page.contains("<title>&#60;/title&#62;&#60;script"),
            "{page}"
        );
        assert_eq!(page.matches("<script").count(), 2);
    }
    #[test]
    fn names_of_recordings_are_text_in_warnings() {
        // A recording without an end has a warning with its name.
        let named = |file: &str| Profile {
            file: file.to_owned(),
            ..Profile::default()
        };
        let both = Profile {
            merged: vec![named("other")],
            ..named("<img src=x onerror=alert(1)>")
        };
        let warnings = warnings(&both, false);
        assert!(
            warnings.contains("&#60;img src=x onerror=alert(1)&#62;: The recording was cut off"),
            "{warnings}"
        );
        assert!(!warnings.contains("<img"), "{warnings}");
    }
}
