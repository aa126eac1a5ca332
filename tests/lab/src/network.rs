//! A network for guests in the lab: passt, and a tap.

use crate::{Lab, LabError, kernels};

/// What a script in the lab begins with to have a network for its guests; see the file. It needs [`Lab::guest_network`].
/// It comes after [`JAIL`](crate::JAIL).
pub const GUEST_NETWORK: &str = include_str!("network.sh");

impl Lab {
    /// Adds what [`GUEST_NETWORK`] needs: passt with its libraries, and the kernel's modules.
    ///
    /// # Errors
    /// As for [`passt`](crate::passt).
    pub fn guest_network(self) -> Result<Self, LabError> {
        let lab = self.module("dummy").module("tun");
        Ok(lab.program_with_libraries(&kernels::passt()?, "/lab/passt"))
    }
}
