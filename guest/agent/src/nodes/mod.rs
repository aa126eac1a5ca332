//! The nodes: each operation on them becomes a request to kvmprof, and its reply an answer.

mod caller;
mod forwarder;
mod fragments;
mod ioctl;
mod readiness;
#[cfg(test)]
mod tests;
mod turns;

use kvmprof_abi::{prf, wire::device};

pub use caller::{Look, PidKind, WholeWrite, whole_write};
pub use forwarder::{Environment, Forwarder};

use crate::cuse::{DeviceNumber, Permissions};

/// The mode of a node that everybody may use.
const FOR_EVERYBODY: u32 = 0o666;

/// A device node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name in `/dev`.
    pub name: String,
    /// The device as kvmprof numbers it.
    pub device: u16,
    /// The device's minor number, here and there.
    pub minor: u16,
}

impl Node {
    /// All nodes of a guest that has so many vCPUs: pcs, prf, profil, pmc, and a prf for each vCPU.
    pub fn all(vcpus: u32) -> Vec<Self> {
        let node = |name: String, device, minor| Self {
            name,
            device,
            minor,
        };
        let single = (0..prf::ALL_VCPUS).take_while(|vcpu| u32::from(*vcpu) < vcpus);
        [
            node("pcs".to_owned(), device::PCS, 0),
            node("prf".to_owned(), device::PRF, prf::ALL_VCPUS),
            node("profil".to_owned(), device::PROFIL, 0),
            node("pmc".to_owned(), device::PMC, 0),
        ]
        .into_iter()
        .chain(single.map(|vcpu| node(format!("prf{vcpu}"), device::PRF, vcpu)))
        .collect()
    }

    /// The number that the node should have, if the kernel gave prf's first one `prf_major`; 0 has it
    /// choose.
    pub fn number(&self, prf_major: u32) -> DeviceNumber {
        let is_prf = self.device == device::PRF;
        DeviceNumber {
            major: if is_prf { prf_major } else { 0 },
            minor: self.minor.into(),
        }
    }

    /// Whether every program may open it: by profil and pmc a process profiles and counts nothing but itself, unless it is the
    /// superuser's.
    pub fn is_for_everybody(&self) -> bool {
        matches!(self.device, device::PROFIL | device::PMC)
    }

    /// Who may use the node, if those that aren't for everybody have these permissions.
    pub fn permissions(&self, of_others: Permissions) -> Permissions {
        if self.is_for_everybody() {
            Permissions {
                mode: FOR_EVERYBODY,
                group: None,
            }
        } else {
            of_others
        }
    }
}
