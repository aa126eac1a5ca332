//! Selects a prf, in the guest or on the host, by the command line.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use kvmprof_abi::prf::{ALL_VCPUS, NODE};

use super::{Access, Device, DeviceError, DeviceKind, Node, Remote, connect};
use kvmprof_cli::command_line::{SocketArgs, usage};
use kvmprof_client::Connection;

/// Options of each tool that uses prf.
#[derive(Args, Clone, Debug)]
pub struct DeviceOptions {
    /// The profiler: 255 or /dev/prf for all vCPUs together, 0 or /dev/prf0 for the first one, and so
    /// on
    ///
    /// Each has a table, a state and counters of its own. With --socket only the number at the
    /// end of a name is used; without it, a name is the path of a node.
    #[arg(
        long,
        short = 'f',
        value_name = "DEVICE",
        default_value = "255",
        hide_default_value = true
    )]
    pub device: DeviceName,

    /// Which guest
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// A prf by its number or its node.
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
    /// The minor number, also from the end of a path.
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

/// The side on which the device is opened.
pub enum GuestSide {
    /// On the host, connected to the kvmprof that runs the guest.
    Host(Connection),
    /// In the guest.
    Guest,
}

impl GuestSide {
    /// The host if there is a `socket`, else the guest.
    ///
    /// # Errors
    /// [`DeviceError::Unreachable`].
    pub fn from_socket(socket: &SocketArgs) -> Result<Self, DeviceError> {
        Ok(connect(socket)?.map_or(Self::Guest, Self::Host))
    }
}

impl DeviceOptions {
    /// The selected side.
    ///
    /// # Errors
    /// [`DeviceError::Unreachable`].
    pub fn side(&self) -> Result<GuestSide, DeviceError> {
        GuestSide::from_socket(&self.socket)
    }

    /// Opens the selected prf on `side`.
    ///
    /// # Errors
    /// As [`Node::open`] and [`Remote::prf`]; [`UsageError`](kvmprof_cli::command_line::UsageError) for a name without a
    /// minor number.
    pub fn open_on(&self, side: &GuestSide, access: Access) -> anyhow::Result<Box<dyn Device>> {
        Ok(match side {
            GuestSide::Host(connection) => {
                let minor = self.device.minor().map_err(usage)?;
                Box::new(Remote::prf(connection, minor)?)
            }
            GuestSide::Guest => Box::new(Node::open(DeviceKind::Prf, &self.device.node(), access)?),
        })
    }

    /// Opens the selected prf for reads and ioctls.
    ///
    /// # Errors
    /// As [`side`](Self::side) and [`open_on`](Self::open_on).
    pub fn open(&self) -> anyhow::Result<Box<dyn Device>> {
        self.open_on(&self.side()?, Access::Read)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn name(text: &str) -> DeviceName {
        let Ok(name) = text.parse();
        name
    }

    #[test]
    fn a_number_and_a_path_select_the_same() {
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
