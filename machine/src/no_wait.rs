//! Opening files whose paths may name something else than a file.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens `path` with `options`, and doesn't wait: the open of a FIFO waits for its other end otherwise. Also returns the metadata of what was
/// opened, whose type the caller has to check: the path may have named something else before. The flags that `options` had by `custom_flags`
/// are replaced.
///
/// # Errors
/// The host's, of open(2) and fstat(2).
pub fn open_without_waiting(
    options: &mut OpenOptions,
    path: &Path,
) -> io::Result<(File, Metadata)> {
    // Reads and writes of regular files and of block devices aren't changed by this flag.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}
