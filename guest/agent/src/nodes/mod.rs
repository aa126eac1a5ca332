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

pub use caller::{Look, WholeWrite, whole_write};
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
    /// All nodes of a guest that has so many vCPUs: pcs, prf, profil, and a prf for each vCPU.
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

    /// Who may use the node, if the others have these permissions. profil is for everybody: a process can profile nothing
    /// but itself.
    pub fn permissions(&self, of_others: Permissions) -> Permissions {
        if self.device == device::PROFIL {
            Permissions {
                mode: FOR_EVERYBODY,
                group: None,
            }
        } else {
            of_others
        }
    }
}
