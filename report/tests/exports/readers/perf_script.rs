//! Parses the text of perf script as its readers do, and compares it with perf's own.

use std::collections::BTreeMap;

use kvmprof_recording::comm_of;
use kvmprof_report::export::Format;

use super::perf::{exported, perf};
use super::{PERIOD, ROUNDS};
use crate::exports::export;
use crate::exports::recording::{info, recording, ticks, write};

/// A sample: the fields of its head, and its frames, innermost first.
struct Sample<'a> {
    comm: &'a str,
    tid: u32,
    time: f64,
    period: u64,
    frames: Vec<(&'a str, &'a str)>,
}

/// The form of a head, which readers agree on: a name of two characters at least, which begins without a blank; the first word of digits after it,
/// with a slash and more digits, for pid and tid; and at its end the time, the period, and the event, the first and the last with a colon.
fn head(line: &str) -> Option<Sample<'_>> {
    let (first, second) = (line.chars().next()?, line.chars().nth(1)?);
    if first.is_whitespace() || first == '#' {
        return None;
    }
    let after = first.len_utf8() + second.len_utf8();
    let blanks = line.match_indices(' ').map(|(index, _)| index);
    let (comm, ids, rest) = blanks.filter(|blank| *blank >= after).find_map(|blank| {
        let (ids, rest) = line[blank..].trim_start().split_once(' ')?;
        let are_digits =
            |ids: &str| !ids.is_empty() && ids.bytes().all(|byte| byte.is_ascii_digit());
        ids.split('/')
            .all(are_digits)
            .then(|| (line[..blank].trim_end(), ids, rest))
    })?;
    let (_, tid) = ids.split_once('/')?;
    let mut words = rest.trim().strip_suffix(':')?.split_whitespace();
    let [_cpu, time, period, _event] = std::array::from_fn(|_| words.next().unwrap_or_default());
    Some(Sample {
        comm,
        tid: tid.parse().ok()?,
        time: time.strip_suffix(':')?.parse().ok()?,
        period: period.parse().ok()?,
        frames: Vec::new(),
    })
    .filter(|_| words.next().is_none())
}

/// The form of a frame: a blank, the address, the function, and in parentheses its object, which has no blank. Readers cut off an offset at the
/// function's end, and skip one that begins with a parenthesis.
fn frame(line: &str) -> Option<(&str, &str)> {
    let (address, rest) = line.strip_prefix('\t')?.trim_start().split_once(' ')?;
    u64::from_str_radix(address, 16).ok()?;
    let (function, object) = rest.strip_suffix(')')?.rsplit_once(" (")?;
    let is_one = !function.starts_with('(') && !object.contains(char::is_whitespace);
    let offset = function
        .rsplit_once("+0x")
        .filter(|(_, offset)| u64::from_str_radix(offset, 16).is_ok());
    is_one.then(|| (offset.map_or(function, |(function, _)| function), object))
}

/// All samples of `text`, whose lines all have one of these forms.
fn samples(text: &str) -> Vec<Sample<'_>> {
    let blocks = text.strip_suffix("\n\n").unwrap_or(text).split("\n\n");
    let samples = blocks.map(|block| {
        let mut lines = block.lines();
        let first = lines.next().unwrap_or_default();
        let mut sample = head(first).unwrap_or_else(|| panic!("not a head: {first:?}"));
        let frames =
            lines.map(|line| frame(line).unwrap_or_else(|| panic!("not a frame: {line:?}")));
        sample.frames = frames.collect();
        sample
    });
    samples.collect()
}

#[test]
fn every_line_has_the_form_that_readers_take() {
    let (_folder, path) = recording(ROUNDS);
    let text = String::from_utf8(export(&path, &[], Format::PerfScript)).unwrap();
    let samples = samples(&text);
    let mut folded: BTreeMap<String, u64> = BTreeMap::new();
    for sample in &samples {
        let frames = sample.frames.iter().rev();
        let frames = frames.map(|(function, _)| function.replace(';', ":").replace('"', ""));
        let frames: Vec<String> = frames.collect();
        let stack = format!("{};{}", sample.comm.replace(' ', "_"), frames.join(";"));
        *folded.entry(stack).or_default() += sample.period;
    }
    assert_eq!(folded.values().sum::<u64>(), 72 * ROUNDS * PERIOD);
    let read = "read@plt;entry_SYSCALL_64;do_syscall_64;ksys_read;copy_page_to_iter";
    for (stack, ticks) in [
        (
            &*format!("server;main;Server::serve(std::string const&);{read}"),
            13,
        ),
        (
            &*format!("server_worker;[cut short];server::spin;{read}"),
            8,
        ),
        ("batch;[cut short];0x402000;0x402080", 17),
        ("[unknown];virtnet_poll", 5),
        ("swapper/1;[halted]", 12),
    ] {
        let expected = ticks * ROUNDS * PERIOD;
        assert_eq!(folded.get(stack), Some(&expected), "{folded:#?}");
    }
    // No thread is named after another one, and an unknown one isn't idle.
    for (comm, tid) in [
        ("server worker", 102),
        ("swapper/1", 0),
        ("[unknown]", u32::MAX),
    ] {
        let mut samples = samples.iter().filter(|sample| sample.comm == comm);
        assert!(samples.all(|sample| sample.tid == tid), "{comm}");
    }
    assert!(samples.is_sorted_by(|left, right| left.time <= right.time));
}

/// Names of threads and files that readers could misparse.
#[test]
fn names_do_not_break_lines() {
    for name in "a|7| 7 8/9 x|# x|x 1/1 [0] 1:|\t|é é|pool-1 thread 2".split('|') {
        let mut all = ticks(1);
        for (ticks, _) in &mut all {
            let sample = ticks.sample.as_mut().unwrap();
            (sample.pid, sample.tid) = (1_234_567, 7_654_321);
            sample.comm = comm_of(name);
        }
        let (_folder, path) = write(&info(), &all);
        let text = String::from_utf8(export(&path, &[], Format::PerfScript)).unwrap();
        for sample in samples(&text) {
            let tid = [7_654_321, 0][usize::from(sample.comm == "[idle]")];
            assert_eq!(sample.tid, tid, "{name:?}: {text}");
        }
    }
}

/// A line without the parts in which perf differs: it has its own name for pid 0, it knows the pid -1, symbol files replace those of the guest and
/// of a process's other code, modules are the kernel, and notes are functions at addresses beyond all code.
fn common(line: &str) -> String {
    let Some(frame) = line.strip_prefix('\t') else {
        assert!(!line.starts_with(' '), "{line}");
        // Some versions of perf have wider columns for pids.
        let words: Vec<&str> = line.split_whitespace().collect();
        let line = words.join(" ").replace("4294967295/4294967295", "-1/-1");
        let idle = line.split_once(" 0/0 ").map(|(_, rest)| rest.to_owned());
        return idle.unwrap_or(line);
    };
    let Some((function, object)) = frame.rsplit_once(" (") else {
        return line.to_owned();
    };
    if let Some((_, note)) = function.split_once('[') {
        return format!("[{}", note.trim_end_matches("+0x0"));
    }
    let object = object.rsplit('/').next().unwrap();
    let is_of_process = object.trim_end_matches(|last: char| last != '-').len() > 1;
    let object = match object.starts_with('[') {
        true => "the kernel or a module",
        false if is_of_process => "user)",
        false => object,
    };
    format!("{function} ({object}")
}

/// The same recording as a file for perf, which prints it.
#[test]
fn perf_prints_the_same_lines() {
    let (folder, _) = exported();
    let fields = "comm,pid,tid,cpu,time,period,event,ip,sym,symoff,dso";
    let of_perf = perf(folder.path(), "script", &["-F", fields]);
    let path = folder.path().join("test.kvmprof");
    let own = String::from_utf8(export(&path, &[], Format::PerfScript)).unwrap();
    assert_eq!(own.lines().count(), of_perf.lines().count(), "{of_perf}");
    for (number, (own, of_perf)) in own.lines().zip(of_perf.lines()).enumerate() {
        let lines = format!("line {}:\n{own}\n{of_perf}", number + 1);
        assert_eq!(common(own), common(of_perf), "{lines}");
    }
}
