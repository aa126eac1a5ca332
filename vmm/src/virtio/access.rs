//! The guest's access to the profiling devices.

use std::str::FromStr;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::PMC_ACCOUNT;
use kvmprof_abi::wire::device;
use thiserror::Error;

/// The devices that the guest may open through its ports. The host socket's other documents (status, processes, symbols) describe the host,
/// or are the guest's own knowledge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestAccess {
    /// No device. There are no ports then.
    None,
    /// Only pcs.
    Pcs,
    /// Only prf.
    Prf,
    /// Only profil.
    Profil,
    /// Only pmc.
    Pmc,
    /// pcs, prf, profil and pmc.
    #[default]
    All,
}

/// The error of a word that isn't a [`GuestAccess`].
#[derive(Debug, Error)]
#[error("'{0}' is no guest access: it must be none, pcs, prf, profil, pmc or all")]
pub struct UnknownGuestAccess(String);

impl FromStr for GuestAccess {
    type Err = UnknownGuestAccess;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "pcs" => Ok(Self::Pcs),
            "prf" => Ok(Self::Prf),
            "profil" => Ok(Self::Profil),
            "pmc" => Ok(Self::Pmc),
            "all" => Ok(Self::All),
            _ => Err(UnknownGuestAccess(text.to_owned())),
        }
    }
}

impl GuestAccess {
    /// Checks that the guest may open the device with number `number` (see [`device`]).
    ///
    /// # Errors
    /// EACCES if the guest may not open the device.
    pub(super) fn check(self, number: u16) -> Result<(), Errno> {
        let allowed = match number {
            device::PCS => matches!(self, Self::Pcs | Self::All),
            device::PRF => matches!(self, Self::Prf | Self::All),
            device::PROFIL => matches!(self, Self::Profil | Self::All),
            device::PMC => matches!(self, Self::Pmc | Self::All),
            _ => false,
        };
        if allowed { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Checks that the guest may use `command` on an open device. Each device has command numbers of its own.
    ///
    /// # Errors
    /// EACCES if the guest may not use the command.
    pub(super) fn check_command(command: u32) -> Result<(), Errno> {
        match command {
            // The command makes the host keep an account of each process, for those who look at the guest.
            PMC_ACCOUNT => Err(Errno::EACCES),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The devices up to number 9 that may be opened.
    fn opened(access: GuestAccess) -> Vec<u16> {
        let allowed = |number: &u16| access.check(*number).is_ok();
        (0..10).filter(allowed).collect()
    }

    #[test]
    fn only_what_is_allowed_reaches_the_devices() {
        assert!(opened(GuestAccess::None).is_empty());
        assert_eq!(opened(GuestAccess::Pcs), [device::PCS]);
        assert_eq!(opened(GuestAccess::Prf), [device::PRF]);
        assert_eq!(opened(GuestAccess::Profil), [device::PROFIL]);
        assert_eq!(opened(GuestAccess::Pmc), [device::PMC]);
        let all = [device::PCS, device::PRF, device::PROFIL, device::PMC];
        assert_eq!(opened(GuestAccess::All), all);
    }

    #[test]
    fn an_account_of_all_processes_is_the_hosts() {
        use kvmprof_abi::{pcs, pmc, prf, profil};
        let check = GuestAccess::check_command;
        assert_eq!(check(pmc::PMC_ACCOUNT), Err(Errno::EACCES));
        for command in [
            pmc::PMC_CALL,
            profil::PROFIL_CALL,
            pcs::PROF_ALL,
            prf::PRF_GETMAX,
        ] {
            assert_eq!(check(command), Ok(()), "{command:#x}");
        }
    }

    #[test]
    fn the_words_are_those_of_the_option() {
        assert_eq!("none".parse::<GuestAccess>().unwrap(), GuestAccess::None);
        assert_eq!("prf".parse::<GuestAccess>().unwrap(), GuestAccess::Prf);
        assert_eq!("pmc".parse::<GuestAccess>().unwrap(), GuestAccess::Pmc);
        let error = "status".parse::<GuestAccess>().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("none, pcs, prf, profil, pmc or all")
        );
    }
}
