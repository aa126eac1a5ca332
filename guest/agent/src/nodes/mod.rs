//! The nodes. Each operation on a node becomes a request to kvmprof, whose reply becomes the answer to the kernel.

mod caller;
mod forwarder;
mod fragments;
mod ioctl;
mod readiness;
#[cfg(test)]
mod tests;
mod turns;

use kvmprof_abi::{prf, wire::device};

pub use caller::{Inspection, InspectionResult, PidKind, whole_write};
pub use forwarder::{Environment, Forwarder};

use crate::cuse::{DeviceNumber, Permissions};

/// The mode of a node that everybody may use.
const FOR_EVERYBODY: u32 = 0o666;

/// A device node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name in `/dev`.
    pub name: String,
    /// kvmprof's number of the device.
    pub device: u16,
    /// The device's minor number, in the guest and at kvmprof.
    pub minor: u16,
}

impl Node {
    /// All nodes of a guest with `vcpus` vCPUs: pcs, prf, profil, pmc, and a prf for each vCPU.
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

    /// The number that the node should have, if prf's first node has the major number `prf_major`; with 0 the kernel chooses one.
    pub fn number(&self, prf_major: u32) -> DeviceNumber {
        let is_prf = self.device == device::PRF;
        DeviceNumber {
            major: if is_prf { prf_major } else { 0 },
            minor: self.minor.into(),
        }
    }

    /// Whether every program may open the node: with profil and pmc, a process can only profile and count itself, unless its user is the
    /// superuser.
    pub fn is_for_everybody(&self) -> bool {
        matches!(self.device, device::PROFIL | device::PMC)
    }

    /// The node's permissions; `of_others` are those of the nodes that aren't for everybody.
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
