//! Debug files from elsewhere than the sysroot.

use std::fmt::Debug;
use std::path::PathBuf;

/// Finds debug files by build id, as debuginfod servers do.
pub trait DebugFiles: Debug {
    /// The debug file of the file with `build_id`, in hexadecimal; `None` if there is none. A [`Resolver`](super::Resolver) asks once for each
    /// file, and checks that what it gets has that build id.
    ///
    /// # Errors
    /// Why it isn't known whether there is one. A resolver passes it on as a warning.
    fn find(&self, build_id: &str) -> Result<Option<PathBuf>, String>;
}
