//! Finds code in the memory of a process: a function by its name, a file, a whole program.

use kvmprof_recording::file::{Mapping, Segment};

use super::resolver::is_nameless;
use super::{MappingSet, Resolver, USER, demangle, module_name};
use crate::text::visible;

/// Bytes of a page of x86.
const PAGE: u64 = 4096;

/// A stretch of code of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its first address.
    pub begin: u64,
    /// The first address after it.
    pub end: u64,
    /// The path of its file in the guest; `[user]` for the image of a guest without mappings.
    pub file: String,
}

impl Code {
    /// Its file's path, with characters that can't be shown replaced: guests choose paths.
    pub fn shown_file(&self) -> String {
        visible(&self.file)
    }

    /// Whether `file` is its file's path, or the last component of that.
    pub fn is_of(&self, file: &str) -> bool {
        self.file == file || module_name(&self.file) == file
    }

    /// The memory from the file's begin to its end, including gaps between its mappings.
    fn join(&mut self, mapping: &Mapping) {
        self.begin = self.begin.min(mapping.begin);
        self.end = self.end.max(mapping.end);
    }
}

impl Resolver {
    /// The executable files in memory with `mappings`, each from its first to its last mapping, by their addresses. The
    /// program that a Linux process executes is the first one: the kernel places libraries above it. A guest without
    /// mappings has one file, its image.
    pub fn files_in(&self, mappings: MappingSet) -> Vec<Code> {
        if mappings == mappings.kernel_alone() {
            let span = self.tables().kernel.span();
            return span
                .map(|(begin, end)| image(begin, end))
                .into_iter()
                .collect();
        }
        let mut files: Vec<Code> = Vec::new();
        for mapping in self.tables().spaces.mappings(mappings) {
            if is_nameless(mapping) {
                continue;
            }
            match files.iter_mut().find(|code| code.file == mapping.file) {
                Some(code) => code.join(mapping),
                None => files.push(Code {
                    begin: mapping.begin,
                    end: mapping.end,
                    file: mapping.file.clone(),
                }),
            }
        }
        files
    }

    /// The functions called `name`, mangled or as in the source, in memory with `mappings`, by their addresses.
    pub fn functions_called(&self, mappings: MappingSet, name: &str) -> Vec<Code> {
        let is_wanted = |found: &str| found == name || demangle(found) == name;
        if mappings == mappings.kernel_alone() {
            let found = self.tables().kernel.wanted(is_wanted);
            return found
                .into_iter()
                .map(|(begin, end)| image(begin, end))
                .collect();
        }
        let mut found = Vec::new();
        for mapping in self.tables().spaces.mappings(mappings) {
            if is_nameless(mapping) {
                continue;
            }
            let file = self.file(mapping);
            for (begin, length) in file.wanted(self.tables().file(mapping), is_wanted) {
                let begin = mapped_address(mapping, &file.segments, begin);
                let end = begin.map(|begin| begin.saturating_add(length.max(1)));
                found.extend(begin.zip(end).map(|(begin, end)| Code {
                    begin,
                    end: end.min(mapping.end),
                    file: mapping.file.clone(),
                }));
            }
        }
        found
    }

    /// The address in its file of `address` in memory with `mappings`; the file's own symbols have such addresses. Outside
    /// of files it is the same; `None` if the file's segments aren't known.
    pub fn linked_address(&self, mappings: MappingSet, address: u64) -> Option<u64> {
        let Some(mapping) = self.tables().spaces.find(mappings, address) else {
            return Some(address);
        };
        if is_nameless(mapping) {
            return Some(address);
        }
        let byte = (address - mapping.begin).wrapping_add(mapping.offset);
        let file = self.file(mapping);
        let mut segments = file.segments.iter();
        // Whole pages are mapped, also the bytes before and after the segment.
        let segment = segments.find(|segment| {
            let begin = segment.offset - segment.offset % PAGE;
            let end = segment.offset.saturating_add(segment.length);
            (begin..end.checked_next_multiple_of(PAGE).unwrap_or(end)).contains(&byte)
        })?;
        Some(
            byte.wrapping_sub(segment.offset)
                .wrapping_add(segment.address),
        )
    }
}

/// Code of a guest without mappings.
fn image(begin: u64, end: u64) -> Code {
    Code {
        begin,
        end,
        file: USER.to_owned(),
    }
}

/// The address in memory of `address` of a file with `segments`; `None` if `mapping` doesn't have it.
fn mapped_address(mapping: &Mapping, segments: &[Segment], address: u64) -> Option<u64> {
    let mut segments = segments.iter();
    let segment = segments.find(|segment| address.wrapping_sub(segment.address) < segment.length);
    let byte = segment.map_or(address, |segment| {
        (address - segment.address).wrapping_add(segment.offset)
    });
    let distance = byte.checked_sub(mapping.offset)?;
    (distance < mapping.end - mapping.begin).then(|| mapping.begin + distance)
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::file::{Binary, BinaryInfo, Mapping, ProcessMappings};

    use super::*;
    use crate::symbolize::file_address;

    const SPACE: u64 = 0x2000;

    fn mapping(begin: u64, length: u64, offset: u64, file: &str, binary: u32) -> Mapping {
        Mapping {
            begin,
            end: begin + length,
            offset,
            file: file.to_owned(),
            binary: Some(binary),
        }
    }

    /// A file with segments of these offsets, addresses and lengths.
    fn binary(id: u32, segments: &[(u64, u64, u64)], functions: &str) -> Binary {
        let segment = |(offset, address, length)| Segment {
            offset,
            address,
            length,
        };
        Binary {
            info: BinaryInfo {
                id,
                segments: segments.iter().copied().map(segment).collect(),
                ..BinaryInfo::default()
            },
            functions: functions.to_owned(),
        }
    }

    /// Two files, of which one is mapped in two pieces.
    fn resolver() -> (Resolver, MappingSet) {
        let mut resolver = Resolver::default();
        resolver.add_mappings(&ProcessMappings {
            address_space: SPACE,
            pid: 7,
            mappings: vec![
                mapping(0x7000_0000, 0x2000, 0, "/lib/libc.so", 2),
                mapping(0x5000_3000, 0x1000, 0x3000, "/bin/weaver", 1),
                mapping(0x5000_1000, 0x1000, 0x1000, "/bin/weaver", 1),
                Mapping {
                    binary: None,
                    ..mapping(0x4000_0000, 0x1000, 0, "[anon]", 0)
                },
            ],
            ..ProcessMappings::default()
        });
        let weaver = "401000 20 weave\n401020 20 _ZN6Weaver4spinEv\n401040 8 x\n403f00 800 card\n";
        let segments = [(0x1000, 0x40_1000, 0x1000), (0x3000, 0x40_3000, 0x1000)];
        resolver.add_file(binary(1, &segments, weaver));
        resolver.add_file(binary(2, &[(0, 0, 0x1000)], "100 40 weave\n"));
        let set = resolver.tables().spaces.at(SPACE, 7, u64::MAX);
        (resolver, set)
    }

    fn found(code: &[Code]) -> Vec<(u64, u64, &str)> {
        let found = code.iter();
        found
            .map(|code| (code.begin, code.end, &*code.file))
            .collect()
    }

    #[test]
    fn functions_are_found_where_they_are_mapped() {
        let (resolver, set) = resolver();
        let called = |name| resolver.functions_called(set, name);
        let weaver = |begin, end| (begin, end, "/bin/weaver");
        let libc = (0x7000_0100, 0x7000_0140, "/lib/libc.so");
        let spin = weaver(0x5000_1020, 0x5000_1040);
        for (name, expected) in [
            ("weave", &[weaver(0x5000_1000, 0x5000_1020), libc][..]),
            ("Weaver::spin()", &[spin]),
            ("_ZN6Weaver4spinEv", &[spin]),
            // It can't extend beyond what is mapped.
            ("card", &[weaver(0x5000_3f00, 0x5000_4000)]),
            ("dye", &[]),
        ] {
            assert_eq!(found(&called(name)), expected, "{name}");
        }
    }

    #[test]
    fn symbols_of_files_go_by_the_files_own_addresses() {
        let (mut resolver, set) = resolver();
        let linked = |resolver: &Resolver, address| resolver.linked_address(set, address);
        assert_eq!(linked(&resolver, 0x5000_1010), Some(0x40_1010));
        assert_eq!(linked(&resolver, 0x7000_0100), Some(0x100));
        // Neither mapped, nor in a file.
        assert_eq!(linked(&resolver, 0x1000), Some(0x1000));
        assert_eq!(linked(&resolver, 0x4000_0010), Some(0x4000_0010));
        // The segment begins in the middle of a page, and is mapped from that page's start.
        resolver.add_file(binary(2, &[(0x5f0, 0x15f0, 0x100)], ""));
        assert_eq!(linked(&resolver, 0x7000_0000), Some(0x1000));
        assert_eq!(linked(&resolver, 0x7000_0600), Some(0x1600));
        assert_eq!(linked(&resolver, 0x7000_1000), None);
    }

    #[test]
    fn files_reach_from_their_first_to_their_last_mapping() {
        let (resolver, set) = resolver();
        let files = resolver.files_in(set);
        let is_of = ["weaver", "/bin/weaver", "/bin"].map(|name| files[0].is_of(name));
        assert_eq!(is_of, [true, true, false]);
        let weaver = (0x5000_1000, 0x5000_4000, "/bin/weaver");
        let libc = (0x7000_0000, 0x7000_2000, "/lib/libc.so");
        assert_eq!(found(&files), [weaver, libc]);
    }

    #[test]
    fn a_guest_without_mappings_has_its_image() {
        let mut resolver = Resolver::default();
        let none = MappingSet::default();
        assert_eq!(resolver.files_in(none), []);
        resolver.add_symbols("600000 t weave\n600050 t turn_wheel\n");
        let called = |name| resolver.functions_called(none, name);
        assert_eq!(found(&called("weave")), [(0x60_0000, 0x60_0050, USER)]);
        // kallsyms has no lengths.
        let end = 0x61_0050;
        assert_eq!(found(&called("turn_wheel")), [(0x60_0050, end, USER)]);
        assert_eq!(found(&resolver.files_in(none)), [(0x60_0000, end, USER)]);
    }

    #[test]
    fn file_and_memory_addresses_convert_to_each_other() {
        let mapping = mapping(0x5000_1000, 0x2000, 0x1000, "a", 1);
        let segments = [Segment {
            offset: 0x1100,
            address: 0x40_2100,
            length: 0x800,
        }];
        for address in [0x5000_1100, 0x5000_18ff, 0x5000_1900] {
            let in_file = file_address(&mapping, &segments, address);
            assert_eq!(mapped_address(&mapping, &segments, in_file), Some(address));
        }
        assert_eq!(mapped_address(&mapping, &segments, 0xfff), None);
        assert_eq!(mapped_address(&mapping, &segments, 0x3000), None);
    }
}
