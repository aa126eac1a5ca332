//! The names of generated code in a recording, as each process has written them over time.

use std::collections::HashMap;

use super::perf_map::WrittenPieces;
use kvmprof_recording::file::GeneratedCode;

/// How long a program keeps lines back before it writes them, at most, in ns. While other code may already be where a line says, the code that was there
/// before has no name.
const KEPT_BACK: u64 = 5_000_000_000;

/// What a process had written of the names of its generated code at a time. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GeneratedState {
    /// The number of the file, counted from 1.
    file: u32,
    /// What of it had been written.
    pub pieces: WrittenPieces,
}

impl GeneratedState {
    /// The number of the file; `None` without one.
    pub fn file(self) -> Option<u32> {
        self.file.checked_sub(1)
    }
}

/// The pieces of a process's file.
#[derive(Clone, Debug, Default)]
struct WrittenFile {
    /// When nothing had been written, in ns of CLOCK_MONOTONIC. It doesn't decrease within a process.
    begin: u64,
    /// Of each piece, until when its code wasn't there, and since when all of it was written. Neither decreases.
    times: Vec<(u64, u64)>,
    lines: Vec<String>,
}

/// All files of all processes.
#[derive(Clone, Debug, Default)]
pub struct GeneratedFiles {
    /// The number of files that have been forgotten.
    forgotten: u32,
    files: Vec<WrittenFile>,
    /// Those of each process, in the order of time, by place in `files`.
    processes: HashMap<i32, Vec<usize>>,
}

impl GeneratedFiles {
    /// Adds lines of a process. Returns the number of the file that has more of them now.
    pub fn add(&mut self, code: &GeneratedCode) -> u32 {
        let info = &code.info;
        let of_process = self.processes.entry(info.pid).or_default();
        let last = of_process.last().copied();
        let before = last.and_then(|last| self.files.get(last));
        let begin = before.map_or(0, |file| file.begin).max(info.since);
        let index = match last {
            Some(last) if !info.begins => last,
            _ => {
                of_process.push(self.files.len());
                self.files.push(WrittenFile {
                    begin,
                    ..WrittenFile::default()
                });
                self.files.len() - 1
            }
        };
        if let Some(file) = self.files.get_mut(index) {
            let (before, written) = file.times.last().copied().unwrap_or((file.begin, 0));
            let before = before.max(info.since.saturating_sub(KEPT_BACK));
            file.times
                .push((before, written.max(info.until).max(before)));
            file.lines.push(code.lines.clone());
        }
        self.number(index)
    }

    fn number(&self, index: usize) -> u32 {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.forgotten.saturating_add(index)
    }

    /// Forgets all of them. Numbers aren't used again.
    pub fn forget(&mut self) {
        *self = Self {
            forgotten: self.number(self.files.len()),
            ..Self::default()
        };
    }

    /// What process `pid` had written at `time`, in ns of CLOCK_MONOTONIC, and the times around it for which that holds: from the first one until
    /// before the second.
    pub fn at(&self, pid: i32, time: u64) -> (GeneratedState, (u64, u64)) {
        let Some(of_process) = self.processes.get(&pid) else {
            return (GeneratedState::default(), (0, u64::MAX));
        };
        let begins = |index: usize| self.files.get(index).map_or(0, |file| file.begin);
        let after = of_process.partition_point(|index| begins(*index) < time);
        let next = of_process.get(after);
        let next = next.map_or(u64::MAX, |index| begins(*index).saturating_add(1));
        let Some(index) = after.checked_sub(1).and_then(|last| of_process.get(last)) else {
            return (GeneratedState::default(), (0, next));
        };
        let times = self.files.get(*index).map_or(&[][..], |file| &file.times);
        let written = times.partition_point(|(_, written)| *written < time);
        let begun = times.partition_point(|(before, _)| *before < time);
        let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let state = GeneratedState {
            file: self.number(*index).saturating_add(1),
            pieces: WrittenPieces {
                written: count(written),
                begun: count(begun),
            },
        };
        let untils = |index: usize| times.get(index).map(|(_, written)| *written);
        let sinces = |index: usize| times.get(index).map(|(before, _)| *before);
        let before = [
            written.checked_sub(1).and_then(untils),
            begun.checked_sub(1).and_then(sinces),
        ];
        let before = before.into_iter().flatten().max().unwrap_or(0);
        let later = [untils(written), sinces(begun)].into_iter().flatten().min();
        let end = later
            .map_or(u64::MAX, |later| later.saturating_add(1))
            .min(next);
        (state, (before.saturating_add(1), end))
    }

    /// The lines of file `number`, by pieces.
    pub fn lines(&self, number: u32) -> impl Iterator<Item = &str> {
        let index = number.checked_sub(self.forgotten);
        let file = index.and_then(|index| self.files.get(usize::try_from(index).ok()?));
        let lines = file.map_or(&[][..], |file| &file.lines);
        lines.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_recording::file::GeneratedCodeInfo;

    const SECOND: u64 = 1_000_000_000;

    /// Lines that were written between these times, in seconds.
    fn code(begins: bool, since: u64, until: u64) -> GeneratedCode {
        GeneratedCode {
            info: GeneratedCodeInfo {
                pid: 7,
                begins,
                since: since * SECOND,
                until: until * SECOND,
            },
            lines: format!("{since}\n"),
        }
    }

    #[test]
    fn states_change_when_lines_are_written() {
        let mut files = GeneratedFiles::default();
        let parts = [
            code(false, 100, 112),
            code(false, 110, 120),
            // Times that go back.
            code(false, 90, 95),
            code(true, 200, 220),
            // One that begins before the last one did.
            code(true, 150, 230),
        ];
        for part in &parts {
            files.add(part);
        }
        for (time, expected) in [
            (0, None),
            (100, None),
            (101, Some((0, 0, 1))),
            (105, Some((0, 0, 1))),
            (106, Some((0, 0, 3))),
            (112, Some((0, 0, 3))),
            (113, Some((0, 1, 3))),
            (121, Some((0, 3, 3))),
            (200, Some((0, 3, 3))),
            (201, Some((2, 0, 1))),
            (221, Some((2, 0, 1))),
            (231, Some((2, 1, 1))),
            (1_000_000, Some((2, 1, 1))),
        ] {
            let time = time * SECOND;
            let (state, (begin, end)) = files.at(7, time);
            let WrittenPieces { written, begun } = state.pieces;
            let found = state.file().map(|file| (file, written, begun));
            assert_eq!(found, expected, "{time}");
            assert!(begin <= time && time < end, "{time}");
            assert_eq!(files.at(7, begin.max(1)).0, state, "{time}");
            assert_eq!(files.at(7, end - 1).0, state, "{time}");
        }
        assert_eq!(files.at(8, 150).0, GeneratedState::default());
        assert_eq!(files.lines(1).collect::<Vec<_>>(), ["200\n"]);
        assert_eq!(files.lines(0).count(), 3);
    }

    #[test]
    fn numbers_of_forgotten_files_are_not_used_again() {
        let mut files = GeneratedFiles::default();
        assert_eq!(files.add(&code(false, 1, 2)), 0);
        files.forget();
        assert_eq!(files.lines(0).count(), 0);
        assert_eq!(files.add(&code(false, 1, 2)), 1);
        assert_eq!(files.add(&code(false, 3, 4)), 1);
        assert_eq!(files.at(7, 9 * SECOND).0.file(), Some(1));
        assert_eq!(files.lines(1).count(), 2);
    }
}
