//! The structures of a kernel out of its debug information (DWARF 5, sections 5.7 and 7.5), as BTF: one form for all that asks for offsets.
//!
//! Only what introspection asks for is kept: [`NAMES`]. Debug information has each structure once for each source file that uses it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use gimli::{
    Abbreviations, Attribute, AttributeValue, DebugAbbrev, DebugInfo, DwAt, DwTag, EndianSlice,
    LittleEndian, UnitHeader, UnitOffset, constants as dw,
};

use super::elf::Vmlinux;

/// The structures and enumerations that introspection asks for.
const NAMES: [&str; 42] = [
    "address_space",
    "cgroup",
    "cgroup_subsys_id",
    "cgroup_subsys_state",
    "cred",
    "css_set",
    "dentry",
    "file",
    "fs_struct",
    "ftrace_ret_stack",
    "inode",
    "kernfs_node",
    "latch_tree_root",
    "maple_arange_64",
    "maple_range_64",
    "mm_struct",
    "mod_kallsyms",
    "mod_mem_type",
    "mod_tree_root",
    "module",
    "module_layout",
    "module_memory",
    "module_state",
    "mount",
    "mutex",
    "page",
    "pageflags",
    "pcpu_hot",
    "pid",
    "rethook_node",
    "return_instance",
    "rw_semaphore",
    "signal_struct",
    "super_block",
    "system_states",
    "task_struct",
    "thread_info",
    "upid",
    "uprobe_task",
    "vfsmount",
    "vm_area_struct",
    "xa_node",
];
/// Different structures of one name that are kept.
const MAX_VARIANTS: usize = 8;
/// Maximum number of source files. A kernel with all drivers built in has some 30,000.
const MAX_UNITS: usize = 1 << 16;
/// Maximum number of bytes of a source file's abbreviations. Real ones have some KiB.
const MAX_ABBREVIATIONS: usize = 64 << 10;
/// Maximum number of structures within structures.
const MAX_DEPTH: usize = 8;
/// Maximum number of members of all structures together. Those of real kernels have some thousand.
const MAX_MEMBERS: usize = 1 << 18;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Unit<'a> = UnitHeader<Slice<'a>>;

/// BTF with the structures in `file`'s debug information. `None` if it has none of them.
pub fn to_btf(file: &Vmlinux<'_>) -> Option<Vec<u8>> {
    let [info, abbreviations] =
        [&b".debug_info"[..], b".debug_abbrev"].map(|name| file.unpacked_section(name));
    let strings = file.unpacked_section(b".debug_str");
    convert(
        &info?,
        &abbreviations?,
        &strings.unwrap_or(Cow::Borrowed(&[])),
    )
}

fn convert(info: &[u8], abbreviations: &[u8], strings: &[u8]) -> Option<Vec<u8>> {
    let mut converter = Converter {
        strings,
        btf: Writer::new(),
        kept: BTreeMap::new(),
        members: MAX_MEMBERS,
    };
    let info = DebugInfo::new(info, LittleEndian);
    let mut units = info.units();
    for _ in 0..MAX_UNITS {
        // What follows damage isn't known.
        let Ok(Some(unit)) = units.next() else { break };
        let start = unit.debug_abbrev_offset().0;
        let end = abbreviations
            .len()
            .min(start.saturating_add(MAX_ABBREVIATIONS));
        let table = DebugAbbrev::new(abbreviations.get(..end)?, LittleEndian);
        let Ok(table) = unit.abbreviations(&table) else {
            continue;
        };
        let source = Source {
            unit: &unit,
            table: &table,
        };
        if converter.add(&source).is_none() && converter.members == 0 {
            return None;
        }
    }
    let has_any = !converter.kept.is_empty();
    has_any.then(|| converter.btf.section())?
}

/// A source file's debug information.
struct Source<'s, 'a> {
    unit: &'s Unit<'a>,
    table: &'s Abbreviations,
}

/// A structure, union or enumeration.
struct Definition {
    tag: DwTag,
    size: u32,
    members: Vec<Member>,
}

/// A member, or an enumerator.
struct Member {
    name: u32,
    /// Its place in bits, or the enumerator's value.
    value: u64,
    /// The width of a bit field; 0 for other members.
    width: u64,
    kind: Option<UnitOffset>,
}

struct Converter<'a> {
    strings: &'a [u8],
    btf: Writer,
    /// The sizes of what was kept, by name.
    kept: BTreeMap<&'static str, Vec<u32>>,
    /// How many members may still be added.
    members: usize,
}

impl<'a> Converter<'a> {
    /// Adds what is asked for of a source file's structures. `None` if it is damaged, or there are too many.
    fn add(&mut self, source: &Source<'_, 'a>) -> Option<()> {
        let mut entries = source.unit.entries_raw(source.table, None).ok()?;
        let mut attributes = Vec::new();
        let mut known = HashMap::new();
        while !entries.is_empty() {
            let (offset, depth) = (entries.next_offset(), entries.next_depth());
            let Some(entry) = entries.read_abbreviation().ok()? else {
                continue;
            };
            let is_outer = depth == 1 && (is_composite(entry.tag()) || is_enumeration(entry.tag()));
            if !is_outer {
                entries.skip_attributes(entry.attributes()).ok()?;
                continue;
            }
            entries
                .read_attributes(entry.attributes(), &mut attributes)
                .ok()?;
            let name = self.name(&attributes).unwrap_or_default();
            let Some(name) = NAMES.iter().find(|known| known.as_bytes() == name) else {
                continue;
            };
            let Some(size) = number(&attributes, dw::DW_AT_byte_size) else {
                // A declaration.
                continue;
            };
            let sizes = self.kept.entry(name).or_default();
            let size = u32::try_from(size).ok()?;
            if sizes.contains(&size) || sizes.len() >= MAX_VARIANTS {
                continue;
            }
            sizes.push(size);
            self.define(source, offset, &mut known, MAX_DEPTH)?;
        }
        Some(())
    }

    /// Adds the structure or enumeration at `offset`, after those that it contains. The number of its type.
    fn define(
        &mut self,
        source: &Source<'_, 'a>,
        offset: UnitOffset,
        known: &mut HashMap<UnitOffset, u32>,
        depth: usize,
    ) -> Option<u32> {
        if let Some(number) = known.get(&offset) {
            return Some(*number);
        }
        let (name, definition) = self.read(source, offset)?;
        if is_enumeration(definition.tag) {
            return Some(self.btf.enumeration(name, &definition));
        }
        let depth = depth.checked_sub(1)?;
        let mut kinds = Vec::with_capacity(definition.members.len());
        for member in &definition.members {
            let inner = member.kind.and_then(|kind| self.composite(source, kind));
            let kind = inner.and_then(|inner| self.define(source, inner, known, depth));
            kinds.push(kind.unwrap_or(0));
        }
        let number = self.btf.composite(name, &definition, &kinds);
        known.insert(offset, number);
        Some(number)
    }

    /// The structure or union that the type at `offset` is, or stands for.
    fn composite(&self, source: &Source<'_, 'a>, mut offset: UnitOffset) -> Option<UnitOffset> {
        let mut attributes = Vec::new();
        for _ in 0..MAX_DEPTH {
            let mut entries = source.unit.entries_raw(source.table, Some(offset)).ok()?;
            let entry = entries.read_abbreviation().ok()??;
            if is_composite(entry.tag()) {
                return Some(offset);
            }
            let stands = matches!(
                entry.tag(),
                dw::DW_TAG_typedef
                    | dw::DW_TAG_const_type
                    | dw::DW_TAG_volatile_type
                    | dw::DW_TAG_restrict_type
                    | dw::DW_TAG_atomic_type
            );
            if !stands {
                return None;
            }
            entries
                .read_attributes(entry.attributes(), &mut attributes)
                .ok()?;
            offset = reference(&attributes)?;
        }
        None
    }

    /// Reads the structure or enumeration at `offset`: its name in the strings, and what it has.
    fn read(&mut self, source: &Source<'_, 'a>, offset: UnitOffset) -> Option<(u32, Definition)> {
        let mut entries = source.unit.entries_raw(source.table, Some(offset)).ok()?;
        let mut attributes = Vec::new();
        let entry = entries.read_abbreviation().ok()??;
        entries
            .read_attributes(entry.attributes(), &mut attributes)
            .ok()?;
        let name = self.name(&attributes).unwrap_or_default();
        let name = self.btf.string(name);
        let size = number(&attributes, dw::DW_AT_byte_size)?;
        let mut definition = Definition {
            tag: entry.tag(),
            size: u32::try_from(size).ok()?,
            members: Vec::new(),
        };
        if !entry.has_children() {
            return Some((name, definition));
        }
        while entries.next_depth() > 0 {
            let depth = entries.next_depth();
            let Some(entry) = entries.read_abbreviation().ok()? else {
                continue;
            };
            entries
                .read_attributes(entry.attributes(), &mut attributes)
                .ok()?;
            if depth != 1 {
                continue;
            }
            let found = match entry.tag() {
                dw::DW_TAG_member => place(&attributes),
                dw::DW_TAG_enumerator => {
                    number(&attributes, dw::DW_AT_const_value).map(|value| (value, 0))
                }
                _ => None,
            };
            let Some((value, width)) = found else {
                continue;
            };
            self.members = self.members.checked_sub(1)?;
            let name = self.name(&attributes).unwrap_or_default();
            definition.members.push(Member {
                name: self.btf.string(name),
                value,
                width,
                kind: reference(&attributes),
            });
        }
        Some((name, definition))
    }

    fn name(&self, attributes: &[Attribute<Slice<'a>>]) -> Option<&'a [u8]> {
        match value(attributes, dw::DW_AT_name)? {
            AttributeValue::String(name) => Some(name.slice()),
            AttributeValue::DebugStrRef(at) => {
                let name = self.strings.get(at.0..)?;
                name.get(..memchr::memchr(0, name)?)
            }
            _ => None,
        }
    }
}

fn is_composite(tag: DwTag) -> bool {
    matches!(tag, dw::DW_TAG_structure_type | dw::DW_TAG_union_type)
}

fn is_enumeration(tag: DwTag) -> bool {
    tag == dw::DW_TAG_enumeration_type
}

fn value<'a>(attributes: &[Attribute<Slice<'a>>], name: DwAt) -> Option<AttributeValue<Slice<'a>>> {
    let mut attributes = attributes.iter();
    let found = attributes.find(|attribute| attribute.name() == name)?;
    Some(found.value())
}

fn number(attributes: &[Attribute<Slice<'_>>], name: DwAt) -> Option<u64> {
    value(attributes, name)?.udata_value()
}

/// The type of a member.
fn reference(attributes: &[Attribute<Slice<'_>>]) -> Option<UnitOffset> {
    match value(attributes, dw::DW_AT_type)? {
        AttributeValue::UnitRef(offset) => Some(offset),
        _ => None,
    }
}

/// The place of a member in bits, and the width of a bit field, 0 for other members. Those of unions may have no place (DWARF 5, section 5.7.6).
fn place(attributes: &[Attribute<Slice<'_>>]) -> Option<(u64, u64)> {
    let start = || match value(attributes, dw::DW_AT_data_member_location) {
        Some(_) => number(attributes, dw::DW_AT_data_member_location)?.checked_mul(8),
        None => Some(0),
    };
    let Some(width) = number(attributes, dw::DW_AT_bit_size) else {
        return Some((start()?, 0));
    };
    let bits = number(attributes, dw::DW_AT_data_bit_offset).or_else(|| {
        // DWARF 4, section 5.5.6: from the most significant bit of the storage unit.
        let unit = number(attributes, dw::DW_AT_byte_size)?.checked_mul(8)?;
        let offset = number(attributes, dw::DW_AT_bit_offset)?;
        start()?.checked_add(unit.checked_sub(offset.checked_add(width)?)?)
    })?;
    Some((bits, width))
}

/// Writes BTF (`Documentation/bpf/btf.rst`).
struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Writer {
    fn new() -> Self {
        Self {
            types: Vec::new(),
            strings: vec![0],
            count: 0,
        }
    }

    /// Adds a string: its place. The empty string is the first one.
    fn string(&mut self, string: &[u8]) -> u32 {
        let place = u32::try_from(self.strings.len()).unwrap_or(0);
        if string.is_empty() {
            return 0;
        }
        self.strings.extend_from_slice(string);
        self.strings.push(0);
        place
    }

    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.types.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Adds a type's first words, and counts it: its number.
    fn begin(&mut self, name: u32, kind: u32, count: usize, size: u32) -> u32 {
        let count = u32::try_from(count).unwrap_or(0);
        self.words(&[name, kind << 24 | count, size]);
        self.count += 1;
        self.count
    }

    /// Adds a structure whose members have types of these numbers. All have places with the widths of bit fields (`kind_flag`).
    fn composite(&mut self, name: u32, definition: &Definition, kinds: &[u32]) -> u32 {
        const WITH_WIDTHS: u32 = 1 << 7;
        /// Members whose places fit, and no more than can be counted.
        const MAX_PLACE: u64 = 1 << 24;
        let kind = match definition.tag {
            dw::DW_TAG_union_type => super::btf::KIND_UNION,
            _ => super::btf::KIND_STRUCT,
        };
        let members = definition.members.iter().zip(kinds);
        let members = members.filter(|(member, _)| member.value < MAX_PLACE && member.width < 256);
        let members: Vec<_> = members.take(usize::from(u16::MAX)).collect();
        let number = self.begin(name, WITH_WIDTHS | kind, members.len(), definition.size);
        for (member, kind) in members {
            let place = member.width << 24 | member.value;
            self.words(&[member.name, *kind, u32::try_from(place).unwrap_or(0)]);
        }
        number
    }

    fn enumeration(&mut self, name: u32, definition: &Definition) -> u32 {
        let values = definition.members.iter();
        let values = values.filter_map(|one| Some((one.name, u32::try_from(one.value).ok()?)));
        let values: Vec<_> = values.take(usize::from(u16::MAX)).collect();
        let number = self.begin(name, super::btf::KIND_ENUM, values.len(), definition.size);
        for (name, value) in values {
            self.words(&[name, value]);
        }
        number
    }

    fn section(self) -> Option<Vec<u8>> {
        super::btf::section(&[&self.types], &[&self.strings])
    }
}

#[cfg(test)]
#[path = "dwarf_tests.rs"]
mod tests;
