//! Functions of code that programs generate at run time: the lines of the files `/tmp/perf-PID.map`
//! (`tools/perf/Documentation/jit-interface.txt` of the Linux sources).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kvmprof_recording::elf::{MAX_NAMES_BYTES, bounded_name};

/// Maximum number of functions of a file.
const MAX_FUNCTIONS: usize = 1 << 20;
/// Maximum number of functions whose code was at one address: of more, the last ones count.
const MAX_AT_ADDRESS: usize = 32;
/// Maximum number of entries of functions by address.
const MAX_ENTRIES: usize = 4 << 20;

/// How many pieces of a file had been written at a moment: at least `written`, at most `begun`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WrittenPieces {
    /// All of these had been written.
    pub written: u32,
    /// Nothing behind these had been.
    pub begun: u32,
}

impl WrittenPieces {
    /// What is known of a file that was read at an unknown time.
    pub const UNKNOWN: Self = Self {
        written: 0,
        begun: u32::MAX,
    };
}

/// The functions of a process's generated code.
///
/// A program uses memory again for another function, and appends a line for it. So the last line that had been written counts. Where it isn't known which
/// lines had been, memory that lines with different names cover has no name.
#[derive(Debug, Default)]
pub struct PerfMap {
    functions: Vec<GeneratedFunction>,
    names: String,
    /// Where the functions at each range of addresses begin in `entries`. They reach to the next range's.
    ranges: Vec<(Range<u64>, usize)>,
    /// Places in `functions`, of each range in the order of the file.
    entries: Vec<u32>,
}

/// A line.
#[derive(Debug)]
struct GeneratedFunction {
    /// Which piece of the file it is in.
    piece: u32,
    /// Its first address, or that of earlier lines of the same name that it continues.
    begin: u64,
    name: Range<usize>,
}

/// A function that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFunction<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its first address.
    pub begin: u64,
    /// Its number in the file.
    pub number: usize,
}

impl PerfMap {
    /// Reads the `pieces` of a file: lines of hexadecimal address, hexadecimal length and name. Other lines are ignored, and so are those of no
    /// length, and a last line of a piece that isn't finished. `None` if there are more functions than are read: any of those could be in the
    /// memory of others.
    pub fn parse<'a>(pieces: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut map = Self::default();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (piece, text) in (0..).zip(pieces) {
            let finished = text.split_inclusive('\n');
            for (range, name) in finished.filter_map(|text| line(text.strip_suffix('\n')?)) {
                let begin = map.names.len();
                if ranges.len() >= MAX_FUNCTIONS || begin + name.len() > MAX_NAMES_BYTES {
                    return None;
                }
                map.names.push_str(name);
                map.functions.push(GeneratedFunction {
                    piece,
                    begin: range.start,
                    name: begin..map.names.len(),
                });
                ranges.push(range);
            }
        }
        map.fill(&ranges)?;
        Some(map)
    }

    /// Finds out which functions each address was of. `None` if that is too much.
    fn fill(&mut self, functions: &[Range<u64>]) -> Option<()> {
        // All begins and ends, in the order of addresses; ends come first.
        let mut changes: Vec<(u64, bool, u32)> = Vec::with_capacity(functions.len() * 2);
        for (number, range) in (0..).zip(functions) {
            changes.extend([(range.start, true, number), (range.end, false, number)]);
        }
        changes.sort_unstable();
        let mut covering: BTreeSet<u32> = BTreeSet::new();
        let mut begins: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
        let mut starts: Vec<(u32, u64)> = Vec::new();
        let mut since = 0;
        for (address, is_begin, number) in changes {
            if since < address && !covering.is_empty() {
                let first = self.entries.len();
                self.ranges.push((since..address, first));
                let newest = covering.iter().rev().take(MAX_AT_ADDRESS);
                self.entries.extend(newest);
                self.entries[first..].reverse();
                (self.entries.len() <= MAX_ENTRIES).then_some(())?;
            }
            since = address;
            let name = &self.names[self.functions[number as usize].name.clone()];
            if is_begin {
                covering.insert(number);
                let found = begins.entry(name).or_insert((0, address));
                found.0 += 1;
                starts.push((number, found.1));
            } else {
                covering.remove(&number);
                if let Some(found) = begins.get_mut(name) {
                    found.0 -= 1;
                    if found.0 == 0 {
                        begins.remove(name);
                    }
                }
            }
        }
        for (number, begin) in starts {
            self.functions[number as usize].begin = begin;
        }
        Some(())
    }

    /// The function at `address` when these pieces of the file had been written.
    pub fn find(&self, address: u64, pieces: WrittenPieces) -> Option<FoundFunction<'_>> {
        let after = (self.ranges).partition_point(|(range, _)| range.start <= address);
        let (range, first) = self.ranges.get(after.checked_sub(1)?)?;
        if !range.contains(&address) {
            return None;
        }
        let end = (self.ranges.get(after)).map_or(self.entries.len(), |(_, end)| *end);
        let entries = self.entries.get(*first..end)?;
        let piece = |entry: &u32| self.functions[*entry as usize].piece;
        let written = entries.partition_point(|entry| piece(entry) < pieces.written);
        let begun = entries.partition_point(|entry| piece(entry) < pieces.begun);
        // Where older ones aren't known, the oldest known one may not have been there yet.
        let is_all = entries.len() < MAX_AT_ADDRESS;
        if written == 0 && !is_all {
            return None;
        }
        let possible = entries.get(written.saturating_sub(1)..begun)?;
        let (last, others) = possible.split_last()?;
        let name = |entry: &u32| self.names.get(self.functions[*entry as usize].name.clone());
        let found = name(last)?;
        let is_only = others.iter().all(|entry| name(entry) == Some(found));
        is_only.then(|| FoundFunction {
            name: found,
            begin: self.functions[*last as usize].begin,
            number: *last as usize,
        })
    }
}

/// The addresses and the name of a line.
fn line(line: &str) -> Option<(Range<u64>, &str)> {
    let mut words = line.splitn(3, ' ');
    let mut number = || {
        let word = words.next()?;
        u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
    };
    let (begin, length) = (number()?, number()?);
    let end = begin.checked_add(length).filter(|end| begin < *end)?;
    Some((begin..end, bounded_name(words.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name and the start of the function at `address`, of a file that was read at an unknown time.
    fn found(map: &PerfMap, address: u64) -> Option<(&str, u64)> {
        let found = map.find(address, WrittenPieces::UNKNOWN);
        found.map(|found| (found.name, found.begin))
    }

    #[test]
    fn names_may_have_spaces() {
        let text = "7f00 20 LazyCompile:~f a.js:1\n0x7f40 8 py::g\nnonsense\n7f60 10 unfin";
        let map = PerfMap::parse([text]).unwrap();
        assert_eq!(found(&map, 0x7f1f), Some(("LazyCompile:~f a.js:1", 0x7f00)));
        assert_eq!(found(&map, 0x7f41), Some(("py::g", 0x7f40)));
        assert_eq!(
            [0x7f30, 0x7f60].map(|address| found(&map, address)),
            [None; 2]
        );
        let many = |count| "7f00 20 f\n".repeat(count);
        assert!(PerfMap::parse([many(MAX_FUNCTIONS).as_str()]).is_some());
        assert!(PerfMap::parse([many(MAX_FUNCTIONS + 1).as_str()]).is_none());
    }

    #[test]
    fn memory_reused_by_two_functions_at_unknown_times_has_no_name() {
        let text = "1000 100 old\n1080 100 new\n1080 100 new\n1300 40 same\n1320 40 same\n\
                    2000 100 outer\n2040 10 inner\n3000 0 empty\nffffffffffffffff 2 beyond\n";
        let map = PerfMap::parse([text]).unwrap();
        for (address, expected) in [
            (0xfff, None),
            (0x107f, Some(("old", 0x1000))),
            (0x1080, None),
            (0x10ff, None),
            (0x1100, Some(("new", 0x1080))),
            (0x1180, None),
            // A repeated line is the same function.
            (0x135f, Some(("same", 0x1300))),
            (0x203f, Some(("outer", 0x2000))),
            (0x2040, None),
            (0x2050, Some(("outer", 0x2000))),
            (0x3000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(found(&map, address), expected, "{address:#x}");
        }
        // One after the other.
        let map = PerfMap::parse(["1010 10 f\n1000 10 f\n"]).unwrap();
        assert_eq!(found(&map, 0x1010), Some(("f", 0x1010)));
        assert_eq!(found(&map, 0x100f), Some(("f", 0x1000)));
    }

    #[test]
    fn memory_has_the_name_that_was_last_written() {
        let pieces = [
            "1000 100 first\n2000 10 a\n2000 10 b\n",
            "1080 40 second\n",
            "",
            "1000 100 third\n3000 10 late\n",
        ];
        let map = PerfMap::parse(pieces).unwrap();
        for (address, written, begun, name) in [
            (0x1080, 0, 0, None),
            (0x1080, 0, 1, Some("first")),
            (0x1080, 1, 1, Some("first")),
            // While the second piece is being written, either may be there.
            (0x1080, 1, 2, None),
            (0x1000, 1, 2, Some("first")),
            (0x1080, 2, 2, Some("second")),
            (0x10c0, 2, 3, Some("first")),
            (0x1080, 3, 4, None),
            (0x1080, 4, 4, Some("third")),
            (0x1080, 7, u32::MAX, Some("third")),
            // In one piece the order counts, once it has been written.
            (0x2000, 1, 1, Some("b")),
            (0x2000, 0, 1, None),
            (0x3000, 1, 2, None),
            (0x3000, 1, 4, Some("late")),
        ] {
            let found = map.find(address, WrittenPieces { written, begun });
            assert_eq!(
                found.map(|found| found.name),
                name,
                "{address:#x} {written} {begun}"
            );
        }
    }

    #[test]
    fn much_reused_memory_costs_no_more() {
        let lines: String = (0..6_000)
            .map(|number| format!("{:x} {:x} f{number}\n", number + 1, 20_000 - 2 * number))
            .collect();
        let map = PerfMap::parse([lines.as_str()]).unwrap();
        assert!(map.entries.len() <= MAX_AT_ADDRESS * 2 * 6_000);
        assert_eq!(found(&map, 7_000), None);
        let all = WrittenPieces {
            written: 1,
            begun: 1,
        };
        assert_eq!(map.find(7_000, all).unwrap().name, "f5999");
        // Which of them was there before isn't known any more.
        assert_eq!(map.find(7_000, WrittenPieces::default()), None);
    }
}
