//! Where a frame is, as far as symbols tell.

use std::borrow::Cow;

use crate::file::Mapping;
use crate::profile::Stack;
use crate::symbolize::{self, Tables, demangle, file_address, module_name};

/// A function, or an address that belongs to none that is known. `Name` is how names are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place<Name = String> {
    /// A function of the kernel.
    Kernel(Name),
    /// An address in the kernel.
    KernelAddress(u64),
    /// A function in user mode, of the process with that pid.
    User(i32, Name),
    /// An address in user mode, of the process with that pid.
    UserAddress(i32, u64),
}

impl<Name> Place<Name> {
    /// The process that it belongs to; `None` for the kernel's.
    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Kernel(_) | Self::KernelAddress(_) => None,
            Self::User(pid, _) | Self::UserAddress(pid, _) => Some(*pid),
        }
    }
}

/// A place whose name is the recording's own, if it has one.
pub type FoundPlace<'a> = Place<Cow<'a, str>>;

impl FoundPlace<'_> {
    /// The same with a name of its own.
    pub fn into_owned(self) -> Place {
        match self {
            Self::Kernel(name) => Place::Kernel(name.into_owned()),
            Self::KernelAddress(address) => Place::KernelAddress(address),
            Self::User(pid, name) => Place::User(pid, name.into_owned()),
            Self::UserAddress(pid, address) => Place::UserAddress(pid, address),
        }
    }
}

impl Place {
    /// True when `other` is the same.
    pub fn is(&self, other: &FoundPlace<'_>) -> bool {
        match (self, other) {
            (Self::Kernel(name), Place::Kernel(other)) => name == other,
            (Self::User(pid, name), Place::User(other_pid, other)) => {
                pid == other_pid && name == other
            }
            (Self::KernelAddress(address), Place::KernelAddress(other)) => address == other,
            (Self::UserAddress(pid, address), Place::UserAddress(other_pid, other)) => {
                pid == other_pid && address == other
            }
            _ => false,
        }
    }

    /// Its name or address. The guest chose the name: what would break a line or a terminal is shown as `?`.
    pub fn label(&self) -> String {
        match self {
            Self::Kernel(name) | Self::User(_, name) => demangle(name)
                .chars()
                .map(|letter| if letter.is_control() { '?' } else { letter })
                .collect(),
            Self::KernelAddress(address) | Self::UserAddress(_, address) => format!("{address:#x}"),
        }
    }
}

/// Where frame number `index` of a stack of process `pid` is. Names are as mangled as files have them.
pub fn place<'a>(names: &'a Tables, pid: i32, stack: &Stack, index: usize) -> FoundPlace<'a> {
    let address = stack.frames.get(index).copied().unwrap_or_default();
    let is_kernel = stack.is_kernel(index);
    match (names.locate(stack.mappings, address, is_kernel), is_kernel) {
        (symbolize::Place::Kernel(found), true) => Place::Kernel(found.name.into()),
        (symbolize::Place::Kernel(found), false) => Place::User(pid, found.name.into()),
        (symbolize::Place::Mapping(mapping), _) => match in_file(names, mapping, address) {
            Some(name) => Place::User(pid, name),
            None => Place::UserAddress(pid, address),
        },
        (symbolize::Place::Unknown, true) => Place::KernelAddress(address),
        (symbolize::Place::Unknown, false) => Place::UserAddress(pid, address),
    }
}

/// The function at `address`, in the file that is mapped there if the recording has it.
fn in_file<'a>(names: &'a Tables, mapping: &Mapping, address: u64) -> Option<Cow<'a, str>> {
    let file = names.file(mapping)?;
    let address = file_address(mapping, &file.facts().segments, address);
    let (name, begin) = file.functions().find(address)?;
    Some(match name {
        "" => format!("{}+{begin:#x}", module_name(&mapping.file)).into(),
        name => name.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Binary, BinaryFacts, ProcessMappings, Segment};

    #[test]
    fn functions_of_mapped_files_have_names() {
        let mut names = Tables::default();
        let mappings = ProcessMappings {
            address_space: 0x2000,
            pid: 7,
            time: 5,
            mappings: vec![Mapping {
                begin: 0x7000,
                end: 0x9000,
                offset: 0,
                file: "/bin/weaver".to_owned(),
                binary: Some(1),
            }],
        };
        names.spaces.add(&mappings);
        names.add_file(Binary {
            facts: BinaryFacts {
                id: 1,
                segments: vec![Segment {
                    offset: 0,
                    address: 0x1000,
                    length: 0x2000,
                }],
                ..BinaryFacts::default()
            },
            functions: "1000 100 _ZN6Weaver5weaveEv\n1100 100 \n".to_owned(),
        });
        let stack = Stack {
            frames: vec![0x7010, 0x7110, 0x7210],
            summary: kvmprof_devices::profiling::StackSummary::default(),
            in_user_mode: true,
            mappings: names.spaces.at(0x2000, 7, 9),
        };
        let labels = [0, 1, 2].map(|index| place(&names, 7, &stack, index).into_owned().label());
        assert_eq!(labels, ["Weaver::weave()", "weaver+0x1100", "0x7210"]);
    }
}
