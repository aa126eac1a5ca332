//! A network for guests in the lab: passt, and a tap.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Lab, LabError, kernels};

/// What a script in the lab begins with to have a network for its guests; see the file. It needs [`Lab::guest_network`].
/// It comes after [`JAIL`].
pub const GUEST_NETWORK: &str = include_str!("network.sh");

/// What a script in the lab begins with to run programs that make a root folder of their own; see the file.
pub const JAIL: &str = include_str!("jail.sh");

impl Lab {
    /// Adds what [`GUEST_NETWORK`] needs: passt with its libraries, and the kernel's modules.
    ///
    /// # Errors
    /// As for [`passt`](crate::passt).
    pub fn guest_network(self) -> Result<Self, LabError> {
        let passt = kernels::passt()?;
        let mut lab = self.module("dummy").module("tun");
        for (library, place) in shared_libraries(&passt) {
            lab = lab.add(library, &place);
        }
        Ok(lab.add(passt, "/lab/passt"))
    }
}

/// The libraries that `program` of this host is linked to, its interpreter among them, and where it looks for them.
pub fn shared_libraries(program: &Path) -> Vec<(PathBuf, String)> {
    let listed = Command::new("ldd").arg(program).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&listed)
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(|library| (PathBuf::from(library), library.to_owned()))
        .collect()
}
