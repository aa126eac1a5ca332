//! Tables and pictures of selected rows, as `kvmprof report`, `flamegraph`, `html` and `diff` make them of recordings.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use kvmprof_recording::file::Recording;
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::diff::folded_changes;
use kvmprof_report::graph::{Graph, account, account_of_changes, marked, title};
use kvmprof_report::html::{self, Counts, comparison_page};
use kvmprof_report::profile::Profile;
use kvmprof_report::rows::RowSums;
use kvmprof_report::symbolize::SourceTexts;

use crate::engine::Engine;
use crate::recording;
use crate::select::{for_each, summary, sums};

/// The sums of the rows for which `condition` is true. Their stacks may take `room` bytes.
///
/// # Errors
/// `condition` isn't a valid condition, or selects nothing or too much.
pub fn profile(engine: &Engine, condition: Option<&str>, room: u64) -> anyhow::Result<Profile> {
    let info = summary(engine, condition)?.info;
    let mut rows = RowSums::new(room);
    engine.compute(sums(engine, condition)?, |batch| {
        for_each(batch, |_, row| Ok(rows.add(row)?))
    })?;
    Ok(rows.into_profile(&info))
}

/// Options of a picture.
#[derive(Clone, Debug, Default)]
pub struct Style {
    /// The title. `None`: the default title.
    pub title: Option<String>,
    /// Whether the outermost frames are at the top.
    pub icicle: bool,
}

/// A flame graph, an SVG document, of the rows for which `condition` is true.
///
/// # Errors
/// As [`profile`].
pub fn flame_graph(
    engine: &Engine,
    condition: Option<&str>,
    style: &Style,
    room: u64,
) -> anyhow::Result<Vec<u8>> {
    let profile = profile(engine, condition, room)?;
    let lines = marked(&profile, None, &OutputBudget::new(room)).map_err(|_| too_much(room))?;
    let graph = Graph {
        title: style.title.clone().unwrap_or_else(|| title(&profile)),
        subtitle: account(&profile),
        icicle: style.icicle,
        differential: false,
    };
    graph.draw(&lines).context("Cannot draw this")
}

/// A page with filters and a search, an HTML document. It also has the times of ticks, so that it is made of a recording.
///
/// # Errors
/// As [`recording::write`].
pub fn page(engine: &Engine, condition: Option<&str>, style: &Style) -> anyhow::Result<Vec<u8>> {
    let (profile, counts) = counted(engine, condition)?;
    let kernel = &profile.contents.info.kernel;
    let title = style.title.as_ref().unwrap_or(kernel);
    Ok(html::page(&profile, vec![counts], title, &SourceTexts::default()).into_bytes())
}

/// The page that compares the rows for which the two conditions are true, an HTML document.
///
/// # Errors
/// As [`recording::write`], or their ticks have different rates.
pub fn changes_page(
    engine: &Engine,
    [before, after]: [&str; 2],
    style: &Style,
) -> anyhow::Result<Vec<u8>> {
    let side = |condition: &str| -> anyhow::Result<_> {
        let (mut profile, counts) = counted(engine, Some(condition))?;
        condition.clone_into(&mut profile.file);
        Ok((profile, counts))
    };
    let ((before, earlier), (after, later)) = (side(before)?, side(after)?);
    check_rates([&before, &after])?;
    let title = title_of([&before, &after], style);
    let page = comparison_page(before, after, vec![earlier, later], &title);
    Ok(page.into_bytes())
}

/// The title of a comparison.
fn title_of([before, after]: [&Profile; 2], style: &Style) -> String {
    let against = || format!("{} against {}", after.file, before.file);
    style.title.clone().unwrap_or_else(against)
}

/// Checks that the ticks of both have the same rate.
///
/// # Errors
/// They have different rates.
pub fn check_rates([before, after]: [&Profile; 2]) -> anyhow::Result<()> {
    let [before, after] = [before, after].map(|profile| profile.contents.info.hz);
    ensure!(
        before == after,
        "Ticks before are of {before} Hz and after of {after} Hz: they stand for different times"
    );
    Ok(())
}

/// A recording of the rows for which `condition` is true, and its sums for a page.
fn counted(engine: &Engine, condition: Option<&str>) -> anyhow::Result<(Profile, Counts)> {
    let (bytes, _) = recording::write(engine, condition, Vec::new())?;
    let recording = Recording::from_bytes(Path::new("the data set"), bytes)?;
    Ok(html::counted(&recording, &[])?)
}

/// A differential flame graph of two selections, an SVG document.
///
/// # Errors
/// It would take too much memory, or there is nothing to draw.
pub fn changes_graph(
    [before, after]: [&Profile; 2],
    style: &Style,
    room: u64,
) -> anyhow::Result<Vec<u8>> {
    let lines =
        folded_changes(before, after, &OutputBudget::new(room)).map_err(|_| too_much(room))?;
    let graph = Graph {
        title: title_of([before, after], style),
        subtitle: account_of_changes(before, after),
        icicle: style.icicle,
        differential: true,
    };
    if lines.is_empty() {
        bail!("There is nothing to draw");
    }
    graph.draw(&lines).context("Cannot draw this")
}

fn too_much(room: u64) -> anyhow::Error {
    anyhow::anyhow!(
        "The picture would take more than {room} bytes: choose less, or allow more by --memory-limit"
    )
}
