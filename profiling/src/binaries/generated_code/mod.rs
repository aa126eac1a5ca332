//! Reads the names of code that processes generate, out of the files in which they write them: perf maps and jitdump files, in the guest's page cache.

mod jit_dump;
mod map_text;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmprof_recording::file::{GeneratedCode, GeneratedCodeInfo};

use super::BinarySources;
use crate::time::monotonic_ns;
use jit_dump::JitDump;
use kvmprof_introspection::{Backing, FileIdentity, PerfMapPlace, ProcessMap};
use map_text::MapText;

/// How often files are read again.
const PERIOD: Duration = Duration::from_millis(500);
/// Maximum number of processes. The code of further ones has no names.
const MAX_PROCESSES: usize = 256;
/// How long after a file wasn't found it is looked for again: this time, twice as long each time, up to the maximum.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(8);
/// How often in a row it may be unknown whether a process lives, before it counts as ended.
const MAX_UNKNOWN: u32 = 20;
/// Maximum number of directory entries that are visited in one round, and of bytes of lines of all processes after which nothing more is read in it.
const MAX_ENTRIES: usize = 1 << 14;
const MAX_ROUND: usize = 4 << 20;
/// The number of bytes that a step counts for at least.
const LEAST_STEP: usize = 4096;
/// Maximum number of bytes of a process's lines. With further ones earlier ones no longer count, as they may be of the same memory.
const MAX_LINES: usize = 32 << 20;
/// How long lines may be unreadable, before earlier ones no longer count.
const MAX_UNREAD: Duration = Duration::from_secs(5);

/// A file that may grow.
pub trait GrowingFile {
    /// At most `limit` bytes from byte `begin` on, and its length now. `None` if they can't be read.
    fn read(&self, begin: u64, limit: u64) -> Option<(Vec<u8>, u64)>;
}

impl GrowingFile for &[u8] {
    fn read(&self, begin: u64, limit: u64) -> Option<(Vec<u8>, u64)> {
        let begin = usize::try_from(begin).ok()?.min(self.len());
        let end = begin.saturating_add(usize::try_from(limit).ok()?);
        Some((self[begin..end.min(self.len())].to_vec(), self.len() as u64))
    }
}

/// Lines of a perf map that are new.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NewLines {
    /// Whether the file has begun again.
    pub begins: bool,
    /// Whole lines.
    pub lines: String,
}

/// What may still be done in a round.
struct RoundBudget {
    entries: usize,
    lines: usize,
}

/// The files of all processes.
#[derive(Debug, Default)]
pub struct GeneratedCodeReader {
    processes: Vec<Process>,
    next: Option<Instant>,
}

/// A process that may generate code.
#[derive(Debug)]
struct Process {
    pid: i32,
    place: PerfMapPlace,
    /// Its jitdump file, which it maps.
    dump: Option<FileIdentity>,
    file: Option<(FileIdentity, Format)>,
    /// When the file is looked for again, and how long after that.
    look: Instant,
    wait: Duration,
    /// How often in a row it wasn't known whether it lives.
    unknown: u32,
    /// Whether earlier lines don't count once there are new ones.
    begins: bool,
    /// Whether a block of its lines was made.
    has_lines: bool,
    /// All that it had written at this time was read, in ns of CLOCK_MONOTONIC.
    since: u64,
    bytes: usize,
    /// Since when there are lines that can't be read.
    unread: Option<Instant>,
    /// Whether it has too many lines.
    is_over: bool,
}

#[derive(Debug)]
enum Format {
    Text(MapText),
    Dump(Box<JitDump>),
}

impl Format {
    fn read(&mut self, file: &dyn GrowingFile) -> Option<NewLines> {
        match self {
            Self::Text(text) => text.read(file),
            Self::Dump(dump) => dump.read(file),
        }
    }

    /// How many bytes of the file were read.
    fn position(&self) -> u64 {
        match self {
            Self::Text(text) => text.position(),
            Self::Dump(dump) => dump.position(),
        }
    }
}

impl GeneratedCodeReader {
    /// Adds the process with `map`, if it may generate code.
    pub fn add(&mut self, map: &ProcessMap) {
        let place = &map.perf_map;
        if place.path.is_empty() {
            return;
        }
        let dump = map.areas.iter().find_map(|area| match &area.backing {
            Backing::File(file) if is_jit_dump(&file.path) => Some(file.identity),
            _ => None,
        });
        let mut known = self.processes.iter_mut();
        if let Some(known) = known.find(|known| known.place.process == place.process) {
            known.dump = known.dump.or(dump);
            if known.place != *place {
                // It has another root directory now.
                known.place.clone_from(place);
                (known.file, known.begins) = (None, true);
            }
            return;
        }
        if self.processes.len() >= MAX_PROCESSES {
            return;
        }
        let process = Process::new(map.pid, place.clone(), dump, map.time);
        self.next.get_or_insert(process.look);
        self.processes.push(process);
    }

    /// When files should be read; `None` if there is no process.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Blocks of the lines that were written since the last call, if the time has come.
    pub fn read(&mut self, sources: &BinarySources) -> Vec<Arc<[u8]>> {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return Vec::new();
        }
        let mut budget = RoundBudget {
            entries: MAX_ENTRIES,
            lines: MAX_ROUND,
        };
        let mut blocks = Vec::new();
        self.processes.retain_mut(|process| {
            let lives = match sources.still_executes(&process.place.process) {
                Some(lives) => lives,
                None if process.unknown < MAX_UNKNOWN => {
                    process.unknown += 1;
                    return true;
                }
                None => false,
            };
            process.unknown = 0;
            // What it has written before its end is read, too.
            process.read(sources, &mut budget, lives, &mut blocks);
            if !lives {
                process.end(&mut blocks);
            }
            lives
        });
        // The budget may not have been enough for the last ones.
        if self.processes.len() > 1 {
            self.processes.rotate_left(1);
        }
        self.next = (!self.processes.is_empty()).then(|| Instant::now() + PERIOD);
        let blocks = blocks.into_iter().filter_map(|code| code.to_block());
        blocks.map(Arc::from).collect()
    }
}

impl Process {
    /// A process that writes its perf map at `place`, or has the jitdump file `dump`, of which nothing was read at `time` in ns.
    fn new(pid: i32, place: PerfMapPlace, dump: Option<FileIdentity>, time: u64) -> Self {
        Self {
            pid,
            place,
            dump,
            file: None,
            look: Instant::now(),
            wait: FIRST_WAIT,
            unknown: 0,
            begins: true,
            has_lines: false,
            since: time,
            bytes: 0,
            unread: None,
            is_over: false,
        }
    }

    /// Adds the new lines to `blocks`.
    fn read(
        &mut self,
        sources: &BinarySources,
        budget: &mut RoundBudget,
        lives: bool,
        blocks: &mut Vec<GeneratedCode>,
    ) {
        if self.is_over {
            return;
        }
        self.find(sources, &mut budget.entries, lives);
        if let Some(identity) = self.file.as_ref().map(|(identity, _)| *identity) {
            let file = sources.growing_file(&identity);
            self.read_file(&file, &mut budget.lines, blocks);
        }
    }

    /// Adds the new lines in `file` to `blocks`, of about `budget` bytes at most.
    fn read_file(
        &mut self,
        file: &dyn GrowingFile,
        budget: &mut usize,
        blocks: &mut Vec<GeneratedCode>,
    ) {
        let Some((_, format)) = &mut self.file else {
            return;
        };
        let before = monotonic_ns();
        // What is left for the next round was written since the last one that read all.
        while *budget > 0 {
            let Some(new) = format.read(file) else {
                let length = file.read(0, 0).map(|(_, length)| length);
                if length.is_some_and(|length| length > format.position()) {
                    self.miss(blocks);
                }
                return;
            };
            self.unread = None;
            if new == NewLines::default() {
                // All that had been written before was read.
                self.since = before;
                return;
            }
            self.bytes += new.lines.len();
            if self.bytes > MAX_LINES {
                log::warn!(
                    "Code that the guest's process {} generates has no names from now on: they take more than {} MiB",
                    self.pid,
                    MAX_LINES >> 20
                );
                self.is_over = true;
                return self.end(blocks);
            }
            *budget = budget.saturating_sub(new.lines.len().max(LEAST_STEP));
            blocks.push(GeneratedCode {
                info: GeneratedCodeInfo {
                    pid: self.pid,
                    begins: new.begins || self.begins,
                    since: self.since,
                    until: monotonic_ns(),
                },
                lines: new.lines,
            });
            (self.begins, self.has_lines) = (false, true);
        }
    }

    /// Notes that there are lines that can't be read. After some time, all are read again once they can be, and none count until then.
    fn miss(&mut self, blocks: &mut Vec<GeneratedCode>) {
        let since = *self.unread.get_or_insert_with(Instant::now);
        if since.elapsed() >= MAX_UNREAD && self.has_lines {
            self.end(blocks);
            (self.file, self.begins, self.has_lines) = (None, true, false);
        }
    }

    /// Finds the file, if it isn't known, or is another one now.
    fn find(&mut self, sources: &BinarySources, budget: &mut usize, lives: bool) {
        if let Some(dump) = self.dump {
            if !matches!(self.file, Some((_, Format::Dump(_)))) {
                self.file = Some((dump, Format::Dump(Box::default())));
            }
            return;
        }
        let now = Instant::now();
        if self.file.is_none() && now < self.look && lives {
            return;
        }
        if let Some((known, _)) = &self.file {
            if sources.growing_file(known).read(0, 0).is_some() {
                return;
            }
            // Lines of another file aren't a continuation.
            self.begins = true;
        }
        self.file = sources
            .perf_map_file(&self.place, budget)
            .map(|file| (file, Format::Text(MapText::default())));
        if self.file.is_none() {
            self.look = now + self.wait;
            self.wait = (self.wait * 2).min(MAX_WAIT);
        }
    }

    /// Adds that the process's lines no longer count: another one may have its id.
    fn end(&self, blocks: &mut Vec<GeneratedCode>) {
        let now = monotonic_ns();
        if self.has_lines {
            blocks.push(GeneratedCode {
                info: GeneratedCodeInfo {
                    pid: self.pid,
                    begins: true,
                    since: now,
                    until: now,
                },
                lines: String::new(),
            });
        }
    }
}

/// What is read of a file while it grows to each of `lengths`, for fuzz targets: whether it begins again, and lines.
#[cfg(feature = "testing")]
pub fn read_while_growing(is_dump: bool, file: &[u8], lengths: &[usize]) -> Vec<(bool, String)> {
    let mut format = match is_dump {
        true => Format::Dump(Box::default()),
        false => Format::Text(MapText::default()),
    };
    let parts = lengths.iter().filter_map(|length| file.get(..*length));
    let read = parts.filter_map(|part| format.read(&part));
    read.map(|new| (new.begins, new.lines)).collect()
}

/// Whether a file with this path is called as jitdump files are.
fn is_jit_dump(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let number = name
        .strip_prefix("jit-")
        .and_then(|rest| rest.strip_suffix(".dump"));
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of which only the length can be read.
    struct Unreadable(u64);

    impl GrowingFile for Unreadable {
        fn read(&self, _begin: u64, limit: u64) -> Option<(Vec<u8>, u64)> {
            (limit == 0).then(|| (Vec::new(), self.0))
        }
    }

    fn process() -> Process {
        let mut process = Process::new(7, PerfMapPlace::default(), None, 0);
        process.file = Some((FileIdentity::default(), Format::Text(MapText::default())));
        process
    }

    /// What a process reads of `file`: whether each block begins the names again, and its lines.
    fn read(process: &mut Process, file: &dyn GrowingFile) -> Vec<(bool, String)> {
        let (mut budget, mut blocks) = (MAX_ROUND, Vec::new());
        process.read_file(file, &mut budget, &mut blocks);
        let block = |code: GeneratedCode| (code.info.begins, code.lines);
        blocks.into_iter().map(block).collect()
    }

    /// They may be of code at the same addresses.
    #[test]
    fn names_end_where_later_lines_cannot_be_read() {
        let mut process = process();
        let lines = |begins, lines: &str| vec![(begins, lines.to_owned())];
        let first = b"10 1 dye\n";
        assert_eq!(read(&mut process, &&first[..]), lines(true, "10 1 dye\n"));
        // Nothing was added, or it may be readable soon.
        assert!(read(&mut process, &Unreadable(9)).is_empty());
        assert_eq!(process.unread, None);
        assert!(read(&mut process, &Unreadable(10)).is_empty());
        process.unread = process
            .unread
            .and_then(|since| since.checked_sub(MAX_UNREAD));
        assert_eq!(read(&mut process, &Unreadable(10)), lines(true, ""));
        process.file = self::process().file;
        assert!(read(&mut process, &Unreadable(10)).is_empty());
        let all = b"10 1 dye\n10 1 weave\n";
        let again = lines(true, "10 1 dye\n10 1 weave\n");
        assert_eq!(read(&mut process, &&all[..]), again);
    }

    #[test]
    fn names_end_with_too_many_lines() {
        let file = b"10 1 dye\n".repeat(MAX_LINES / 9 + 1);
        let mut process = process();
        let mut length = 0;
        while !process.is_over {
            let read = read(&mut process, &&file[..]);
            length += read.iter().map(|(_, lines)| lines.len()).sum::<usize>();
            let last = read.last().unwrap();
            assert_eq!(*last == (true, String::new()), process.is_over);
        }
        assert!(
            length <= MAX_LINES && length + (1 << 20) > MAX_LINES,
            "{length}"
        );
    }
}
