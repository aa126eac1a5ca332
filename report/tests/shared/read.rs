//! Reads recordings as kvmprof's commands do.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::path::Path;

use clap::Parser;
use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::export::Source;
use kvmprof_report::html::Counts;
use kvmprof_report::profile::{Layout, Profile, Selection, SelectionArguments, folded, print};
use kvmprof_report::symbolize::{Resolver, Sources};

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    arguments: SelectionArguments,
}

/// What these options of `kvmprof report` select.
pub fn selection(options: &[&str]) -> Selection {
    let words = ["report"].iter().chain(options);
    CommandLine::parse_from(words)
        .arguments
        .selection()
        .unwrap()
}

/// The recording at `path`, and the names that it has itself.
pub fn opened(path: &Path) -> (Recording, Resolver) {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    (recording, resolver)
}

/// The profile of what `options` select in the recording at `path`, with the counts of a page. Its name is that of the file.
pub fn counted(path: &Path, options: &[&str]) -> (Profile, Counts) {
    let (recording, resolver) = opened(path);
    let mut counts = Counts::default();
    let selection = selection(options);
    let read = Profile::read_with(&recording, selection, resolver, &Unobserved, &mut counts);
    let name = path.file_name().unwrap();
    let profile = Profile {
        file: name.to_str().unwrap().to_owned(),
        ..read.unwrap()
    };
    (profile, counts)
}

pub fn profile(path: &Path, options: &[&str]) -> Profile {
    counted(path, options).0
}

/// The recording at `path`, and the names that it has itself and that the files of `sources` have.
pub fn opened_with(path: &Path, sources: &Sources) -> (Recording, Resolver) {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::new(&recording.contents().unwrap(), sources).unwrap();
    (recording, resolver)
}

/// The profile of the recording at `path` with names from the files of `sources`.
pub fn profile_with(path: &Path, sources: &Sources) -> Profile {
    let (recording, resolver) = opened_with(path, sources);
    Profile::read(&recording, Selection::default(), resolver, &Unobserved).unwrap()
}

/// The same for exports.
pub fn source_with(path: &Path, sources: &Sources) -> Source {
    let (recording, resolver) = opened_with(path, sources);
    Source::read(recording, Selection::default(), resolver, None, &Unobserved).unwrap()
}

/// Its tables, as a command prints them to a pipe.
pub fn printed(profile: &Profile, layout: &Layout) -> String {
    let mut out = Vec::new();
    let budget = OutputBudget::new(u64::MAX);
    print(profile, layout, &[], &budget, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Its folded stacks, however long they are.
pub fn stacks(profile: &Profile) -> Vec<String> {
    folded(profile, &OutputBudget::new(u64::MAX)).unwrap()
}
