//! Folders of the host that the guest has as file systems: virtio-fs, served by virtiofsd over vhost-user.

mod device;
mod error;
mod monitor;
mod options;
mod program;
mod session;

use std::path::Path;

pub use device::Share;
pub use error::ShareError;
pub use monitor::ShareMonitor;
pub use options::{InvalidShare, SHARES_MAX, ShareOptions, ShareSource};

use program::Program;

/// Starts what serves these folders. `virtiofsd` is that program's path, if it isn't to be searched for.
///
/// # Errors
/// One of them can't be shared.
pub(crate) fn open_all(
    shares: &[ShareOptions],
    virtiofsd: Option<&Path>,
) -> Result<Vec<Share>, ShareError> {
    if shares.len() > SHARES_MAX {
        let asked = shares.len();
        return Err(ShareError::TooMany { asked });
    }
    for (index, share) in shares.iter().enumerate() {
        let others = shares.iter().take(index);
        if others.into_iter().any(|other| other.tag == share.tag) {
            return Err(ShareError::SameTag(share.tag.clone()));
        }
    }
    let needs_program = |share: &ShareOptions| matches!(share.source, ShareSource::Folder { .. });
    let program = match shares.iter().any(needs_program) {
        true => Some(Program::find(virtiofsd)?),
        false => None,
    };
    let opened = shares
        .iter()
        .map(|share| Share::open(share, program.as_ref()));
    opened.collect()
}
