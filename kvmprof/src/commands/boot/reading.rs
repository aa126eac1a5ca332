//! Reads the input of the tables: recordings, and the kernel.

use std::path::{Path, PathBuf};

use anyhow::Context;
use kvmprof_introspection::GuestKnowledge;
use kvmprof_recording::file::{Observer, Recording};
use kvmprof_report::boot::{Boot, INITCALL_PREFIX, Levels};
use kvmprof_report::export::Source;
use kvmprof_report::profile::Selection;
use kvmprof_report::symbolize::Resolver;

use crate::commands::recordings::OutputLimit;

/// Maximum length of a kernel image, in bytes.
const IMAGE_MAX: u64 = 1 << 30;

/// The recordings at `paths`, including those in given folders.
///
/// # Errors
/// A folder can't be read, or has no recordings.
pub fn recordings_of(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut recordings = Vec::new();
    for path in paths {
        if !path.is_dir() {
            recordings.push(path.clone());
            continue;
        }
        let reading = || format!("Cannot read the folder {}", path.display());
        let mut found = Vec::new();
        for entry in path.read_dir().with_context(reading)? {
            let path = entry.with_context(reading)?.path();
            if path.extension().is_some_and(|end| end == "kvmprof") {
                found.push(path);
            }
        }
        if found.is_empty() {
            anyhow::bail!("There is no recording (*.kvmprof) in {}", path.display());
        }
        found.sort();
        recordings.extend(found);
    }
    Ok(recordings)
}

/// The boots in the recordings at `paths`, of a kernel whose initcalls have these `levels`. `observe` makes the
/// observer of a step from the step's name.
///
/// # Errors
/// A recording can't be read, has no boot, or needs more output than the `limit`.
pub fn read_all<O: Observer>(
    paths: &[PathBuf],
    levels: &Levels,
    limit: OutputLimit,
    observe: impl Fn(&'static str) -> O,
) -> anyhow::Result<Vec<Boot>> {
    let read = |path: &PathBuf| {
        let recording = Recording::open(path)?;
        let resolver = Resolver::from_contents(&recording.contents()?);
        let all = Selection::default();
        let source = Source::read(recording, all, resolver, limit.bytes(), &observe("Reading"))?;
        let boot = Boot::read(&source, levels, &observe("Boot"));
        boot.with_context(|| path.display().to_string())
    };
    paths.iter().map(read).collect()
}

/// The levels of the kernel's initcalls, from its image.
///
/// # Errors
/// The image can't be read, or isn't that of a kernel.
pub fn levels_of(kernel: &Path) -> anyhow::Result<Levels> {
    let reading = || format!("Cannot read the kernel {}", kernel.display());
    let length = kernel.metadata().with_context(reading)?.len();
    if length > IMAGE_MAX {
        anyhow::bail!("{} is too long for a kernel", kernel.display());
    }
    let image = std::fs::read(kernel).with_context(reading)?;
    let knowledge = GuestKnowledge::from_image(&image).with_context(reading)?;
    let linux = knowledge.linux();
    let names = linux.map(|linux| linux.symbols().names_with(INITCALL_PREFIX));
    Ok(Levels::from_symbols(names.into_iter().flatten()))
}
