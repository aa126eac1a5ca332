//! The value of `--net`: what a network device of the guest is connected to, and its MAC address.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::mac::{BadMac, MacAddress};

/// Maximum length of a network interface's name in bytes (kernel: `IFNAMSIZ`, without the NUL).
const INTERFACE_NAME_MAX: usize = 15;

/// A network device of a guest, as `tap=NAME[,mac=M]` or `socket=PATH[,mac=M]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// The other end of its link.
    pub peer: PeerAddress,
    /// Its MAC address. `None`: an address that is computed from `peer`.
    pub mac: Option<MacAddress>,
}

/// Where a network device's other end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// The tap interface of the host with this name.
    Tap(String),
    /// A program that listens on this Unix stream socket, such as passt.
    Socket(PathBuf),
}

/// A value of `--net` that can't be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNetwork {
    /// It has neither `tap=` nor `socket=`, or more than one of them.
    #[error("a network is tap=NAME or socket=PATH, and either can have ,mac=ADDRESS after it")]
    Peer,
    /// A word is unknown.
    #[error(
        "'{0}' is no option of a network: the options are tap=NAME or socket=PATH, and mac=ADDRESS"
    )]
    Unknown(String),
    /// A word is given twice.
    #[error("{0}= is given twice")]
    Twice(&'static str),
    /// A word has no value.
    #[error("{0}= has no value")]
    Empty(&'static str),
    /// A network interface can't have this name.
    #[error(
        "'{0}' is no name of a network interface: it has 1 to {INTERFACE_NAME_MAX} bytes, none of them '/', ':' or a space"
    )]
    Name(String),
    /// The MAC address isn't valid.
    #[error(transparent)]
    Mac(#[from] BadMac),
}

impl FromStr for NetworkConfig {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        let (mut peer, mut mac) = (None, None);
        for word in text.split(',') {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match name {
                "tap" | "socket" if peer.is_some() => return Err(BadNetwork::Peer),
                "tap" => peer = Some(PeerAddress::Tap(interface_name(value)?)),
                "socket" => peer = Some(PeerAddress::Socket(given("socket", value)?.into())),
                "mac" if mac.is_some() => return Err(BadNetwork::Twice("mac")),
                "mac" => mac = Some(given("mac", value)?.parse()?),
                _ if text.is_empty() => return Err(BadNetwork::Peer),
                _ => return Err(BadNetwork::Unknown(word.to_owned())),
            }
        }
        let peer = peer.ok_or(BadNetwork::Peer)?;
        Ok(Self { peer, mac })
    }
}

impl fmt::Display for NetworkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.peer)?;
        match self.mac {
            Some(mac) => write!(f, ",mac={mac}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(name) => write!(f, "tap={name}"),
            Self::Socket(path) => write!(f, "socket={}", path.display()),
        }
    }
}

fn given<'a>(name: &'static str, value: &'a str) -> Result<&'a str, BadNetwork> {
    if value.is_empty() {
        return Err(BadNetwork::Empty(name));
    }
    Ok(value)
}

/// Checks an interface's name as the kernel's `dev_valid_name` does.
fn interface_name(value: &str) -> Result<String, BadNetwork> {
    let name = given("tap", value)?;
    let impossible = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
    let wrong = name.len() > INTERFACE_NAME_MAX
        || name == "."
        || name == ".."
        || name.contains(impossible)
        // The kernel would replace `%d` by a number.
        || name.contains('%');
    if wrong {
        return Err(BadNetwork::Name(name.to_owned()));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NetworkConfig, BadNetwork> {
        text.parse()
    }

    #[test]
    fn network_options_round_trip() {
        for text in [
            "tap=tap0",
            "tap=tap0,mac=02:00:00:00:00:01",
            "socket=/run/passt.sock",
            "socket=a b=c,mac=52:54:00:12:34:56",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        let network = parse("mac=02:00:00:00:00:01,socket=x").unwrap();
        assert_eq!(network.peer, PeerAddress::Socket("x".into()));
    }

    #[test]
    fn invalid_networks_are_refused() {
        let unknown = |word: &str| BadNetwork::Unknown(word.to_owned());
        let name = |name: &str| BadNetwork::Name(name.to_owned());
        let cases = [
            ("", BadNetwork::Peer),
            ("mac=02:00:00:00:00:01", BadNetwork::Peer),
            ("tap=a,socket=b", BadNetwork::Peer),
            ("tap=a,tap=b", BadNetwork::Peer),
            ("tap", BadNetwork::Empty("tap")),
            ("socket=", BadNetwork::Empty("socket")),
            ("tap=a,mac=", BadNetwork::Empty("mac")),
            ("tap=a,", unknown("")),
            ("user", unknown("user")),
            ("tap=a,mtu=9000", unknown("mtu=9000")),
            ("tap=a/b", name("a/b")),
            ("tap=tap%d", name("tap%d")),
            ("tap=a234567890123456", name("a234567890123456")),
            (
                "tap=a,mac=02:00:00:00:00:01,mac=02:00:00:00:00:01",
                BadNetwork::Twice("mac"),
            ),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        let short = parse("tap=a,mac=02:00:00:00:00");
        assert!(matches!(short, Err(BadNetwork::Mac(_))));
    }
}
