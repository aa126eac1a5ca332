//! Folded stacks: one line for each different stack, with the frames from the outermost in, `;` between them, and the
//! number of samples (<https://github.com/brendangregg/FlameGraph>).

use std::collections::BTreeMap;

use super::{Process, Profile, StackSum};
use crate::budget::{OutputBudget, TooMuch};
use crate::model::{CUT_SHORT, Frame, FrameKind, HALTED, outermost_of_guest};

/// Suffixes of frames that flame graph programs know: kernel functions, functions that a program generated at run time,
/// inlined functions.
const MARKS: [&str; 3] = ["_[k]", "_[j]", "_[i]"];
/// The suffix of kernel functions.
pub const KERNEL_MARK: &str = MARKS[0];

/// The folded stacks of `profile`, each starting with its process, in alphabetical order, with a frame `[cut short]` where callers are missing. If it
/// is of several recordings, processes have the numbers of theirs: `dd-130 (2)`.
///
/// # Errors
/// They, or a picture of them, don't fit into `budget`.
pub fn folded(profile: &Profile, budget: &OutputBudget) -> Result<Vec<String>, TooMuch> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (number, recording) in profile.recordings().enumerate() {
        let number = (!profile.merged.is_empty()).then_some(number);
        for stack in recording.stacks() {
            let line = folded_stack(recording, number, stack, budget)?;
            *lines.entry(line).or_default() += stack.ticks;
        }
        if recording.idle > 0 {
            let line = folded_idle(recording, number);
            *lines.entry(line).or_default() += recording.idle;
        }
    }
    let lines = lines.into_iter();
    Ok(lines
        .map(|(line, count)| format!("{line} {count}"))
        .collect())
}

/// One of the stacks of `recording`, which has this `number` if there are several, without its ticks.
///
/// # Errors
/// It, or a picture of it, doesn't fit into `budget`.
pub fn folded_stack(
    recording: &Profile,
    number: Option<usize>,
    stack: &StackSum,
    budget: &OutputBudget,
) -> Result<String, TooMuch> {
    let mut line = root(recording, number, stack.pid);
    budget.take_frame(&line)?;
    let frames: Vec<Frame<'_>> = recording.frames(stack).collect();
    let outermost = outermost_of_guest(&frames).filter(|_| stack.is_cut_short);
    for (index, frame) in frames.iter().enumerate().rev() {
        if outermost == Some(index) {
            line.push(';');
            line.push_str(CUT_SHORT);
        }
        let name = name(frame);
        budget.take_frame(&name)?;
        line.push(';');
        line.push_str(&name);
    }
    Ok(line)
}

/// The stack of the idle ticks of `recording`, likewise.
pub fn folded_idle(recording: &Profile, number: Option<usize>) -> String {
    format!("{};{HALTED}", root(recording, number, 0))
}

/// The frame of a process, with the number of its recording if there are several.
pub fn root(recording: &Profile, number: Option<usize>, pid: i32) -> String {
    let unnamed = Process::default();
    let process = recording.processes.get(&pid).unwrap_or(&unnamed);
    of_recording(plain(&process.label(pid)), number)
}

/// `name` with the number of its recording, if there are several.
pub fn of_recording(name: String, number: Option<usize>) -> String {
    match number {
        Some(number) => format!("{name} ({})", number + 1),
        None => name,
    }
}

fn name(frame: &Frame<'_>) -> String {
    plain(frame.name) + mark(frame)
}

/// The suffix for the kind of the frame's function.
pub fn mark(frame: &Frame<'_>) -> &'static str {
    let [kernel, generated, inlined] = MARKS;
    match (frame.kind, frame.is_inlined) {
        (FrameKind::Kernel | FrameKind::Host, _) => kernel,
        (FrameKind::Generated, _) => generated,
        (FrameKind::User | FrameKind::Language, true) => inlined,
        (FrameKind::User | FrameKind::Language, false) => "",
    }
}

/// A frame's `name` without that suffix.
pub fn without_mark(name: &str) -> &str {
    let mut marks = MARKS.iter();
    marks
        .find_map(|mark| name.strip_suffix(mark))
        .unwrap_or(name)
}

/// `name` without the characters that separate frames.
pub fn plain(name: &str) -> String {
    name.replace([';', '\n'], ":")
}
