//! Finds the files of a data set: `date=…/host=…/guest=…/….parquet`.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

/// The columns that are the names of folders, from the outermost in.
pub const PARTITIONS: [&str; 3] = ["date", "host", "guest"];
/// The most files of a data set.
const MAX_FILES: usize = 4_000_000;

/// A file, and what its folders' names say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// The values of [`PARTITIONS`].
    pub values: [String; 3],
}

/// Why a folder is no data set.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// It can't be read.
    #[error("Cannot read {}", path.display())]
    Read {
        /// The folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// There are no files where a data set has some.
    #[error(
        "There is no file DATE/HOST/GUEST/*.parquet, such as date=2026-03-01/host=a/guest=b/1.parquet, in {}: is it the folder of a sink \
         of the type parquet?", .0.display()
    )]
    NoFiles(PathBuf),
    /// There are more files than one query can have.
    #[error("There are more than {MAX_FILES} files in {}", .0.display())]
    TooManyFiles(PathBuf),
}

/// The files of the data set in `folder`, in the order of their names. Files and folders with other names are passed over, such as those that
/// are being written.
///
/// # Errors
/// The folder can't be read, or has no such files, or too many.
pub fn files(folder: &Path) -> Result<Vec<DataFile>, DataError> {
    let read = |source| DataError::Read {
        path: folder.to_owned(),
        source,
    };
    // Paths of the engine begin at the root.
    let root = folder.canonicalize().map_err(read)?;
    let mut found = Vec::new();
    let mut values: [String; 3] = Default::default();
    find(&root, &mut values, 0, &mut found)?;
    if found.is_empty() {
        return Err(DataError::NoFiles(folder.to_owned()));
    }
    Ok(found)
}

/// Adds the files below `folder`, which is so many folders deep in the data set.
fn find(
    folder: &Path,
    values: &mut [String; 3],
    depth: usize,
    found: &mut Vec<DataFile>,
) -> Result<(), DataError> {
    let read = |source| DataError::Read {
        path: folder.to_owned(),
        source,
    };
    let entries: io::Result<Vec<DirEntry>> = fs::read_dir(folder).map_err(read)?.collect();
    let mut entries = entries.map_err(read)?;
    entries.sort_by_key(DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        if let Some(partition) = PARTITIONS.get(depth) {
            let value = name.split_once('=').filter(|(key, _)| key == partition);
            if let Some((_, value)) = value
                && entry.path().is_dir()
            {
                let value = percent_decode_str(value).decode_utf8_lossy();
                values[depth] = value.into_owned();
                find(&entry.path(), values, depth + 1, found)?;
            }
        } else if name.ends_with(".parquet") && !name.starts_with(['.', '_']) {
            let metadata = entry.metadata().map_err(read)?;
            if metadata.is_file() && metadata.len() > 0 {
                found.push(DataFile {
                    path: entry.path(),
                    length: metadata.len(),
                    values: values.clone(),
                });
            }
            if found.len() > MAX_FILES {
                return Err(DataError::TooManyFiles(folder.to_owned()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    #[test]
    fn only_whole_files_in_their_folders_count() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "date=2026-03-01/host=a/guest=b%20c%2F/1-x.parquet",
            "date=2026-03-01/host=a/guest=b%20c%2F/.2-x.tmp",
            "date=2026-03-01/host=a/guest=b%20c%2F/_3.parquet",
            "date=2026-03-01/host=a/4.parquet",
            "date=2026-03-01/guest=a/host=b/5.parquet",
            "notes.txt",
        ] {
            write(folder.path(), name);
        }
        let found = files(folder.path()).unwrap();
        let values: Vec<[String; 3]> = found.iter().map(|file| file.values.clone()).collect();
        assert_eq!(values, [["2026-03-01", "a", "b c/"]]);
        assert!(found[0].path.ends_with("guest=b%20c%2F/1-x.parquet"));
    }

    #[test]
    fn what_is_no_data_set_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = files(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("There is no file DATE/HOST/GUEST"),
            "{error}"
        );
        let error = files(&folder.path().join("no")).unwrap_err();
        assert!(matches!(error, DataError::Read { .. }));
    }
}
