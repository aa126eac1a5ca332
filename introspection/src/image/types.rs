//! The layout of a kernel's structures: from its BTF, or, for a kernel without BTF, from its code.

use std::collections::BTreeMap;

use super::btf::{Btf, Structures};

/// A fact about a kernel that isn't known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// The offset of a member of a structure.
    #[error("{0}.{1}")]
    Member(&'static str, &'static str),
    /// The size of a structure.
    #[error("the size of {0}")]
    Size(&'static str),
    /// The address of a symbol.
    #[error("the address of {0}")]
    Symbol(&'static str),
    /// Structures of another form than those of the kernels that are known.
    #[error("the form of {0}")]
    Form(&'static str),
}

/// What stands for a structure's size in place of a member.
pub const SIZE: &str = "";

/// Offsets of members, in bytes, by structure and member. A member of a member is `outer.inner`. The size of a structure
/// is by [`SIZE`], in bytes, and the value of an enumerator by its enumeration.
pub type Members = BTreeMap<(&'static str, &'static str), u64>;

/// The kernel's types.
#[derive(Debug)]
pub enum Types<'a> {
    /// From its BTF.
    Btf(Btf<'a>),
    /// What its code tells.
    Code(Members),
}

impl<'a> Types<'a> {
    /// As [`Structure::offset_of`].
    pub fn offset_of(&self, structure: &'static str, member: &'static str) -> Option<u64> {
        self.structures(structure).offset_of(member)
    }

    /// As [`Types::offset_of`], for a member without which nothing else is of use.
    pub fn need(&self, structure: &'static str, member: &'static str) -> Result<u64, Missing> {
        self.structures(structure).need(member)
    }

    /// The structures and unions called `name`.
    pub fn structures(&self, name: &'static str) -> Structure<'_, 'a> {
        match self {
            Self::Btf(btf) => Structure::Btf(name, btf.structures(name)),
            Self::Code(members) => Structure::Code(name, members),
        }
    }

    /// As [`Btf::size_of`].
    ///
    /// # Errors
    /// It isn't known.
    pub fn size_of(&self, structure: &'static str) -> Result<u64, Missing> {
        let size = match self {
            Self::Btf(btf) => btf.size_of(structure),
            Self::Code(members) => members.get(&(structure, SIZE)).copied(),
        };
        size.ok_or(Missing::Size(structure))
    }

    /// As [`Btf::enumerator`].
    pub fn enumerator(&self, enumeration: &str, enumerator: &str) -> Option<u32> {
        match self {
            Self::Btf(btf) => btf.enumerator(enumeration, enumerator),
            Self::Code(members) => {
                let value = members.get(&(enumeration, enumerator));
                value.and_then(|value| u32::try_from(*value).ok())
            }
        }
    }
}

/// A structure, by its name.
#[derive(Debug)]
pub enum Structure<'t, 'a> {
    /// The structures of that name in BTF.
    Btf(&'static str, Structures<'t, 'a>),
    /// What the code tells.
    Code(&'static str, &'t Members),
}

impl Structure<'_, '_> {
    /// The offset of `member`, in bytes. A member of a member is `outer.inner`, as in `d_name.len`.
    pub fn offset_of(&self, member: &'static str) -> Option<u64> {
        match self {
            Self::Btf(_, structures) => match member.split_once('.') {
                Some((outer, inner)) => structures.offset_within(outer, inner),
                None => structures.offset_of(member),
            },
            Self::Code(name, members) => members.get(&(name, member)).copied(),
        }
    }

    /// As [`Structure::offset_of`], for a member without which nothing else is of use.
    pub fn need(&self, member: &'static str) -> Result<u64, Missing> {
        let name = match self {
            Self::Btf(name, _) | Self::Code(name, _) => name,
        };
        (self.offset_of(member)).ok_or(Missing::Member(name, member))
    }

    /// As `Structures::bit_of`. Code doesn't tell it.
    pub fn bit_of(&self, member: &str) -> Option<u64> {
        match self {
            Self::Btf(_, structures) => structures.bit_of(member),
            Self::Code(..) => None,
        }
    }
}
