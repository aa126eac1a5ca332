//! Functions of code that programs generate at run time: the files `/tmp/perf-PID.map`
//! (`tools/perf/Documentation/jit-interface.txt` of the Linux sources).

use std::collections::BTreeMap;
use std::ops::Range;

use kvmprof_recording::elf::{MAX_NAMES_BYTES, bounded_name};

/// Maximum number of functions of a file.
const MAX_FUNCTIONS: usize = 1 << 20;

/// The functions of a process's generated code.
///
/// A program uses memory again for another function, and appends a line for it. No line has a time, so memory that lines with different names
/// cover has no name.
#[derive(Debug, Default)]
pub struct PerfMap {
    /// Where in `stretches` the functions are, by their addresses and without overlaps.
    parts: Vec<(Range<u64>, usize)>,
    /// The start of each stretch of lines of one name, and the place of the name in `names`.
    stretches: Vec<(u64, Range<usize>)>,
    names: String,
}

/// The lines of one name that cover an address.
#[derive(Debug)]
struct CoveringLines {
    lines: usize,
    stretch: usize,
}

impl PerfMap {
    /// Reads `text`: lines of hexadecimal address, hexadecimal length and name. Other lines are ignored, and so are those of no length, and
    /// a last line that the program hasn't finished. `None` if there are more functions than are read: any of those could be in the
    /// memory of others.
    pub fn parse(text: &str) -> Option<Self> {
        let finished = text.split_inclusive('\n');
        let mut lines = finished.filter_map(|text| line(text.strip_suffix('\n')?));
        let functions: Vec<(Range<u64>, &str)> = lines.by_ref().take(MAX_FUNCTIONS).collect();
        let mut map = Self::default();
        (map.fill(&functions) && lines.next().is_none()).then_some(map)
    }

    /// Finds out what each address is covered by. False if there are more names than fit.
    fn fill(&mut self, functions: &[(Range<u64>, &str)]) -> bool {
        // All begins and ends, in the order of addresses; ends come first.
        let mut changes: Vec<(u64, bool, &str)> = functions
            .iter()
            .flat_map(|(range, name)| [(range.start, true, *name), (range.end, false, *name)])
            .collect();
        changes.sort_unstable();
        let mut covering: BTreeMap<&str, CoveringLines> = BTreeMap::new();
        let mut since = 0;
        for (address, is_begin, name) in changes {
            if let (1, Some((_, only))) = (covering.len(), covering.first_key_value())
                && since < address
            {
                self.cover(since..address, only.stretch);
            }
            since = address;
            if !is_begin {
                if let Some(found) = covering.get_mut(name) {
                    found.lines -= 1;
                    if found.lines == 0 {
                        covering.remove(name);
                    }
                }
                continue;
            }
            if let Some(found) = covering.get_mut(name) {
                found.lines += 1;
                continue;
            }
            let begin = self.names.len();
            if begin + name.len() > MAX_NAMES_BYTES {
                return false;
            }
            self.names.push_str(name);
            let stretch = self.stretches.len();
            self.stretches.push((address, begin..self.names.len()));
            covering.insert(name, CoveringLines { lines: 1, stretch });
        }
        true
    }

    /// Adds `range` as a part of `stretch`, behind all others.
    fn cover(&mut self, range: Range<u64>, stretch: usize) {
        if let Some((last, of)) = self.parts.last_mut()
            && *of == stretch
            && last.end == range.start
        {
            last.end = range.end;
        } else {
            self.parts.push((range, stretch));
        }
    }

    /// The function at `address`: its name and its start.
    pub fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = (self.parts).partition_point(|(range, _)| range.start <= address);
        let (range, stretch) = self.parts.get(after.checked_sub(1)?)?;
        let (begin, name) = self.stretches.get(*stretch)?;
        let name = self.names.get(name.clone())?;
        range.contains(&address).then_some((name, *begin))
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

    #[test]
    fn names_may_have_spaces() {
        let text = "7f00 20 LazyCompile:~f a.js:1\n0x7f40 8 py::g\nnonsense\n7f60 10 unfin";
        let map = PerfMap::parse(text).unwrap();
        assert_eq!(map.find(0x7f1f), Some(("LazyCompile:~f a.js:1", 0x7f00)));
        assert_eq!(map.find(0x7f41), Some(("py::g", 0x7f40)));
        assert_eq!(map.find(0x7f30), None);
        assert_eq!(map.find(0x7f60), None);
        assert!(PerfMap::parse(&"7f00 20 f\n".repeat(MAX_FUNCTIONS)).is_some());
        assert!(PerfMap::parse(&"7f00 20 f\n".repeat(MAX_FUNCTIONS + 1)).is_none());
    }

    #[test]
    fn memory_reused_by_two_functions_has_no_name() {
        let text = "1000 100 old\n1080 100 new\n1080 100 new\n1300 40 same\n1320 40 same\n\
                    2000 100 outer\n2040 10 inner\n3000 0 empty\nffffffffffffffff 2 beyond\n";
        let map = PerfMap::parse(text).unwrap();
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
            assert_eq!(map.find(address), expected, "{address:#x}");
        }
        // One after the other.
        let map = PerfMap::parse("1010 10 f\n1000 10 f\n").unwrap();
        assert_eq!(map.find(0x1010), Some(("f", 0x1010)));
        assert_eq!(map.find(0x100f), Some(("f", 0x1000)));
    }
}
