//! A network for guests in the lab: passt, and a tap.

use crate::{Lab, LabError, kernels};

/// The start of a script in the lab that has a network for its guests; see the file. It needs [`Lab::guest_network`], and comes after
/// [`JAIL`](crate::JAIL).
pub const GUEST_NETWORK: &str = include_str!("network.sh");

impl Lab {
    /// Adds the files that [`GUEST_NETWORK`] needs: passt with its libraries, and the kernel's modules.
    ///
    /// # Errors
    /// As for [`passt`](crate::passt).
    pub fn guest_network(self) -> Result<Self, LabError> {
        let lab = self.module("dummy").module("tun");
        Ok(lab.program_with_libraries(&kernels::passt()?, "/lab/passt"))
    }
}
