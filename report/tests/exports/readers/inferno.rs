//! Reads the export with inferno's collapser of perf script's text.

use std::collections::HashMap;

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};
use kvmprof_report::export::Format;

use super::{PERIOD, ROUNDS, exported, first};

#[test]
fn inferno_collapses_perf_script() {
    let (_folder, file, expected) = exported(Format::PerfScript);
    let mut options = Options::default();
    options.annotate_kernel = true;
    options.include_tid = true;
    let mut folded = Vec::new();
    let input = std::fs::read(&file).unwrap();
    Folder::from(options)
        .collapse(input.as_slice(), &mut folded)
        .unwrap();
    let folded = String::from_utf8(folded).unwrap();
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
