//! Samples by the value of a label.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_recording::Mode;

use super::{ModeCounts, Profile};
use crate::model::sum_modes;

/// Replaces the value of a missing label.
pub const NO_VALUE: &str = "[none]";

/// The samples of processes that have a label with the same value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRow {
    /// The value; `None` for processes without this label, and for halted vCPUs.
    pub value: Option<String>,
    /// Samples by mode.
    pub modes: ModeCounts,
}

impl LabelRow {
    /// The value, or a word in brackets.
    pub fn shown_value(&self) -> &str {
        self.value.as_deref().unwrap_or(NO_VALUE)
    }
}

/// The keys of all labels of the sampled processes.
pub fn label_keys(profile: &Profile) -> BTreeSet<&str> {
    let stacks = profile.recordings().flat_map(|recording| {
        let labels = recording.labels();
        let stacks = recording.stacks();
        stacks.flat_map(|stack| labels.get(stack.labels))
    });
    stacks.map(|(key, _)| key).collect()
}

/// The keys of labels in `profile`, in words.
pub fn labels_in_words(profile: &Profile) -> String {
    let keys: Vec<&str> = label_keys(profile).into_iter().collect();
    match keys.as_slice() {
        [] => "no process has a label".to_owned(),
        keys => format!("labels are {}", keys.join(", ")),
    }
}

/// A label as one word, such as `user=1000`.
pub fn label_name(key: &str, value: Option<&str>) -> String {
    format!("{key}={}", value.unwrap_or(NO_VALUE))
}

/// The samples by the value of the label `key`, the most samples first.
pub fn by_label(profile: &Profile, key: &str) -> Vec<LabelRow> {
    let mut sums: BTreeMap<Option<&str>, ModeCounts> = BTreeMap::new();
    for recording in profile.recordings() {
        let samples = recording.stacks().map(|stack| {
            let value = recording.labels().value(stack.labels, key);
            (value, stack.mode, stack.ticks)
        });
        let idle = (None, Mode::Idle, recording.idle);
        for (value, mode, ticks) in samples.chain((recording.idle > 0).then_some(idle)) {
            let sum = &mut sums.entry(value).or_default()[mode.index()];
            *sum = sum.saturating_add(ticks);
        }
    }
    let rows = sums.into_iter().map(|(value, modes)| LabelRow {
        value: value.map(str::to_owned),
        modes,
    });
    let mut rows: Vec<LabelRow> = rows.collect();
    rows.sort_by_key(|row| u64::MAX - sum_modes(&row.modes));
    rows
}
