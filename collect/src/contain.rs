//! What the collector gives up before it reads anything of a guest or of the network.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use kvmprof_sandbox::filters::refuse_to_leave;
use kvmprof_sandbox::paths::{Restricted, restrict_changes};
use kvmprof_sandbox::process::{FileRights, keep_file_rights};

/// From now on this thread, and all that it starts, change no file outside of `folders`, which are made if they aren't there, execute no program, act on no other
/// process and nothing of the host's, and have no capability. With `uses_others_files` they keep the one to use other users' files. A part that the host's
/// kernel doesn't have is left out with a warning.
///
/// # Errors
/// Rights can't be given up.
pub fn contain(folders: &[PathBuf], uses_others_files: bool) -> io::Result<()> {
    for folder in folders {
        // What makes the folder's files says why that can't be.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    keep_file_rights(match uses_others_files {
        true => FileRights::Access,
        false => FileRights::None,
    })?;
    match restrict_changes(folders) {
        Ok(Restricted::Fully) => {}
        Ok(Restricted::Partly | Restricted::No) => log::warn!(
            "The host's kernel has no Landlock, or an old one: other files and processes are protected by the lack of rights only"
        ),
        Err(error) => log::warn!("Landlock can't be used: {error}"),
    }
    if let Err(error) = refuse_to_leave() {
        log::warn!("System calls aren't restricted: {error}");
    }
    Ok(())
}
