//! Whether the records of the host's kernel have what consumers want.

use kvmprof_introspection::{ProcessPlaces, ValueKind};
use kvmprof_profiling::clock::ClockSetting;
use kvmprof_recording::StackParts;

/// Whether records with the values of `places` suffice for `setting`. With `has_stacks`, they have copies of the stacks, too.
pub fn can_serve(places: Option<&ProcessPlaces>, setting: &ClockSetting, has_stacks: bool) -> bool {
    let has_group = || {
        places.is_none_or(|places| {
            let mut values = places.values.iter();
            values.any(|value| value.kind == ValueKind::ProcessGroup)
        })
    };
    // Other guests have no mappings. Their stacks are copied if the stack pointer is in memory, and users choose this clock so that the guest loses little time.
    let is_linux = places.is_some_and(|places| places.is_linux);
    let wants_stacks = setting.processes || setting.stacks != StackParts::default();
    !setting.exits
        && (!setting.process_group || has_group())
        && (!wants_stacks || !is_linux || has_stacks)
}

#[cfg(test)]
mod tests {
    use kvmprof_introspection::{ValueAt, ValuePlace};

    use super::*;

    fn places(kinds: &[ValueKind], is_linux: bool) -> ProcessPlaces {
        let value = |kind: &ValueKind| ValuePlace {
            kind: *kind,
            at: ValueAt::Task(0),
            width: 4,
        };
        ProcessPlaces {
            task: None,
            values: kinds.iter().map(value).collect(),
            interrupt_stack: None,
            is_linux,
        }
    }

    #[test]
    fn data_missing_in_records_needs_exits() {
        let setting = ClockSetting::default();
        let grouped = ClockSetting {
            process_group: true,
            ..setting
        };
        let exits = ClockSetting {
            exits: true,
            ..setting
        };
        let pid = places(&[ValueKind::Pid], true);
        let group = places(&[ValueKind::Pid, ValueKind::ProcessGroup], true);
        assert!(can_serve(Some(&pid), &setting, false) && can_serve(None, &setting, false));
        assert!(!can_serve(Some(&pid), &grouped, true) && can_serve(Some(&group), &grouped, true));
        assert!(!can_serve(Some(&group), &exits, true));
    }

    #[test]
    fn stacks_and_mappings_need_the_stack_pointer_in_records() {
        let stacks = StackParts {
            kernel: false,
            user: true,
        };
        let setting = ClockSetting::default();
        let with_stacks = ClockSetting { stacks, ..setting };
        let with_processes = ClockSetting {
            processes: true,
            ..setting
        };
        let (linux, other) = (
            places(&[ValueKind::Pid], true),
            places(&[ValueKind::Pid], false),
        );
        for asked in [with_stacks, with_processes] {
            assert!(!can_serve(Some(&linux), &asked, false), "{asked:?}");
            assert!(can_serve(Some(&linux), &asked, true), "{asked:?}");
            assert!(can_serve(Some(&other), &asked, false), "{asked:?}");
            assert!(can_serve(None, &asked, false), "{asked:?}");
        }
    }
}
