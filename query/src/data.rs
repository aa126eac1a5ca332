//! Finds the files of a data set: `date=…/host=…/guest=…/….parquet`, in a folder or an object store.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::datasource::object_store::ObjectStoreUrl;
use futures::StreamExt;
use kvmprof_report::text::visible;
use object_store::path::Path as StorePath;
use object_store::{ObjectMeta, ObjectStore};
use percent_encoding::percent_decode_str;
use url::{Position, Url};

/// The columns whose values are in the folders' names, from the outermost folder inwards.
pub const PARTITIONS: [&str; 3] = ["date", "host", "guest"];
/// Maximum number of files of a data set.
const MAX_FILES: usize = 4_000_000;
/// Maximum length of a store's error in messages, in characters.
const MAX_REASON: usize = 500;
/// The schemes of the URLs of object stores, with the begin of the names of the environment's variables that are for them.
const SCHEMES: [(&str, &str); 3] = [("s3", "AWS_"), ("gs", "GOOGLE_"), ("az", "AZURE_")];

/// A data set.
#[derive(Debug)]
pub struct DataSet {
    /// The URL under which the engine finds its files.
    pub url: ObjectStoreUrl,
    /// The object store. `None` for files of this host.
    pub store: Option<Arc<dyn ObjectStore>>,
    /// The files, ordered by name.
    pub files: Vec<DataFile>,
}

/// A file, and the values in its folders' names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Its path.
    pub location: StorePath,
    /// Its length in bytes.
    pub length: u64,
    /// The values of [`PARTITIONS`].
    pub values: [String; 3],
}

/// An error in a data set.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A folder or a file can't be read.
    #[error("Cannot read {}", path.display())]
    Read {
        /// The folder or the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A path isn't valid for the engine.
    #[error("Cannot read {}", path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: object_store::path::Error,
    },
    /// There are no files of a data set.
    #[error(
        "There is no file DATE/HOST/GUEST/*.parquet, such as date=2026-03-01/host=a/guest=b/1.parquet, in {0}: is it the folder or the \
         URL of a sink of the type parquet?"
    )]
    NoFiles(String),
    /// There are more files than a query can read.
    #[error("There are more than {MAX_FILES} files in {0}")]
    TooManyFiles(String),
    /// It isn't the URL of an object store.
    #[error(
        "{url} is no URL of an object store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
    )]
    Url {
        /// The value that was given.
        url: String,
    },
    /// The object store can't be listed, or the environment's options for it are wrong.
    #[error(
        "Cannot list {url}: {reason}. The environment has its options: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, \
         AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true for a store without TLS; similar ones for other stores"
    )]
    Store {
        /// The value that was given.
        url: String,
        /// The store's error.
        reason: String,
    },
}

impl DataSet {
    /// The data set at `place`, a folder or the URL of an object store. Files and folders with other names are ignored, such as files that
    /// are being written.
    ///
    /// # Errors
    /// It can't be read, or has no such files, or too many of them.
    pub async fn open(place: &str) -> Result<Self, DataError> {
        let set = if place.contains("://") {
            Self::remote(place).await?
        } else {
            Self::local(Path::new(place))?
        };
        if set.files.is_empty() {
            return Err(DataError::NoFiles(place.to_owned()));
        }
        Ok(set)
    }

    fn local(folder: &Path) -> Result<Self, DataError> {
        // The engine needs absolute paths.
        let root = folder.canonicalize();
        let root = root.map_err(|source| DataError::Read {
            path: folder.to_owned(),
            source,
        })?;
        let mut files = Vec::new();
        find(&root, &mut Default::default(), 0, &mut files)?;
        Ok(Self {
            url: ObjectStoreUrl::local_filesystem(),
            store: None,
            files,
        })
    }

    async fn remote(text: &str) -> Result<Self, DataError> {
        let wrong = || DataError::Url {
            url: text.to_owned(),
        };
        let url = Url::parse(text).ok();
        let url = url.filter(Url::has_host).ok_or_else(wrong)?;
        let mut schemes = SCHEMES.into_iter();
        let (_, prefix) =
            (schemes.find(|(scheme, _)| *scheme == url.scheme())).ok_or_else(wrong)?;
        // The text of such an error includes those of its causes.
        let failed = |error: object_store::Error| DataError::Store {
            url: text.to_owned(),
            reason: visible(&error.to_string())
                .chars()
                .take(MAX_REASON)
                .collect(),
        };
        let options = options(prefix, env::vars_os());
        let (store, prefix) = object_store::parse_url_opts(&url, options).map_err(failed)?;
        let url = ObjectStoreUrl::parse(&url[..Position::BeforePath]).map_err(|_| wrong())?;
        let mut files = Vec::new();
        let mut objects = store.list(Some(&prefix));
        while let Some(object) = objects.next().await {
            let object = object.map_err(failed)?;
            files.extend(file_of(&prefix, object));
            if files.len() > MAX_FILES {
                return Err(DataError::TooManyFiles(text.to_owned()));
            }
        }
        drop(objects);
        files.sort_by(|one, other| one.location.cmp(&other.location));
        Ok(Self {
            url,
            store: Some(store.into()),
            files,
        })
    }
}

/// A store's options among the environment's `variables`: those whose names begin with `prefix`. The store knows its options also by shorter names, such as `token` and
/// `endpoint`, which variables of other programs have, too. Those that it doesn't know are ignored.
fn options(
    prefix: &str,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (String, String)> {
    variables.filter_map(move |(name, value)| {
        let name = name.into_string().ok()?;
        let option = name.starts_with(prefix).then(|| name.to_ascii_lowercase());
        Some((option?, value.into_string().ok()?))
    })
}

/// The file for an object below `prefix`. `None` if it isn't a file of a data set.
fn file_of(prefix: &StorePath, object: ObjectMeta) -> Option<DataFile> {
    let mut parts = object.location.prefix_match(prefix)?;
    let mut values: [String; 3] = Default::default();
    for (value, partition) in values.iter_mut().zip(PARTITIONS) {
        *value = value_of(parts.next()?.as_ref(), partition)?;
    }
    let is_wanted = is_data(parts.next()?.as_ref()) && parts.next().is_none() && object.size > 0;
    drop(parts);
    is_wanted.then_some(DataFile {
        location: object.location,
        length: object.size,
        values,
    })
}

/// The value in a folder's name. `None` if the folder isn't one of this partition.
fn value_of(folder: &str, partition: &str) -> Option<String> {
    let (key, value) = folder.split_once('=')?;
    let value = || percent_decode_str(value).decode_utf8_lossy().into_owned();
    (key == partition).then(value)
}

/// Whether a file of this name is a file of a data set.
fn is_data(name: &str) -> bool {
    name.ends_with(".parquet") && !name.starts_with(['.', '_'])
}

/// Adds the files below `folder`, which is at this depth in the data set.
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
        let path = entry.path();
        if let Some(partition) = PARTITIONS.get(depth) {
            if let Some(value) = value_of(name, partition)
                && path.is_dir()
            {
                values[depth] = value;
                find(&path, values, depth + 1, found)?;
            }
        } else if is_data(name) {
            // Links are followed. A file that was removed meanwhile, and a link to nothing, are ignored.
            let metadata = match fs::metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata.map_err(read)?,
            };
            if metadata.is_file() && metadata.len() > 0 {
                let location = StorePath::from_absolute_path(&path);
                found.push(DataFile {
                    location: location.map_err(|source| DataError::Name { path, source })?,
                    length: metadata.len(),
                    values: values.clone(),
                });
            }
            if found.len() > MAX_FILES {
                return Err(DataError::TooManyFiles(folder.display().to_string()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = [
        "date=2026-03-01/host=a/guest=b%20c%2F/1-x.parquet",
        "date=2026-03-01/host=a/guest=b%20c%2F/.2-x.tmp",
        "date=2026-03-01/host=a/guest=b%20c%2F/_3.parquet",
        "date=2026-03-01/host=a/4.parquet",
        "date=2026-03-01/guest=a/host=b/5.parquet",
        "notes.txt",
    ];

    fn write(root: &Path, name: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    fn open(place: &str) -> Result<DataSet, DataError> {
        futures::executor::block_on(DataSet::open(place))
    }

    #[test]
    fn a_store_gets_only_its_own_variables() {
        let all = [
            ("AWS_REGION", "eu-1"),
            ("TOKEN", "of another program"),
            ("ENDPOINT", "http://elsewhere"),
            ("aws_endpoint", "http://elsewhere"),
            ("GOOGLE_SERVICE_ACCOUNT", "another store's"),
            ("XAWS_SECRET_ACCESS_KEY", "x"),
        ];
        let all = || {
            all.into_iter()
                .map(|(name, value)| (name.into(), value.into()))
        };
        let of = |scheme: &str| -> Vec<(String, String)> {
            let (_, prefix) = SCHEMES
                .into_iter()
                .find(|(known, _)| *known == scheme)
                .unwrap();
            options(prefix, all()).collect()
        };
        assert_eq!(of("s3"), [("aws_region".to_owned(), "eu-1".to_owned())]);
        assert!(of("az").is_empty());
        assert_eq!(of("gs").len(), 1);
    }

    #[test]
    fn only_complete_files_in_their_folders_count() {
        let folder = tempfile::tempdir().unwrap();
        for name in NAMES {
            write(folder.path(), name);
        }
        let set = open(folder.path().to_str().unwrap()).unwrap();
        let values: Vec<[String; 3]> = set.files.iter().map(|file| file.values.clone()).collect();
        assert_eq!(values, [["2026-03-01", "a", "b c/"]]);
        let location = set.files[0].location.as_ref();
        assert!(
            location.ends_with("guest=b%20c%2F/1-x.parquet"),
            "{location}"
        );
    }

    #[test]
    fn links_count_as_their_targets() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("date=2026-03-01/host=a/guest=b");
        write(folder.path(), "elsewhere.parquet");
        fs::create_dir_all(&place).unwrap();
        let link = |from: &str, to: &str| std::os::unix::fs::symlink(from, place.join(to)).unwrap();
        link("../../../elsewhere.parquet", "1.parquet");
        link("nowhere", "2.parquet");
        let set = open(folder.path().to_str().unwrap()).unwrap();
        let names: Vec<Option<&str>> = (set.files.iter())
            .map(|file| file.location.filename())
            .collect();
        assert_eq!(names, [Some("1.parquet")]);
        assert_eq!(set.files[0].length, 1);
    }

    #[test]
    fn objects_count_like_files() {
        let object = |name: &str, size| ObjectMeta {
            location: StorePath::parse(name).unwrap(),
            last_modified: Default::default(),
            size,
            e_tag: None,
            version: None,
        };
        let prefix = StorePath::parse("fleet/a").unwrap();
        let names = NAMES.map(|name| format!("fleet/a/{name}"));
        let others = [
            format!("fleet/{}", NAMES[0]),
            format!("fleet/a/b/{}", NAMES[0]),
        ];
        let all = names.iter().chain(&others);
        let found: Vec<DataFile> = all
            .filter_map(|name| file_of(&prefix, object(name, 1)))
            .collect();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].values, ["2026-03-01", "a", "b c/"]);
        assert_eq!(found[0].location.as_ref(), names[0]);
        assert_eq!(file_of(&prefix, object(&names[0], 0)), None);
    }

    #[test]
    fn folders_without_a_data_set_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let error = open(folder.path().to_str().unwrap()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("There is no file DATE/HOST/GUEST"),
            "{error}"
        );
        let error = open(folder.path().join("no").to_str().unwrap()).unwrap_err();
        assert!(matches!(error, DataError::Read { .. }));
        for url in ["ftp://a/b", "s3://", "file:///tmp", "http://a"] {
            let error = open(url).unwrap_err();
            assert!(matches!(error, DataError::Url { .. }), "{url}: {error}");
        }
    }
}
