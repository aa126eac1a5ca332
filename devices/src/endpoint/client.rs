//! The clients of endpoints, and what they may do.

use std::str::FromStr;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::PMC_ACCOUNT;
use kvmprof_abi::wire::device;
use thiserror::Error;

/// The client at the other end of an endpoint's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A client of the host socket, which may do everything.
    Host,
    /// A client of the host socket beyond those that there may be: it may only ask for the status.
    HostStatus,
    /// The guest, through its ports, with this access.
    Guest(GuestAccess),
}

impl Client {
    /// Checks that the client may open the device with number `number` (see [`device`]).
    ///
    /// # Errors
    /// EMFILE for a client that may only ask for the status, EACCES for the guest.
    pub(super) fn check_device(self, number: u16) -> Result<(), Errno> {
        match self {
            Self::HostStatus if number != device::STATUS => Err(Errno::EMFILE),
            Self::Guest(access) if !access.allows(number) => Err(Errno::EACCES),
            Self::Host | Self::HostStatus | Self::Guest(_) => Ok(()),
        }
    }

    /// Checks that the client may use `command` on an open device. Each device has command numbers of its own.
    ///
    /// # Errors
    /// EACCES if it may not.
    pub(super) fn check_command(self, command: u32) -> Result<(), Errno> {
        match (self, command) {
            // The command makes the host keep an account of each process, for those who look at the guest.
            (Self::Guest(_), PMC_ACCOUNT) => Err(Errno::EACCES),
            _ => Ok(()),
        }
    }
}

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
    /// Whether the guest may open the device with number `number`.
    fn allows(self, number: u16) -> bool {
        match number {
            device::PCS => matches!(self, Self::Pcs | Self::All),
            device::PRF => matches!(self, Self::Prf | Self::All),
            device::PROFIL => matches!(self, Self::Profil | Self::All),
            device::PMC => matches!(self, Self::Pmc | Self::All),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The devices up to number 9 that the guest may open.
    fn opened(access: GuestAccess) -> Vec<u16> {
        let check = |number: &u16| Client::Guest(access).check_device(*number);
        for number in 0..10 {
            assert_eq!(Client::Host.check_device(number), Ok(()));
            assert!(matches!(check(&number), Ok(()) | Err(Errno::EACCES)));
        }
        (0..10).filter(|number| check(number).is_ok()).collect()
    }

    #[test]
    fn only_allowed_requests_reach_the_devices() {
        assert!(opened(GuestAccess::None).is_empty());
        assert_eq!(opened(GuestAccess::Pcs), [device::PCS]);
        assert_eq!(opened(GuestAccess::Prf), [device::PRF]);
        assert_eq!(opened(GuestAccess::Profil), [device::PROFIL]);
        assert_eq!(opened(GuestAccess::Pmc), [device::PMC]);
        let all = [device::PCS, device::PRF, device::PROFIL, device::PMC];
        assert_eq!(opened(GuestAccess::All), all);
    }

    #[test]
    fn a_client_beyond_the_limit_gets_only_the_status() {
        let opened = |number: &u16| Client::HostStatus.check_device(*number).is_ok();
        let opened: Vec<u16> = (0..10).filter(opened).collect();
        assert_eq!(opened, [device::STATUS]);
        assert_eq!(
            Client::HostStatus.check_device(device::PCS),
            Err(Errno::EMFILE)
        );
    }

    #[test]
    fn only_the_host_gets_the_account_of_all_processes() {
        use kvmprof_abi::{pcs, pmc, prf, profil};
        let check = |command| Client::Guest(GuestAccess::All).check_command(command);
        assert_eq!(check(pmc::PMC_ACCOUNT), Err(Errno::EACCES));
        assert_eq!(Client::Host.check_command(pmc::PMC_ACCOUNT), Ok(()));
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
    fn values_of_the_option_parse() {
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
