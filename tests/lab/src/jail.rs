//! Programs of this host in the lab, which has only the programs that it is given, and runs in an initial RAM disk.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Lab;

/// The start of a script in the lab that runs programs which make a root folder of their own; see the file.
pub const JAIL: &str = include_str!("jail.sh");
/// The paths of virtiofsd in distributions: up to QEMU 7.2 beside QEMU, later in a package of its own.
const VIRTIOFSD: [&str; 2] = ["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"];

/// The program of this host that serves shared folders: the one that `KVMPROF_VIRTIOFSD` names, or that of the distribution.
#[must_use]
pub fn virtiofsd() -> PathBuf {
    let said = env::var_os("KVMPROF_VIRTIOFSD").map(PathBuf::from);
    said.unwrap_or_else(|| {
        let [beside_qemu, by_itself] = VIRTIOFSD.map(PathBuf::from);
        if beside_qemu.exists() {
            beside_qemu
        } else {
            by_itself
        }
    })
}

impl Lab {
    /// Puts a program of this host at `place`, and the libraries that it needs at the same paths as here.
    #[must_use]
    pub fn program_with_libraries(self, program: &Path, place: &str) -> Self {
        let libraries = shared_libraries(program).into_iter();
        let lab = libraries.fold(self, |lab, (library, place)| lab.add(library, &place));
        lab.add(program, place)
    }
}

/// The libraries to which `program` of this host is linked, including its interpreter, each with the path where the program looks for it.
pub fn shared_libraries(program: &Path) -> Vec<(PathBuf, String)> {
    let listed = Command::new("ldd").arg(program).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&listed)
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(|library| (PathBuf::from(library), library.to_owned()))
        .collect()
}
