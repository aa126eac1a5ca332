//! `kvmprof html`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use kvmprof_recording::Sysroot;

use super::InputArguments;
use super::output::write_picture;
use super::picture::PictureArguments;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_report::graph::title;
use kvmprof_report::html::{BesideTicks, Counts, page};
use kvmprof_report::symbolize::SourceTexts;

/// The ending of the page's name.
const ENDING: &str = "html";

/// Write recordings as an HTML page: timeline, flame graph, tables, filters
///
/// One file that any browser opens from disk; it loads nothing. With --vmlinux or --sysroot it also has the instructions of the functions with the
/// most ticks, and the source lines that the folders have.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when the recording cannot be read or has nothing that the options select, or the file cannot \
    be written; 2 for wrong options.\n\n\
    Example: kvmprof html out.kvmprof --output out.html"
)]
pub struct HtmlArguments {
    #[command(flatten)]
    picture: PictureArguments,
    #[command(flatten)]
    sources: SourceArguments,
}

/// Where source files are.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SourceArguments {
    /// A folder with source files, which are shown beside those of --sysroot, by the paths that debug information has or the ends of these (more than once)
    #[arg(long, value_name = "DIR")]
    sources: Vec<PathBuf>,
}

impl SourceArguments {
    /// The source files in these folders and among the guest's files that `input` names.
    ///
    /// # Errors
    /// A folder can't be opened.
    pub(super) fn texts(&self, input: &InputArguments) -> anyhow::Result<SourceTexts> {
        let sysroot = input.sysroot();
        let folders = sysroot
            .into_iter()
            .chain(self.sources.iter().map(PathBuf::as_path));
        let folders = folders.map(|path| {
            Sysroot::open(path)
                .with_context(|| format!("Cannot open the folder {}", path.display()))
        });
        Ok(SourceTexts::new(folders.collect::<anyhow::Result<_>>()?))
    }
}

/// Writes the page of the recording at `path` to `output`, also with names from the guest's files in the folder `sysroot`.
///
/// # Errors
/// The recording can't be read, or the page can't be written.
pub fn write_page(
    path: &Path,
    sysroot: Option<PathBuf>,
    output: &Path,
    console: &mut Console<'_>,
) -> anyhow::Result<()> {
    let page = page_of(
        &InputArguments::of_all(sysroot),
        &SourceArguments::default(),
        &[path.to_owned()],
        console,
    )?;
    write_picture(output, page.as_bytes(), console)
}

/// The page of the part of the recordings at `paths` that `options` select.
///
/// # Errors
/// As of [`InputArguments::open_all`] and [`SourceArguments::texts`].
pub(super) fn page_of(
    options: &InputArguments,
    sources: &SourceArguments,
    paths: &[PathBuf],
    console: &mut Console<'_>,
) -> anyhow::Result<String> {
    let texts = sources.texts(options)?;
    let (profile, seen) = options.open_all::<(Counts, BesideTicks)>(paths, console)?;
    Ok(page(&profile, seen, &title(&profile), &texts))
}

impl Command for HtmlArguments {
    /// Reads the recording and writes the page.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let input = self.picture.checked_input(ENDING)?;
        let texts = self.sources.texts(input)?;
        let (profile, seen) =
            input.open_all::<(Counts, BesideTicks)>(&self.picture.files, console)?;
        let title = self.picture.title_or(title(&profile));
        let page = page(&profile, seen, &title, &texts);
        self.picture.write(page.as_bytes(), ENDING, console)?;
        Ok(ExitStatus::SUCCESS)
    }
}
