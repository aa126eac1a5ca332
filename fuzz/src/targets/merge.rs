//! Several recordings that are counted together, as `report` and others do it. The first is a block of the input, the other one the rest; each
//! is as the target `recording` has it.

use std::path::Path;

use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_report::html::{BesideTicks, Counts, page};
use kvmprof_report::profile::{Profile, Selection};
use kvmprof_report::symbolize::{Resolver, SourceTexts};

use super::recording::{self, file, report};
use crate::input::{Input, block};

fn profile(data: &[u8], seen: &mut (Counts, BesideTicks)) -> Option<Profile> {
    let recording = Recording::from_bytes(Path::new("fuzzed"), file(data)).ok()?;
    let resolver = Resolver::from_contents(&recording.contents().ok()?);
    Profile::read_with(
        &recording,
        Selection::default(),
        resolver,
        &Unobserved,
        seen,
    )
    .ok()
}

/// Reads both, and has all be made of them that is made of several.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let first = input.block();
    let mut seen = [(); 2].map(|()| Default::default());
    let [one, other] = &mut seen;
    let (Some(one), Some(other)) = (profile(first, one), profile(input.rest(), other)) else {
        return;
    };
    if let Ok(merged) = Profile::merge(vec![one, other]) {
        assert_eq!(merged.recordings().count(), 2);
        report(&merged);
        page(&merged, seen.into(), "title", &SourceTexts::default());
    }
}

/// The same recording twice, and one with a damaged one.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    // By its blocks.
    let (_, one) = recording::seeds().swap_remove(0);
    let half = &one[..one.len() / 2];
    vec![
        ("twice", [block(&one), one.clone()].concat()),
        ("half", [&block(half)[..], &one].concat()),
    ]
}
