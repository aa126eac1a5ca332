//! The value of `--vsock`: the guest's address, and the path of its connections on the host.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The lowest address of a guest: lower ones are the hypervisor's, the guest's own and the host's (virtio 1.2, section 5.10.4).
pub const CID_MIN: u32 = 3;
/// The highest address of a guest: the next number means any address (vsock(7)).
pub const CID_MAX: u32 = u32::MAX - 1;

/// Maximum size of a path in bytes: that of a Unix socket's path (107), less the size of `_4294967295`.
const PATH_MAX: usize = 107 - 11;

/// The socket device that a guest is to have, as `CID,socket=PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VsockConfig {
    /// The guest's address.
    pub cid: u32,
    /// The path of the socket by which clients connect to the guest. The paths to which the guest connects begin with it.
    pub path: PathBuf,
}

/// A value of `--vsock` that can't be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVsock {
    /// The value doesn't have its two parts.
    #[error("a socket device is CID,socket=PATH, such as 3,socket=/run/guest.vsock")]
    Form,
    /// No guest can have this address.
    #[error("'{0}' is no guest's address (CID): it is a number from {CID_MIN} to {CID_MAX}")]
    Cid(String),
    /// The path is too long: a port number couldn't follow it.
    #[error(
        "the path has {0} bytes; {PATH_MAX} are the most, since ports of the host are at this path with _PORT after it"
    )]
    Path(usize),
}

impl FromStr for VsockConfig {
    type Err = BadVsock;

    fn from_str(text: &str) -> Result<Self, BadVsock> {
        let (cid, rest) = text.split_once(',').ok_or(BadVsock::Form)?;
        let path = rest.strip_prefix("socket=").ok_or(BadVsock::Form)?;
        if path.is_empty() {
            return Err(BadVsock::Form);
        }
        if path.len() > PATH_MAX {
            return Err(BadVsock::Path(path.len()));
        }
        let number = cid.parse().ok();
        let number = number.filter(|number| (CID_MIN..=CID_MAX).contains(number));
        Ok(Self {
            cid: number.ok_or_else(|| BadVsock::Cid(cid.to_owned()))?,
            path: path.into(),
        })
    }
}

impl fmt::Display for VsockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},socket={}", self.cid, self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_options_round_trip() {
        for text in ["3,socket=/run/a b,c=d", "4294967294,socket=x"] {
            let config: VsockConfig = text.parse().unwrap();
            assert_eq!(config.to_string(), text);
        }
    }

    #[test]
    fn invalid_devices_are_refused() {
        let bad = |text: &str| text.parse::<VsockConfig>().unwrap_err();
        for text in ["", "3", "3,", "3,socket=", "3,path=x", "socket=x,3"] {
            assert_eq!(bad(text), BadVsock::Form, "{text}");
        }
        for cid in ["2", "4294967295", "-1", "x", ""] {
            let text = format!("{cid},socket=x");
            assert_eq!(bad(&text), BadVsock::Cid(cid.to_owned()), "{text}");
        }
        let long = format!("3,socket={}", "x".repeat(97));
        assert_eq!(bad(&long), BadVsock::Path(97));
    }
}
