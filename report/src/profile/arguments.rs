//! The options of command lines that select a part of a recording.

use std::ffi::OsString;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use kvmprof_recording::{Mode, parse_pid};

use super::{Pattern, Selection, TimeRange};
use crate::model::{Criteria, Label, Transform};

/// The options that select a part of a recording. All of them have to match.
#[derive(Clone, Debug, Default, Args)]
pub struct SelectionArguments {
    /// Only these processes, by the guest's own pids, separated by commas; samples have to match this and all options below
    #[arg(long, value_name = "PID", value_parser = parse_pid, value_delimiter = ',', allow_negative_numbers = true)]
    pub pid: Vec<i32>,
    /// Only these threads, by the guest's own tids, separated by commas
    #[arg(long, value_name = "TID", value_parser = parse_pid, value_delimiter = ',', allow_negative_numbers = true)]
    pub tid: Vec<i32>,
    /// Only processes that have a thread with this name, as ps in the guest shows it; can be given more than once
    #[arg(long, value_name = "NAME")]
    pub comm: Vec<String>,
    /// Only these vCPUs, from 0, separated by commas
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    pub vcpu: Vec<u16>,
    /// Only samples in these modes, separated by commas
    #[arg(long, value_name = "MODE", value_delimiter = ',', value_parser = mode())]
    pub mode: Vec<Mode>,
    /// Only processes with this label, such as user=1000 or the start of a container's id, container=4f1d; can be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<Label>,
    /// Only samples with a function of this module on their stack, as reports name it; of one of several
    #[arg(long, value_name = "NAME")]
    pub module: Vec<String>,
    /// Only samples with a function on their stack whose name matches this regular expression, and each one that is given
    #[arg(long, value_name = "REGEX")]
    pub grep: Vec<Pattern>,
    /// All but what has this: one of the filters above, such as mode=idle or module=libc.so.6; can be given more than once
    #[arg(long, value_name = "FILTER=VALUE")]
    pub not: Vec<Criteria>,
    /// Show other frames than were recorded, such as merge=memcpy (more than once, in this order): the page's transforms
    ///
    /// focus=FUNCTION: its callers are left out, and stacks without it. subtree=FUNCTION;FUNCTION: the same, for the calls along this way from the outermost
    /// frame. merge=FUNCTION: what it calls is called by its callers, and its own ticks are theirs. collapse=FUNCTION: ticks of what it calls are its own.
    /// recursion=FUNCTION: what is between its outermost and its innermost call is left out. focus-module=NAME: functions of other modules are left out.
    /// collapse-module=NAME: functions of it that call each other are one. Filters go by what was recorded.
    #[arg(long, value_name = "KIND=NAME")]
    pub transform: Vec<Transform>,
    /// Only this time, in seconds from the recording's start; either end can be left out [default: all of it]
    #[arg(long, value_name = "A:B")]
    pub time: Vec<TimeRange>,
}

/// `--time` was given several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--time can be given once: only kvmprof diff compares two times")]
pub struct SeveralTimes;

/// A parser of the names of modes.
fn mode() -> impl TypedValueParser<Value = Mode> {
    let names = PossibleValuesParser::new(Mode::ALL.map(Mode::name));
    names.map(|name| Mode::named(&name).unwrap_or_default())
}

impl SelectionArguments {
    /// What the options select.
    ///
    /// # Errors
    /// There are several times.
    pub fn selection(&self) -> Result<Selection, SeveralTimes> {
        let time = match self.time.as_slice() {
            [] => TimeRange::default(),
            [time] => *time,
            _ => return Err(SeveralTimes),
        };
        Ok(Selection {
            time,
            ..self.at_all_times()
        })
    }

    /// What they select without the time.
    fn at_all_times(&self) -> Selection {
        let only = Criteria {
            pids: self.pid.clone(),
            tids: self.tid.clone(),
            comms: self.comm.clone(),
            vcpus: self.vcpu.clone(),
            modes: self.mode.clone(),
            labels: self.label.clone(),
            modules: self.module.clone(),
            greps: self.grep.clone(),
        };
        let mut not = Criteria::default();
        for criteria in &self.not {
            not.extend(criteria.clone());
        }
        Selection {
            only,
            not,
            transforms: self.transform.clone(),
            ..Selection::default()
        }
    }

    /// The options as words of a command line.
    pub fn words(&self) -> Vec<OsString> {
        let selection = self.at_all_times();
        let options = selection.options();
        let options = options.map(|(option, value)| format!("{option}={value}"));
        let time = self.time.iter().map(|time| format!("--time={time}"));
        options.chain(time).map(OsString::from).collect()
    }

    /// The names of the given options that leave something out.
    pub fn given(&self) -> Vec<String> {
        let selection = self.at_all_times();
        let mut given: Vec<String> = selection.options().map(|(option, _)| option).collect();
        given.dedup();
        let is_part = self.time.iter().any(|time| !time.is_all());
        given.extend(is_part.then(|| "--time".to_owned()));
        given
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        selection: SelectionArguments,
    }

    fn parse(words: &[&str]) -> SelectionArguments {
        let words = ["report"].iter().chain(words);
        CommandLine::try_parse_from(words).unwrap().selection
    }

    #[test]
    fn printed_arguments_round_trip() {
        let words = "--pid=-1,7;--tid=8;--comm=a b;--comm=c;--vcpu=0;--mode=kernel,idle;\
                     --label=user=0;--label=container=a=b;--module=[kernel];--grep=^x;--grep=y$;\
                     --not=pid=9;--not=mode=user;--not=pid=10;--transform=subtree=a=b.c;--transform=merge=a;--time=1.5:";
        let arguments = parse(&words.split(';').collect::<Vec<_>>());
        let words = arguments.words();
        let again = words.iter().filter_map(|word| word.to_str());
        let again = parse(&again.collect::<Vec<_>>());
        assert_eq!(again.selection(), arguments.selection());
        let selection = arguments.selection().unwrap();
        assert_eq!(selection.only.pids, [-1, 7]);
        assert_eq!(selection.only.comms, ["a b", "c"]);
        assert_eq!(selection.only.modes, [Mode::Kernel, Mode::Idle]);
        assert_eq!(selection.only.labels[1].value, "a=b");
        assert_eq!(selection.only.greps.len(), 2);
        assert_eq!(selection.not.pids, [9, 10]);
        let given =
            "--pid --tid --comm --vcpu --mode --label --module --grep --not --transform --time";
        assert_eq!(arguments.given().join(" "), given);
        assert!(parse(&["--time=:"]).given().is_empty());
        let two = parse(&["--time=1:2", "--time=3:4"]);
        assert_eq!(two.selection(), Err(SeveralTimes));
    }
}
