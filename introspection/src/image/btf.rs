//! A bounded reader of the kernel's type information (BTF, `Documentation/bpf/btf.rst`).
//!
//! It reads the offsets of structure members and the values of enumerators, in one pass and without copies, because a
//! kernel has some hundred thousand types.

use crate::IntrospectionError;
use crate::bytes::{index_at, u16_at, u32_at};

/// The magic number at the start of a section.
pub const MAGIC: u16 = 0xeb9f;
/// The version of the format, and the bytes of its header (`struct btf_header`).
const VERSION: u8 = 1;
const HEADER_LENGTH: u32 = 24;
/// Bytes of `struct btf_type`.
const TYPE_LENGTH: usize = 12;
/// Maximum number of types.
const MAX_TYPES: usize = 4 << 20;
/// Maximum nesting of anonymous structures.
const MAX_DEPTH: u32 = 8;
/// Maximum number of members that one lookup visits.
const MAX_MEMBERS: usize = 1 << 16;

const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
/// The kind of a `btf_type` that is a structure.
pub const KIND_STRUCT: u32 = 4;
/// The kind of a `btf_type` that is a union.
pub const KIND_UNION: u32 = 5;
/// The kind of a `btf_type` that is an enumeration of 32-bit numbers.
pub const KIND_ENUM: u32 = 6;
/// The kind of a `btf_type` that gives another type a name.
pub const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;
const KIND_LAST: u32 = KIND_ENUM64;

/// A kernel's type information.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// The offset of each type within `types`; type 1 is first, type 0 is `void`.
    starts: Vec<u32>,
}

/// Joins the split BTF of a module (`/sys/kernel/btf/NAME`) with the BTF of the kernel that it extends
/// (`/sys/kernel/btf/vmlinux`): its type numbers and string offsets continue those of the kernel
/// (`Documentation/bpf/btf.rst`). The result is one section with the types of both.
///
/// # Errors
/// A header points outside its section, or the result is too long for its header.
pub fn join(base: &[u8], split: &[u8]) -> Result<Vec<u8>, IntrospectionError> {
    let (base_types, base_strings) = parts(base)?;
    let (split_types, split_strings) = parts(split)?;
    let joined = section(&[base_types, split_types], &[base_strings, split_strings]);
    joined.ok_or(IntrospectionError::Btf("it is too long"))
}

/// A section of these types and strings. `None` if it is too long for its header.
pub(super) fn section(types: &[&[u8]], strings: &[&[u8]]) -> Option<Vec<u8>> {
    let length =
        |parts: &[&[u8]]| u32::try_from(parts.iter().map(|part| part.len()).sum::<usize>()).ok();
    let (types_length, strings_length) = (length(types)?, length(strings)?);
    let mut section = MAGIC.to_le_bytes().to_vec();
    section.extend_from_slice(&[VERSION, 0]);
    for word in [HEADER_LENGTH, 0, types_length, types_length, strings_length] {
        section.extend_from_slice(&word.to_le_bytes());
    }
    for part in types.iter().chain(strings) {
        section.extend_from_slice(part);
    }
    Some(section)
}

/// The types and the strings of a section.
fn parts(section: &[u8]) -> Result<(&[u8], &[u8]), IntrospectionError> {
    if u16_at(section, 0) != Some(MAGIC) {
        return Err(IntrospectionError::Btf(
            "it doesn't start with its magic number",
        ));
    }
    let part = |offset_field: usize| {
        let header = index_at(section, 4)?;
        let start = header.checked_add(index_at(section, offset_field)?)?;
        let length = index_at(section, offset_field + 4)?;
        section.get(start..start.checked_add(length)?)
    };
    let cut = IntrospectionError::Btf("its header points outside the section");
    part(8).zip(part(16)).ok_or(cut)
}

#[derive(Clone, Copy, Debug)]
struct Type {
    name: usize,
    kind: u32,
    /// Number of members, enumerators, or parameters.
    count: usize,
    /// Whether member offsets also hold the widths of bit fields.
    kind_flag: bool,
    /// The size in bytes, or the number of the type that this one refers to.
    size_or_type: usize,
    /// The offset of the data after `struct btf_type`, within the types.
    tail: usize,
}

impl<'a> Btf<'a> {
    /// Reads the contents of a `.BTF` section.
    ///
    /// # Errors
    /// The header or a type is malformed.
    pub fn parse(section: &'a [u8]) -> Result<Self, IntrospectionError> {
        let (types, strings) = parts(section)?;
        let starts = starts(types)?;
        Ok(Self {
            types,
            strings,
            starts,
        })
    }

    /// The offset of `member` in the structure or union `structure`, in bytes. Members of its anonymous structures and
    /// unions count as its own. `None` if there is no such member, or it is a bit field.
    pub fn offset_of(&self, structure: &str, member: &str) -> Option<u64> {
        self.structures(structure).offset_of(member)
    }

    /// The structures and unions called `name`, for several lookups, because finding them visits all types.
    pub fn structures(&self, name: &str) -> Structures<'_, 'a> {
        let is_meant = |candidate: &Type| {
            matches!(candidate.kind, KIND_STRUCT | KIND_UNION)
                && self.is_named(candidate.name, name)
        };
        Structures {
            btf: self,
            candidates: self.all().filter(is_meant).collect(),
        }
    }

    /// The size of the structure `structure`, in bytes.
    pub fn size_of(&self, structure: &str) -> Option<u64> {
        self.all()
            .find(|candidate| {
                candidate.kind == KIND_STRUCT && self.is_named(candidate.name, structure)
            })
            .and_then(|found| u64::try_from(found.size_or_type).ok())
    }

    /// The value of `enumerator` in the enumeration called `enumeration`.
    pub fn enumerator(&self, enumeration: &str, enumerator: &str) -> Option<u32> {
        self.all()
            .filter(|candidate| {
                candidate.kind == KIND_ENUM && self.is_named(candidate.name, enumeration)
            })
            .find_map(|candidate| {
                (0..candidate.count).find_map(|index| {
                    let entry = candidate.tail + index * 8;
                    self.is_named(index_at(self.types, entry)?, enumerator)
                        .then(|| u32_at(self.types, entry + 4))
                        .flatten()
                })
            })
    }

    fn all(&self) -> impl Iterator<Item = Type> {
        self.starts
            .iter()
            .filter_map(|start| type_at(self.types, usize::try_from(*start).ok()?))
    }

    fn by_id(&self, id: usize) -> Option<Type> {
        let start = *self.starts.get(id.checked_sub(1)?)?;
        type_at(self.types, usize::try_from(start).ok()?)
    }

    fn is_named(&self, name: usize, expected: &str) -> bool {
        let expected = expected.as_bytes();
        self.strings
            .get(name..)
            .and_then(|string| string.strip_prefix(expected))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Follows a type's names and qualifiers to a structure or union.
    fn resolve(&self, mut id: usize) -> Option<Type> {
        for _ in 0..MAX_DEPTH {
            let this = self.by_id(id)?;
            match this.kind {
                KIND_STRUCT | KIND_UNION => return Some(this),
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = this.size_or_type;
                }
                _ => return None,
            }
        }
        None
    }

    /// The offset of `member` within `structure`, in bits, and its type.
    fn member(
        &self,
        structure: Type,
        member: &str,
        depth: u32,
        budget: &mut usize,
    ) -> Option<(u64, usize)> {
        let depth = depth.checked_sub(1)?;
        for index in 0..structure.count {
            *budget = budget.checked_sub(1)?;
            let entry = structure.tail + index * 12;
            let name = index_at(self.types, entry)?;
            let mut bits = u32_at(self.types, entry + 8)?;
            if structure.kind_flag {
                if bits >> 24 != 0 {
                    continue;
                }
                bits &= 0x00ff_ffff;
            }
            let bits = u64::from(bits);
            if self.is_named(name, member) {
                return Some((bits, index_at(self.types, entry + 4)?));
            }
            if self.strings.get(name) == Some(&0)
                && let Some(inner) = self.by_id(index_at(self.types, entry + 4)?)
                && matches!(inner.kind, KIND_STRUCT | KIND_UNION)
                && let Some((within, id)) = self.member(inner, member, depth, budget)
            {
                return Some((bits + within, id));
            }
        }
        None
    }
}

/// Structures and unions with one name. Several files may have private structures of the same name; the first structure
/// that has the requested member counts.
#[derive(Debug)]
pub struct Structures<'b, 'a> {
    btf: &'b Btf<'a>,
    candidates: Vec<Type>,
}

impl Structures<'_, '_> {
    /// As [`Btf::offset_of`].
    pub fn offset_of(&self, member: &str) -> Option<u64> {
        self.find(member).map(|(offset, _)| offset)
    }

    /// The offset of `inner`, a member of `member`'s type, in bytes from the start of the outer structure.
    pub fn offset_within(&self, member: &str, inner: &str) -> Option<u64> {
        let (offset, id) = self.find(member)?;
        let mut budget = MAX_MEMBERS;
        let structure = self.btf.resolve(id)?;
        let (bits, _) = self.btf.member(structure, inner, MAX_DEPTH, &mut budget)?;
        (bits % 8 == 0).then_some(offset + bits / 8)
    }

    /// The place of `member`, a bit field of one bit, in bits from the structure's start. It has to be a direct member.
    pub fn bit_of(&self, member: &str) -> Option<u64> {
        let types = self.btf.types;
        let with_fields = self.candidates.iter().filter(|found| found.kind_flag);
        let mut entries = with_fields
            .flat_map(|found| (0..found.count).map(move |index| found.tail + index * 12))
            .take(MAX_MEMBERS);
        entries.find_map(|entry| {
            let place = u32_at(types, entry + 8)?;
            let is_it = self.btf.is_named(index_at(types, entry)?, member) && place >> 24 == 1;
            is_it.then_some(u64::from(place & 0x00ff_ffff))
        })
    }

    /// The size of the first structure, in bytes.
    pub fn size(&self) -> Option<u64> {
        u64::try_from(self.candidates.first()?.size_or_type).ok()
    }

    /// The offset of `member`, in bytes, and its type.
    fn find(&self, member: &str) -> Option<(u64, usize)> {
        self.candidates
            .iter()
            .find_map(|candidate| {
                let mut budget = MAX_MEMBERS;
                self.btf.member(*candidate, member, MAX_DEPTH, &mut budget)
            })
            .filter(|(bits, _)| bits % 8 == 0)
            .map(|(bits, id)| (bits / 8, id))
    }
}

/// The offset of each type.
fn starts(types: &[u8]) -> Result<Vec<u32>, IntrospectionError> {
    let mut starts = Vec::with_capacity(types.len() / 40);
    let mut position = 0;
    while position < types.len() {
        let this =
            type_at(types, position).ok_or(IntrospectionError::Btf("a type is cut short"))?;
        if starts.len() >= MAX_TYPES {
            return Err(IntrospectionError::Btf("it has too many types"));
        }
        starts
            .push(u32::try_from(position).map_err(|_| IntrospectionError::Btf("it is too long"))?);
        position = this.tail
            + tail_length(this)
                .ok_or(IntrospectionError::Btf("it has types of an unknown kind"))?;
    }
    Ok(starts)
}

fn type_at(types: &[u8], position: usize) -> Option<Type> {
    let information = u32_at(types, position.checked_add(4)?)?;
    Some(Type {
        name: index_at(types, position)?,
        kind: information >> 24 & 0x1f,
        count: usize::try_from(information & 0xffff).ok()?,
        kind_flag: information >> 31 != 0,
        size_or_type: index_at(types, position + 8)?,
        tail: position + TYPE_LENGTH,
    })
}

/// The number of bytes that follow `struct btf_type`.
fn tail_length(this: Type) -> Option<usize> {
    Some(match this.kind {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => this.count * 12,
        KIND_ENUM | KIND_FUNC_PROTO => this.count * 8,
        1..=KIND_LAST => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_introspection_fixtures::btf::Builder;

    fn sample() -> Vec<u8> {
        let mut builder = Builder::new();
        builder.other(KIND_INT, 0, &[32]);
        builder.other(KIND_ARRAY, 0, &[1, 1, 4]);
        let inner = builder.structure("", &[("current_task", 1, 0), ("preempt_count", 1, 64)]);
        let union = builder.composite(KIND_UNION, false, "", &[("", inner, 0), ("pad", 2, 0)]);
        builder.structure("pcpu_hot", &[("", union, 128)]);
        builder.composite(
            KIND_STRUCT,
            true,
            "task_struct",
            &[("flag", 1, 1 << 24 | 3), ("pid", 1, 320), ("odd", 1, 321)],
        );
        builder.other(KIND_FUNC_PROTO, 2, &[0, 1, 0, 1]);
        builder.other(KIND_DATASEC, 1, &[1, 0, 4]);
        builder.enumeration(
            "system_states",
            &[("SYSTEM_BOOTING", 0), ("SYSTEM_SCHEDULING", 1)],
        );
        builder.structure("recursive", &[("", 10, 0)]);
        builder.section()
    }

    #[test]
    fn finds_members_and_enumerators() {
        let section = sample();
        let btf = Btf::parse(&section).unwrap();
        for (structure, member, offset) in [
            ("task_struct", "pid", Some(40)),
            ("task_struct", "flag", None),
            ("task_struct", "odd", None),
            ("task_struct", "pi", None),
            ("pcpu_hot", "preempt_count", Some(24)),
            ("pcpu_cold", "preempt_count", None),
            // It contains itself.
            ("recursive", "member", None),
        ] {
            let found = btf.offset_of(structure, member);
            assert_eq!(found, offset, "{structure}.{member}");
        }
        let task = btf.structures("task_struct");
        assert_eq!((task.bit_of("flag"), task.bit_of("pid")), (Some(3), None));
        assert_eq!(btf.structures("pcpu_hot").bit_of("current_task"), None);
        for (state, value) in [("SYSTEM_SCHEDULING", Some(1)), ("SYSTEM_HALT", None)] {
            assert_eq!(btf.enumerator("system_states", state), value, "{state}");
        }
        for other in [&b""[..], &[0x9f, 0xeb, 1, 0]] {
            assert!(Btf::parse(other).is_err());
        }
    }

    #[test]
    fn finds_members_of_members_behind_names() {
        let mut builder = Builder::new();
        let context = builder.structure("", &[("lock", 0, 0), ("vdso", 0, 192)]);
        let name = builder.refers(KIND_TYPEDEF, "mm_context_t", context);
        builder.structure("mm_struct", &[("pgd", 0, 64), ("context", name, 256)]);
        let section = builder.section();
        let btf = Btf::parse(&section).unwrap();
        let mm = btf.structures("mm_struct");
        assert_eq!(mm.offset_within("context", "vdso"), Some(32 + 24));
        assert_eq!(mm.offset_within("pgd", "vdso"), None);
        assert_eq!(mm.offset_within("context", "none"), None);
        assert_eq!((mm.offset_of("pgd"), mm.size()), (Some(8), Some(8)));
        assert_eq!(btf.structures("none").size(), None);
    }

    #[test]
    fn type_ids_of_modules_continue_those_of_the_kernel() {
        let mut builder = Builder::new();
        let list = builder.structure("list_head", &[("next", 0, 0), ("prev", 0, 64)]);
        let base = builder.section();
        let mut builder = builder.split();
        // Type 3 is the module's and type 1 the kernel's. The name of each is in its own strings.
        let arch = builder.structure("kvm_arch", &[("vm_type", 0, 64)]);
        builder.structure("kvm", &[("vm_list", list, 128), ("arch", arch, 256)]);
        let joined = join(&base, &builder.section()).unwrap();
        let btf = Btf::parse(&joined).unwrap();
        let kvm = btf.structures("kvm");
        assert_eq!(kvm.offset_within("vm_list", "prev"), Some(16 + 8));
        assert_eq!(kvm.offset_within("arch", "vm_type"), Some(32 + 8));
        assert_eq!(btf.offset_of("list_head", "prev"), Some(8));
        assert!(join(&base, b"").is_err());
        assert!(join(&base[..40], &base).is_err());
    }
}
