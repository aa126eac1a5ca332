//! All commands of the devices, in one table: for those who pass the memory on to which a command's third argument points.

use crate::wire::device;
use crate::{control, pcs, pmc, prf, profil, recorder};

/// Bytes of an `int`.
pub const INT: usize = size_of::<i32>();

/// What a command's third argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A number, or unused.
    Number,
    /// A pointer to this many bytes, which the command reads.
    Reads(usize),
    /// A pointer to `int`s, which the command reads: how many follow, at most this number, and these.
    ReadsList(usize),
    /// A pointer to memory where the command stores this many bytes.
    Stores(usize),
    /// A pointer to this many bytes, which the command reads, and where it stores as many.
    Replaces(usize),
    /// A pointer to bytes that the command reads, as many as its text says. Only clients of the wire make such commands.
    Data,
}

/// A command of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The device's number (see [`device`]).
    pub device: u16,
    /// The command's number.
    pub number: u32,
    /// Its name in the headers and pages.
    pub name: &'static str,
    /// Its third argument.
    pub argument: Argument,
}

macro_rules! commands {
    ($($device:ident $module:ident { $($name:ident $kind:ident $(($size:expr))?,)* })*) => {
        /// All commands.
        pub const COMMANDS: &[Command] = &[$($(Command {
            device: device::$device,
            number: $module::$name,
            name: stringify!($name),
            argument: Argument::$kind $(($size))?,
        },)*)*];
    };
}

commands! {
    PCS pcs {
        BUF_INCR Number,
        PROF_KERNEL Number,
        PROF_ALL Number,
        PROF_GROUP Number,
        PROF_LIST ReadsList(pcs::MAX_LIST),
        PCS_FLUSH Number,
        PCS_SETFORMAT Number,
        PCS_SETBSIZE Number,
        PCS_GETHZ Number,
        PCS_SETHZ Number,
        PCS_STOP Number,
        PCS_GETSTAT Stores(pcs::STATUS_SIZE),
    }
    PRF prf {
        PRF_GETSTATUS Stores(INT),
        PRF_GETSIZE Stores(INT),
        PRF_SETSTATE Number,
        PRF_GETMAX Stores(INT),
    }
    PROFIL profil {
        PROFIL_CALL Reads(profil::Call::SIZE),
        PROFIL_GETSTAT Stores(profil::Status::SIZE),
    }
    PMC pmc {
        PMC_CALL Replaces(pmc::Call::SIZE),
        PMC_ACCOUNT Number,
    }
    RECORDER recorder {
        REC_START Number,
        REC_STOP Number,
        REC_PIDS Data,
        REC_EVENT Data,
        REC_TASKS Number,
        REC_HZ Number,
        REC_YIELD Number,
        REC_INTERVAL Number,
    }
    CONTROL control {
        CTL_PAUSE Number,
        CTL_RESUME Number,
        CTL_POWER_BUTTON Number,
        CTL_RESET Number,
        CTL_STOP Number,
    }
}

/// The commands of device `device`.
pub fn of_device(device: u16) -> impl Iterator<Item = &'static Command> {
    COMMANDS
        .iter()
        .filter(move |command| command.device == device)
}

/// The third argument of command `number` of device `device`; `None` if there is no such command.
pub fn argument(device: u16, number: u32) -> Option<Argument> {
    let mut commands = of_device(device);
    let command = commands.find(|command| command.number == number);
    command.map(|command| command.argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_are_unique() {
        for (index, command) in COMMANDS.iter().enumerate() {
            let mut others = COMMANDS.iter().skip(index + 1);
            let is_same =
                |other: &Command| (other.device, other.number) == (command.device, command.number);
            assert!(!others.any(is_same), "{command:?}");
        }
        assert_eq!(argument(device::PCS, prf::PRF_GETMAX), None);
        let stores = Some(Argument::Stores(INT));
        assert_eq!(argument(device::PRF, prf::PRF_GETMAX), stores);
    }
}
