//! The samples that a client has selected.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{MAX_LIST, PROF_ALL, PROF_GROUP, PROF_KERNEL, PROF_LIST, PROF_MASK, kind};

use kvmprof_recording::{Mode, Sample};

/// The modes in effect: `d_flag`, `d_group` and `d_list` of the page.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// The bits of the `PROF_*` commands so far, under `PROF_MASK`.
    modes: u32,
    group: Option<i32>,
    list: Vec<i32>,
}

impl Selection {
    /// True until the first `PROF_*`.
    pub(super) fn is_empty(&self) -> bool {
        self.modes == 0
    }

    pub(super) fn modes(&self) -> u32 {
        self.modes
    }

    pub(super) fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// Adds the mode of a `PROF_*` command.
    pub(super) fn add(&mut self, command: u32) {
        self.modes |= command & PROF_MASK;
    }

    pub(super) fn set_group(&mut self, group: i32) {
        self.add(PROF_GROUP);
        self.group = Some(group);
    }

    pub(super) fn set_list(&mut self, list: Vec<i32>) {
        self.add(PROF_LIST);
        self.list = list;
    }

    /// The type of the record for `sample`, `None` if it is to be merged.
    pub(super) fn record_kind(&self, sample: &Sample) -> Option<u8> {
        let (kind, wanted) = match sample.mode {
            Mode::Idle => return None,
            Mode::Kernel => (kind::KERNEL, self.asks(PROF_KERNEL)),
            Mode::Interrupt => (kind::KERNELI, self.asks(PROF_KERNEL)),
            Mode::User => (kind::USER, self.names(sample)),
        };
        (wanted || self.asks(PROF_ALL)).then_some(kind)
    }

    fn asks(&self, command: u32) -> bool {
        self.modes & command & PROF_MASK != 0
    }

    fn names(&self, sample: &Sample) -> bool {
        let listed = sample.pid != UNKNOWN && self.list.contains(&sample.pid);
        let grouped = sample.process_group != UNKNOWN && self.group == Some(sample.process_group);
        listed || grouped
    }
}

/// The value of an unknown process or group in a sample.
const UNKNOWN: i32 = -1;

/// The list that `PROF_LIST` points to: a count, then the process ids.
pub(super) fn parse_list(data: &[u8]) -> Result<Vec<i32>, Errno> {
    let (words, _) = data.as_chunks::<4>();
    let mut words = words.iter().map(|word| i32::from_le_bytes(*word));
    let count = usize::try_from(words.next().ok_or(Errno::EFAULT)?).map_err(|_| Errno::EINVAL)?;
    if !(1..=MAX_LIST).contains(&count) {
        return Err(Errno::EINVAL);
    }
    let list: Vec<i32> = words.take(count).collect();
    if list.len() < count {
        return Err(Errno::EFAULT);
    }
    // Pid 0 is the idle process, which has no user ticks. No process has a negative id.
    if list.iter().any(|pid| *pid < 1) {
        return Err(Errno::EINVAL);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_process_is_in_no_list_and_no_group() {
        let mut selection = Selection::default();
        selection.set_list(vec![-1]);
        selection.set_group(-1);
        let sample = Sample {
            pid: -1,
            process_group: -1,
            mode: Mode::User,
            ..Sample::default()
        };
        assert_eq!(selection.record_kind(&sample), None);
        selection.add(PROF_ALL);
        assert_eq!(selection.record_kind(&sample), Some(kind::USER));
    }
}
