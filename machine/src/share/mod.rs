//! Folders of the host that the guest can mount as file systems: virtio-fs, served by virtiofsd over vhost-user.

mod device;
mod error;
mod helper;
mod limit;
mod monitor;
mod options;
mod program;
mod session;
mod start_limit;

use std::path::Path;
use std::sync::Arc;

pub use device::Share;
pub use error::ShareError;
pub use helper::ShareHelper;
pub use options::{InvalidShare, SHARES_MAX, ShareOptions, ShareSource};
pub use session::{Events, Session};

use crate::connector::SocketConnector;
use program::{Program, Starter};
use session::Openers;

/// Starts the programs that serve these folders, or connects to them. `virtiofsd` is the path of the program; without it, the program is
/// searched for. `helper` and `connector` were made for the same folders.
///
/// # Errors
/// One of them can't be shared.
pub fn open_all(
    shares: &[ShareOptions],
    virtiofsd: Option<&Path>,
    helper: Option<&Arc<ShareHelper>>,
    connector: Option<&Arc<SocketConnector>>,
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
    let is_outside = helper.is_some_and(|helper| helper.is_outside());
    let needs_program = |share: &ShareOptions| matches!(share.source, ShareSource::Folder { .. });
    let program = match shares.iter().any(needs_program) && !is_outside {
        true => Some(Program::find(virtiofsd)?),
        false => None,
    };
    if let (Some(helper), Some(program)) = (helper, &program) {
        let accepted = helper.use_program(program);
        accepted.map_err(ShareError::host("the process that starts virtiofsd"))?;
    }
    let starter = |number: usize| match (helper, u8::try_from(number)) {
        (Some(helper), Ok(number)) => Some(Starter::Helper(Arc::clone(helper), number)),
        _ => program.clone().map(Starter::Own),
    };
    let opened = shares.iter().enumerate().map(|(number, share)| {
        let openers = Openers {
            starter: starter(number),
            connector: connector.cloned(),
        };
        Share::open(share, openers)
    });
    opened.collect()
}

/// Checks that the folder can be shared.
fn check_folder(path: &Path) -> Result<(), ShareError> {
    let failed = |source| ShareError::Folder {
        path: path.to_owned(),
        source,
    };
    std::fs::read_dir(path).map(drop).map_err(failed)
}
