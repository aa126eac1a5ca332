//! Names that leave the host only as a keyed hash: all hosts with the same key make the same hash of a name, and without the key the name can't be
//! found by trying.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, ensure};
use glob::Pattern;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Minimum and maximum length of a key in bytes.
const MIN_KEY: usize = 16;
const MAX_KEY: usize = 4096;
/// The mode bits of the group and of other users.
const OTHERS: u32 = 0o077;
/// Number of bytes of a hash that are kept: with a million names in a fleet, the probability that two of them have the same hash is 1 in 37 million.
const KEPT: usize = 8;

/// A secret key. `Debug` doesn't show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(..)")
    }
}

impl Key {
    /// Reads the key from the file at `path`. All bytes of the file are the key.
    ///
    /// # Errors
    /// It can't be read, other users can read it, or it is too short or too long.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let failed = || format!("Cannot read the key {shown}");
        let file = File::open(path).with_context(failed)?;
        let mode = file.metadata().with_context(failed)?.mode();
        ensure!(
            mode & OTHERS == 0,
            "The key {shown} is open to others: give it mode 0600"
        );
        let mut bytes = Vec::new();
        let read = file.take(MAX_KEY as u64 + 1).read_to_end(&mut bytes);
        read.with_context(failed)?;
        ensure!(
            (MIN_KEY..=MAX_KEY).contains(&bytes.len()),
            "The key {shown} has to have {MIN_KEY} to {MAX_KEY} bytes, such as of: head -c 32 /dev/urandom"
        );
        Ok(Self(bytes))
    }
}

/// The names that are hashed, and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// Patterns of names of processes and of threads. The threads of such a process are hashed, too.
    pub processes: Vec<Pattern>,
    /// The key.
    pub key: Key,
    /// Whether the stacks of these processes and threads are kept. Their functions and modules may show which program it is.
    pub keeps_stacks: bool,
}

impl Hashed {
    /// Whether this name of a process or of a thread is hashed.
    pub fn covers(&self, name: &str) -> bool {
        self.processes.iter().any(|pattern| pattern.matches(name))
    }

    /// The replacement for `name`: `#` and the first 8 bytes of its HMAC-SHA-256 (RFC 2104) in hexadecimal.
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
    fn a_hash_is_the_start_of_the_hmac() {
        assert_eq!(hashed(&[0x0b; 20]).of("Hi There"), "#b0344c61d8db3853");
        assert_ne!(hashed(&[0x0c; 20]).of("Hi There"), "#b0344c61d8db3853");
        assert!(hashed(&[]).covers("secret-1") && !hashed(&[]).covers("open"));
    }

    #[test]
    fn keys_have_a_minimum_length_and_belong_to_the_user() {
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
        assert!(error.to_string().starts_with("Cannot read the key "));
        assert_eq!(format!("{:?}", Key(b"secret".to_vec())), "Key(..)");
    }
}
