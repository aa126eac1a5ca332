//! Reads the export with inferno's collapser of perf script's text.

use std::collections::HashMap;

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};
use kvmprof_recording::Mode;
use kvmprof_report::export::Format;

use super::{PERIOD, ROUNDS, exported, first};
use crate::exports::export;
use crate::exports::recording::{info, ticks, write};

fn collapsed(options: Options, script: &[u8]) -> String {
    let mut folded = Vec::new();
    Folder::from(options).collapse(script, &mut folded).unwrap();
    String::from_utf8(folded).unwrap()
}

#[test]
fn inferno_collapses_perf_script() {
    let (_folder, file, expected) = exported(Format::PerfScript);
    let mut options = Options::default();
    options.annotate_kernel = true;
    options.include_tid = true;
    let folded = collapsed(options, &std::fs::read(&file).unwrap());
    let mut own: HashMap<String, u64> = HashMap::new();
    for line in folded.lines() {
        let (stack, period) = line.rsplit_once(' ').unwrap();
        let function = stack.rsplit_once(';').unwrap().1;
        let ticks = period.parse::<u64>().unwrap() / PERIOD;
        *own.entry(function.trim_end_matches("_[k]").to_owned())
            .or_default() += ticks;
    }
    assert_eq!(first(own), expected);
    let of_worker = format!(
        "server_worker-101/102;[cut short];server::spin;read@plt;entry_SYSCALL_64_[k];do_syscall_64_[k];ksys_read_[k];copy_page_to_iter_[k] {}",
        8 * ROUNDS * PERIOD
    );
    assert!(folded.lines().any(|line| line == of_worker), "{folded}");
}

/// Addresses without a function in a file.
#[test]
fn unknown_functions_of_a_file_stay_apart() {
    let mut all = ticks(1);
    all.truncate(2);
    for ((ticks, frames), address) in all.iter_mut().zip([0x40_1700, 0x40_1720]) {
        let sample = ticks.sample.as_mut().unwrap();
        (sample.pc, sample.mode) = (address, Mode::User);
        (sample.stack.kernel, sample.stack.user) = (0, 1);
        *frames = vec![address];
    }
    let (_folder, path) = write(&info(), &all);
    let text = export(&path, &[], Format::PerfScript);
    let folded = collapsed(Options::default(), &text);
    for function in ["server+0x401700", "server+0x401720"] {
        let line = format!("server;{function} {PERIOD}");
        assert!(folded.lines().any(|own| own == line), "{folded}");
    }
}
