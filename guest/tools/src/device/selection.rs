//! Which prf, and on which side, as a command line says it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use kvmprof_abi::prf::{ALL_VCPUS, NODE};

use super::{Access, Device, DeviceError, DeviceKind, Node, Remote, connect};
use crate::client::Connection;

/// Options of each tool that uses prf.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// The profiler: 255 or /dev/prf for all vCPUs together, 0 or /dev/prf0 for the first one, and so
    /// on
    ///
    /// Each has a table, a state and counters of its own. With --socket only the number at the
    /// end of the name counts; without, a name is the path of a node.
    #[arg(
        long,
        short = 'f',
        value_name = "DEVICE",
        default_value = "255",
        hide_default_value = true
    )]
    pub device: DeviceName,

    /// On the host: the socket of the kvmprof that runs the guest. Without it, the guest's own nodes
    /// are used
    #[arg(long, short, env = "KVMPROF_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// A prf by number or by its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The minor number.
    Minor(u16),
    /// The node's path.
    Path(PathBuf),
}

impl FromStr for DeviceName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.parse() {
            Ok(minor) => Self::Minor(minor),
            Err(_) => Self::Path(text.into()),
        })
    }
}

impl DeviceName {
    /// The minor number, which a path has at its end.
    fn minor(&self) -> Result<u16, DeviceError> {
        let path = match self {
            Self::Minor(minor) => return Ok(*minor),
            Self::Path(path) => path,
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let minor = match name.and_then(|name| name.strip_prefix("prf")) {
            Some("") => Some(ALL_VCPUS),
            Some(number) => number.parse().ok(),
            None => None,
        };
        minor.ok_or_else(|| DeviceError::NoSuchName {
            name: path.display().to_string(),
        })
    }

    fn node(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Minor(ALL_VCPUS) => NODE.into(),
            Self::Minor(minor) => format!("{NODE}{minor}").into(),
        }
    }
}

/// Where the guest is, seen from the tool.
pub enum GuestSide {
    /// Behind kvmprof's socket.
    Host(Connection),
    /// Around it: the tool runs in the guest.
    Guest,
}

impl GuestSide {
    /// The side that a `socket`, or none, stands for.
    ///
    /// # Errors
    /// [`DeviceError::Unreachable`].
    pub fn of(socket: Option<&Path>) -> Result<Self, DeviceError> {
        Ok(match socket {
            Some(path) => Self::Host(connect(path)?),
            None => Self::Guest,
        })
    }
}

impl DeviceOptions {
    /// The side of the guest that they choose.
    ///
    /// # Errors
    /// [`DeviceError::Unreachable`].
    pub fn side(&self) -> Result<GuestSide, DeviceError> {
        GuestSide::of(self.socket.as_deref())
    }

    /// Opens the prf that they choose, on `side`.
    ///
    /// # Errors
    /// As [`Node::open`] and [`Remote::prf`]; [`DeviceError::NoSuchName`].
    pub fn open_on(
        &self,
        side: &GuestSide,
        access: Access,
    ) -> Result<Box<dyn Device>, DeviceError> {
        Ok(match side {
            GuestSide::Host(connection) => Box::new(Remote::prf(connection, self.device.minor()?)?),
            GuestSide::Guest => Box::new(Node::open(DeviceKind::Prf, &self.device.node(), access)?),
        })
    }

    /// Opens the prf that they choose, for reads and ioctls.
    ///
    /// # Errors
    /// As [`side`](Self::side) and [`open_on`](Self::open_on).
    pub fn open(&self) -> Result<Box<dyn Device>, DeviceError> {
        self.open_on(&self.side()?, Access::Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DeviceName {
        let Ok(name) = text.parse();
        name
    }

    #[test]
    fn a_number_and_a_path_say_the_same_on_both_sides() {
        for (text, minor, node) in [
            ("255", 255, "/dev/prf"),
            ("/dev/prf", 255, "/dev/prf"),
            ("0", 0, "/dev/prf0"),
            ("/dev/prf0", 0, "/dev/prf0"),
            ("elsewhere/prf12", 12, "elsewhere/prf12"),
        ] {
            assert_eq!(name(text).minor().unwrap(), minor, "{text}");
            assert_eq!(name(text).node(), Path::new(node), "{text}");
        }
    }

    #[test]
    fn a_name_without_a_number_is_refused_where_one_is_needed() {
        for text in ["/dev/pcs", "/dev/prfx", "-1", "70000", "/"] {
            let error = name(text).minor().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
