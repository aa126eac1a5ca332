//! Assembles the page.

use sha2::{Digest, Sha256};

use super::{BesideTicks, data, pack, properties};
use crate::markup::Markup;
use crate::model::{Counts, Watcher};
use crate::profile::{Profile, Selection, emptiness, loss, loss_of_one, pauses_in_words, restarts};
use crate::symbolize::{Resolver, SourceTexts};
use kvmprof_recording::file::{Account, FileError, Recording, Unobserved};
use kvmprof_recording::without_sample;

/// The controls of the bar beside the title, and the views, which the script fills in.
const BAR: &str = include_str!("script/bar.html");
const VIEWS: &str = include_str!("script/views.html");

const STYLES: [&str; 3] = [
    include_str!("script/base.css"),
    include_str!("script/views.css"),
    include_str!("script/palette.css"),
];

/// The script's files. Each comes after those that it needs.
const SCRIPTS: [&str; 23] = [
    include_str!("script/data.js"),
    include_str!("script/state.js"),
    include_str!("script/transforms.js"),
    include_str!("script/sums.js"),
    include_str!("script/change.js"),
    include_str!("script/tree.js"),
    include_str!("script/waits.js"),
    include_str!("script/exits.js"),
    include_str!("script/tip.js"),
    include_str!("script/flames.js"),
    include_str!("script/calltree.js"),
    include_str!("script/chart.js"),
    include_str!("script/code.js"),
    include_str!("script/details.js"),
    include_str!("script/views.js"),
    include_str!("script/lanes.js"),
    include_str!("script/timeline.js"),
    include_str!("script/filters.js"),
    include_str!("script/tables.js"),
    include_str!("script/waiting.js"),
    include_str!("script/exiting.js"),
    include_str!("script/keys.js"),
    include_str!("script/main.js"),
];

/// What a live page has besides, behind the others.
const LIVE_SCRIPTS: [&str; 2] = [
    include_str!("script/newer.js"),
    include_str!("script/live.js"),
];

/// What a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'a> {
    /// Recordings, counted together.
    Recording,
    /// What changed from one recording to another.
    Comparison,
    /// A guest that is being recorded, or why it isn't any more.
    Live(Option<&'a str>),
}

/// The page that shows `profile` under `title`, with the counts of the same ticks of each of its recordings, and its waits and exits, as far as there are any. Where the resolver has the guest's
/// files, the functions with the most ticks are shown with their code, and their lines as far as `texts` has them.
pub fn page(
    profile: &Profile,
    seen: Vec<(Counts, BesideTicks)>,
    title: &str,
    texts: &SourceTexts,
) -> String {
    page_of_kind(profile, seen, title, texts, Kind::Recording)
}

/// The page of a guest that is being recorded, as [`page`]. It loads itself again once a second, from where it came from, and shows the newer
/// data; until a page has an `end`, which says why there will be none.
pub fn live_page(
    profile: &Profile,
    seen: (Counts, BesideTicks),
    title: &str,
    texts: &SourceTexts,
    end: Option<&str>,
) -> String {
    page_of_kind(profile, vec![seen], title, texts, Kind::Live(end))
}

fn page_of_kind(
    profile: &Profile,
    seen: Vec<(Counts, BesideTicks)>,
    title: &str,
    texts: &SourceTexts,
    kind: Kind<'_>,
) -> String {
    let (counts, beside): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    let (waits, exits): (Vec<_>, Vec<_>) = beside.into_iter().unzip();
    let data = data::json(profile, counts, (&waits, &exits), texts, false);
    assemble(profile, &data, title, kind)
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
    let data = data::json(&both, counts, (&[], &[]), &SourceTexts::default(), true);
    assemble(&both, &data, title, Kind::Comparison)
}

fn assemble(profile: &Profile, data: &str, title: &str, kind: Kind<'_>) -> String {
    let mut script = joined("\n\"use strict\";\n", &SCRIPTS);
    let mut open_body = Markup::default();
    match kind {
        Kind::Live(end) => {
            script.join(&joined("", &LIVE_SCRIPTS));
            open_body
                .add("<body data-live=\"")
                .text(end.unwrap_or_default());
            open_body.add("\">\n");
        }
        Kind::Recording | Kind::Comparison => {
            open_body.add("<body>\n");
        }
    }
    let style = joined("\n", &STYLES);
    let mut page = Markup::default();
    page.add("<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n")
        .add("<meta http-equiv=Content-Security-Policy content=\"")
        .text(policy(&style, &script, kind))
        .add(
            "\">\n<meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
             <meta name=color-scheme content=\"light dark\">\n<title>",
        )
        .text(title)
        .add("</title>\n<style>")
        .join(&style)
        .add("</style>\n</head>\n")
        .join(&open_body)
        .join(&body(profile, title, kind))
        .add("<script type=\"application/json\" id=data>")
        .data(data)
        .add("</script>\n<script>")
        .join(&script)
        .add("</script>\n</body>\n</html>\n");
    page.into_string()
}

/// These files, after each other.
fn joined(begin: &'static str, files: &[&'static str]) -> Markup {
    let mut all = Markup::default();
    all.add(begin);
    for file in files {
        all.add(file);
    }
    all
}

/// What the page may do (Content Security Policy Level 3): it loads nothing, or if it is live from its own server alone, has this style and runs this script
/// and no other, and the script can't make markup or code of text (Trusted Types).
fn policy(style: &Markup, script: &Markup, kind: Kind<'_>) -> String {
    let hash = |markup: &Markup| {
        let mut text = String::from("sha256-");
        pack::write_base64(&Sha256::digest(markup.as_str()), &mut text);
        text
    };
    let connections = match kind {
        Kind::Live(_) => "connect-src 'self'; ",
        Kind::Recording | Kind::Comparison => "",
    };
    format!(
        "default-src 'none'; {connections}style-src '{}'; script-src '{}'; base-uri 'none'; form-action 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash(style),
        hash(script)
    )
}

/// The page of `recording`: all of it, or only the processes `pids` if there are any. Names are the recording's own.
///
/// # Errors
/// As [`Recording::read`].
pub fn page_of(recording: &Recording, pids: &[i32], title: &str) -> Result<String, FileError> {
    let (profile, seen) = watched(recording, pids)?;
    Ok(page(&profile, vec![seen], title, &SourceTexts::default()))
}

/// The sums of `recording`, or of the processes `pids` if there are any, and its counts for a page. Names are the recording's own.
///
/// # Errors
/// As [`Recording::read`].
pub fn counted(recording: &Recording, pids: &[i32]) -> Result<(Profile, Counts), FileError> {
    watched(recording, pids)
}

/// The sums of `recording`, or of the processes `pids` if there are any, and what a watcher makes of it.
fn watched<W: Watcher + Default>(
    recording: &Recording,
    pids: &[i32],
) -> Result<(Profile, W), FileError> {
    let resolver = Resolver::from_contents(&recording.contents()?);
    let selection = Selection::from_pids(pids);
    let mut watcher = W::default();
    let profile = Profile::read_with(recording, selection, resolver, &Unobserved, &mut watcher)?;
    Ok((profile, watcher))
}

/// The part of the page that needs no script.
fn body(profile: &Profile, title: &str, kind: Kind<'_>) -> Markup {
    let mut body = Markup::default();
    body.add("<header><h1>")
        .text(title)
        .add("</h1>\n")
        .add(BAR)
        .add(
            "</header>\n<main>\n\
             <noscript><p class=warning>This page is drawn by a script, which doesn't run here. \
             <code>kvmprof report</code> prints the same numbers.</p></noscript>\n",
        )
        .add(VIEWS)
        .add("<section id=about aria-label=\"About the recording\">\n")
        .join(&warnings(profile, kind))
        .add("<div class=columns><div><h2>Recording</h2>\n")
        .join(&properties::info(profile))
        .add("</div>\n<div><h2>Ticks</h2>\n");
    if kind == Kind::Comparison {
        for (side, recording) in ["before", "after"].into_iter().zip(profile.recordings()) {
            body.add("<h3>").add(side).add("</h3>\n");
            body.join(&properties::account(&recording.contents.account));
        }
    } else {
        body.join(&properties::account(&profile.account()));
    }
    body.add("</div></div></section>\n</main>\n");
    body
}

/// The accounts of the ticks, which come first on the page, and warnings.
fn warnings(profile: &Profile, kind: Kind<'_>) -> Markup {
    let mut out = Markup::default();
    if kind == Kind::Comparison {
        for (side, one) in ["before", "after"].into_iter().zip(profile.recordings()) {
            let account = one.contents.account;
            out.add("<p>").text(format_args!("{side}: {account}"));
            out.add("</p>\n");
        }
    } else {
        out.add("<p>").text(profile.account()).add("</p>\n");
    }
    for warning in texts_of_warnings(profile, kind) {
        out.add("<p class=warning>").text(warning).add("</p>\n");
    }
    out
}

/// The warnings. They have names of files and processes.
fn texts_of_warnings(profile: &Profile, kind: Kind<'_>) -> Vec<String> {
    let Account {
        ticks,
        samples,
        idle,
        stolen,
        lost,
        ..
    } = profile.account();
    let mut warnings = Vec::new();
    if kind == Kind::Comparison {
        for (side, one) in ["before", "after"].into_iter().zip(profile.recordings()) {
            let misleading = loss_of_one(one);
            warnings.extend(misleading.map(|text| format!("{side}: {text}")));
        }
    } else if let Some(misleading) = loss(profile).filter(|_| profile.samples() > 0) {
        warnings.push(misleading);
    } else if lost > 0 {
        warnings.push(format!(
            "{}: what the guest did in them is not in the shares.",
            without_sample(ticks, lost, stolen)
        ));
    }
    for recording in profile.recordings() {
        let file = match recording.file.as_str() {
            "" => String::new(),
            file => format!("{file}: "),
        };
        let noted = [restarts(recording), pauses_in_words(recording)];
        warnings.extend(noted.iter().flatten().map(|text| format!("{file}{text}.")));
    }
    // What is being recorded isn't cut off.
    let incompleteness = (profile.incompleteness()).filter(|_| kind != Kind::Live(None));
    warnings.extend(incompleteness.map(|text| format!("{text}.")));
    if !profile.selection.time.is_all() {
        warnings.push(
            "Only a part of the time is shown; how many ticks without a sample fall into it is an estimate."
                .to_owned(),
        );
    }
    if !profile.has_symbols() {
        warnings.push("No symbols of the guest's kernel are in the recording.".to_owned());
    }
    if let Some(why) = emptiness(profile) {
        warnings.push(why);
    } else if profile.samples() < samples.saturating_add(idle) {
        warnings.push(format!(
            "Only {} is shown, {} ticks.",
            profile.selection,
            profile.samples()
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_text() {
        let profile = Profile::default();
        let page = page(
            &profile,
            vec![Default::default()],
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
    fn only_live_pages_load_anything_and_from_their_server_alone() {
        let profile = Profile::default();
        let live = |end| {
            let texts = SourceTexts::default();
            live_page(&profile, Default::default(), "A guest", &texts, end)
        };
        let seen = vec![Default::default()];
        let usual = page(&profile, seen, "A guest", &SourceTexts::default());
        for word in ["connect-src", "XMLHttpRequest", "data-live"] {
            assert!(live(None).contains(word) && !usual.contains(word), "{word}");
        }
        assert!(live(None).contains("; connect-src &#39;self&#39;; "));
        assert!(live(None).contains("<body data-live=\"\">"));
        let ended = live(Some("\"><script>"));
        assert!(ended.contains("<body data-live=\"&#34;&#62;&#60;script&#62;\">"));
        assert!(ended.contains("cut off") && !live(None).contains("cut off"));
    }
}
