//! Where a frame is, as far as symbols tell.

use crate::profile::{Stack, Symbols};

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

impl Place<&str> {
    /// The same with a name of its own.
    pub fn to_owned(self) -> Place {
        match self {
            Self::Kernel(name) => Place::Kernel(name.to_owned()),
            Self::KernelAddress(address) => Place::KernelAddress(address),
            Self::User(pid, name) => Place::User(pid, name.to_owned()),
            Self::UserAddress(pid, address) => Place::UserAddress(pid, address),
        }
    }
}

impl Place {
    /// True when `other` is the same.
    pub fn is(&self, other: Place<&str>) -> bool {
        match (self, other) {
            (Self::Kernel(name), Place::Kernel(other)) => name == other,
            (Self::User(pid, name), Place::User(other_pid, other)) => {
                *pid == other_pid && name == other
            }
            (Self::KernelAddress(address), Place::KernelAddress(other)) => *address == other,
            (Self::UserAddress(pid, address), Place::UserAddress(other_pid, other)) => {
                *pid == other_pid && *address == other
            }
            _ => false,
        }
    }

    /// Its name or address. The guest chose the name: what would break a line or a terminal is shown as `?`.
    pub fn label(&self) -> String {
        match self {
            Self::Kernel(name) | Self::User(_, name) => name
                .chars()
                .map(|letter| if letter.is_control() { '?' } else { letter })
                .collect(),
            Self::KernelAddress(address) | Self::UserAddress(_, address) => format!("{address:#x}"),
        }
    }
}

/// Where frame number `index` of a stack of process `pid` is.
pub fn place<'a>(symbols: &'a Symbols, pid: i32, stack: &Stack, index: usize) -> Place<&'a str> {
    let address = stack.frames.get(index).copied().unwrap_or_default();
    match (stack.is_kernel(index), symbols.find(address)) {
        (true, Some(name)) => Place::Kernel(name),
        (true, None) => Place::KernelAddress(address),
        (false, Some(name)) => Place::User(pid, name),
        (false, None) => Place::UserAddress(pid, address),
    }
}
