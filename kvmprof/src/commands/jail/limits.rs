//! Limits of the process in a jail: setrlimit(2).

use std::io;
use std::str::FromStr;

use rustix::process::{Resource, Rlimit, setrlimit};

/// Default limit of descriptors.
const DESCRIPTORS: u64 = 2048;

/// A requested limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    resource: Resource,
    value: u64,
}

impl FromStr for ResourceLimit {
    type Err = String;

    fn from_str(words: &str) -> Result<Self, Self::Err> {
        let (name, value) = words.split_once('=').unwrap_or((words, ""));
        let resource = match name {
            "no-file" => Resource::Nofile,
            "fsize" => Resource::Fsize,
            _ => {
                return Err(format!(
                    "'{name}' is no limit: there are no-file=N and fsize=BYTES"
                ));
            }
        };
        let value = value.parse();
        let value = value.map_err(|_| format!("{name} needs a number, as in {name}=4096"))?;
        Ok(Self { resource, value })
    }
}

/// Sets these limits of this process permanently.
///
/// # Errors
/// The system refuses a limit.
pub fn set(limits: &[ResourceLimit]) -> io::Result<()> {
    let usual = ResourceLimit {
        resource: Resource::Nofile,
        value: DESCRIPTORS,
    };
    for limit in [usual].iter().chain(limits) {
        let value = Some(limit.value);
        setrlimit(
            limit.resource,
            Rlimit {
                current: value,
                maximum: value,
            },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_names_and_numbers() {
        let limit: ResourceLimit = "fsize=4096".parse().unwrap();
        assert_eq!((limit.resource, limit.value), (Resource::Fsize, 4096));
        for (words, expected) in [
            ("core=1", "'core' is no limit"),
            ("no-file", "needs a number"),
            ("fsize=-1", "needs a number"),
        ] {
            let error = words.parse::<ResourceLimit>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
