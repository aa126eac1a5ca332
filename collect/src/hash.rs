//! Names that leave the host only as a keyed hash: the same name is the same hash everywhere that has the key, and nobody without it can
//! try which name it is.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glob::Pattern;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Fewest and most bytes of a key.
const MIN_KEY: usize = 16;
const MAX_KEY: usize = 4096;
/// Permissions of others.
const OTHERS: u32 = 0o077;
/// Bytes of a hash that are kept: two names of a fleet's million have the same one by a chance of 1 in 37 million.
const KEPT: usize = 8;

/// What is wrong with a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file can't be read.
    #[error("Cannot read the key {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others can read it.
    #[error("The key {} is open to others: give it mode 0600", .0.display())]
    Open(PathBuf),
    /// It is too short or too long.
    #[error("The key {} has to have {MIN_KEY} to {MAX_KEY} bytes, such as of: head -c 32 /dev/urandom", .0.display())]
    Length(PathBuf),
}

/// A secret key. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(..)")
    }
}

impl Key {
    /// Reads it from the file at `path`, all of whose bytes are the key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.mode() & OTHERS != 0 {
            return Err(KeyError::Open(path.to_owned()));
        }
        let mut bytes = Vec::new();
        file.take(MAX_KEY as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if (MIN_KEY..=MAX_KEY).contains(&bytes.len()) {
            Ok(Self(bytes))
        } else {
            Err(KeyError::Length(path.to_owned()))
        }
    }
}

/// Which names are hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Patterns of names of processes, whose threads' names are hashed with them, and of threads.
    pub processes: Vec<Pattern>,
    /// The key.
    pub key: Key,
    /// Whether their stacks are kept, whose functions and modules may tell what they are.
    pub keeps_stacks: bool,
}

impl Hashed {
    /// Whether this name, of a process or of a thread, is one that is hashed.
    pub fn covers(&self, name: &str) -> bool {
        self.processes.iter().any(|pattern| pattern.matches(name))
    }

    /// What stands for `name`: the begin of its HMAC-SHA-256 (RFC 2104), in hexadecimal.
    pub fn of(&self, name: &str) -> String {
        // HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.key.0) else {
            return String::new();
        };
        mac.update(name.as_bytes());
        let hash = mac.finalize().into_bytes();
        let digits = hash.iter().take(KEPT).map(|byte| format!("{byte:02x}"));
        format!("#{}", digits.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn hashed(key: &[u8]) -> Hashed {
        Hashed {
            processes: vec![Pattern::new("secret-*").unwrap()],
            key: Key(key.to_vec()),
            keeps_stacks: false,
        }
    }

    /// Test case 1 of RFC 4231.
    #[test]
    fn it_is_the_begin_of_the_hmac() {
        assert_eq!(hashed(&[0x0b; 20]).of("Hi There"), "#b0344c61d8db3853");
        assert_ne!(hashed(&[0x0c; 20]).of("Hi There"), "#b0344c61d8db3853");
        assert!(hashed(&[]).covers("secret-1") && !hashed(&[]).covers("open"));
    }

    #[test]
    fn keys_are_long_enough_and_ones_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let read = |bytes: &[u8], mode: u32| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Key::read(&path).map_err(|error| error.to_string())
        };
        assert_eq!(read(&[7; 32], 0o600), Ok(Key(vec![7; 32])));
        assert!(read(&[7; 32], 0o640).unwrap_err().contains("0600"));
        for length in [0, 15, 4097] {
            let error = read(&vec![7; length], 0o600).unwrap_err();
            assert!(error.contains("16 to 4096"), "{error}");
        }
        let error = Key::read(Path::new("/nowhere/key")).unwrap_err();
        assert!(matches!(error, KeyError::Read { .. }));
        assert_eq!(format!("{:?}", Key(b"secret".to_vec())), "Key(..)");
    }
}
