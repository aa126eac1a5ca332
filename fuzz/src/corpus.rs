//! The inputs that are kept with the source, and where those go that fail.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folder `name` of this crate.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The folder of a target's inputs.
pub fn inputs_folder(target: &str) -> PathBuf {
    folder("corpus").join(target)
}

/// The file with a target's dictionary: what its inputs consist of, for `tests/fuzz`.
pub fn dictionary(target: &str) -> PathBuf {
    folder("dictionaries").join(target)
}

/// The inputs of a target, by path, in the order of their names.
///
/// # Errors
/// The folder or a file of it can't be read.
pub fn inputs(target: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut paths = fs::read_dir(inputs_folder(target))?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    let read = |path: PathBuf| fs::read(&path).map(|bytes| (path, bytes));
    paths.into_iter().map(read).collect()
}

/// Keeps an input that a target fails with; the result is where.
///
/// # Errors
/// The file can't be written.
pub fn keep(target: &str, name: &str, input: &[u8]) -> io::Result<PathBuf> {
    let folder = folder("artifacts").join(target);
    fs::create_dir_all(&folder)?;
    let path = folder.join(name);
    fs::write(&path, input)?;
    Ok(path)
}
