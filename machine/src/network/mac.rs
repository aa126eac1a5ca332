//! Addresses of network devices (MAC addresses, IEEE 802).

use std::fmt;
use std::fs;
use std::str::FromStr;

use super::config::PeerAddress;

/// The first byte of the addresses that kvmprof makes: a locally administered address, and not that of a group.
const LOCAL: u8 = 0x02;
const GROUP_BIT: u8 = 0x01;

/// The MAC address of a network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddress(pub [u8; 6]);

/// A MAC address that can't be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMac {
    /// It doesn't have the form of a MAC address.
    #[error(
        "'{0}' is no MAC address: it must be six pairs of hexadecimal digits with colons between them, such as 02:00:00:00:00:01"
    )]
    Form(String),
    /// It is the address of a group, such as the broadcast address.
    #[error(
        "The MAC address {0} is that of a group: the first byte of a device's address must be even"
    )]
    Group(MacAddress),
    /// It is zero.
    #[error("The MAC address 00:00:00:00:00:00 is invalid")]
    Zero,
}

impl FromStr for MacAddress {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Self, BadMac> {
        let mut pairs = text.split(':');
        let mut bytes = [0; 6];
        for byte in &mut bytes {
            let pair = pairs.next().filter(|pair| {
                pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit())
            });
            let value = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
            *byte = value.ok_or_else(|| BadMac::Form(text.to_owned()))?;
        }
        if pairs.next().is_some() {
            return Err(BadMac::Form(text.to_owned()));
        }
        match bytes {
            [0, 0, 0, 0, 0, 0] => Err(BadMac::Zero),
            [first, ..] if first & GROUP_BIT != 0 => Err(BadMac::Group(Self(bytes))),
            _ => Ok(Self(bytes)),
        }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl MacAddress {
    /// The default address of a device that is connected to `peer`: always the same for the same peer on the
    /// same host, and most probably different for any other.
    #[must_use]
    pub fn of_peer(peer: &PeerAddress) -> Self {
        let place = match peer {
            PeerAddress::Tap(name) => format!("tap={name}"),
            PeerAddress::Socket(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("socket={}", path.display())
            }
        };
        Self::of_words(&[host_id().trim(), &place])
    }

    fn of_words(words: &[&str]) -> Self {
        // FNV-1a, 64 bits: the same in every version of this program.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in words.join("\n").bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        // Mixes the high bits into the low ones, too.
        let [a, b, c, d, e, f, g, h] = hash.to_le_bytes();
        Self([LOCAL, a ^ f, b ^ g, c ^ h, d, e])
    }
}

/// This host's id (machine-id(5)), or its name if it has no id. Empty if it has neither.
fn host_id() -> String {
    let read = |path| fs::read_to_string(path).ok();
    read("/etc/machine-id")
        .or_else(|| read("/proc/sys/kernel/hostname"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn addresses_round_trip() {
        for text in ["02:00:00:00:00:01", "52:54:00:ab:cd:ef"] {
            assert_eq!(text.parse::<MacAddress>().unwrap().to_string(), text);
        }
        let upper = "52:54:00:AB:CD:EF".parse::<MacAddress>().unwrap();
        assert_eq!(upper.0, [0x52, 0x54, 0, 0xab, 0xcd, 0xef]);
    }

    #[test]
    fn invalid_addresses_are_refused() {
        let few = ["", "1", "02:00:00:00:00", "02:00:00:00:00:1"];
        let many = ["02:00:00:00:00:01:02", "02:00:00:00:00:01 "];
        let wrong = [
            "02:00:00:00:00:+1",
            "02-00-00-00-00-01",
            "02:00:00:00:00:gg",
        ];
        for text in few.into_iter().chain(many).chain(wrong) {
            let form = BadMac::Form(text.to_owned());
            assert_eq!(text.parse::<MacAddress>(), Err(form), "{text}");
        }
        assert_eq!("00:00:00:00:00:00".parse::<MacAddress>(), Err(BadMac::Zero));
        let error = "ff:ff:ff:ff:ff:ff".parse::<MacAddress>().unwrap_err();
        assert!(error.to_string().contains("group"), "{error}");
    }

    #[test]
    fn addresses_by_path_are_stable_and_distinct() {
        let mut all = BTreeSet::new();
        for number in 0..1000 {
            let tap = PeerAddress::Tap(format!("tap{number}"));
            let socket = PeerAddress::Socket(format!("/run/passt{number}").into());
            for peer in [tap, socket] {
                let address = MacAddress::of_peer(&peer);
                assert_eq!(address, MacAddress::of_peer(&peer));
                assert_eq!(address.to_string().parse(), Ok(address));
                assert_eq!(address.0[0], LOCAL);
                assert!(all.insert(address.0), "{peer}");
            }
        }
        let words = MacAddress::of_words(&["host", "tap=tap0"]);
        assert_ne!(words, MacAddress::of_words(&["other", "tap=tap0"]));
    }

    #[test]
    fn a_relative_path_is_the_absolute_one() {
        let here = std::env::current_dir().unwrap().join("passt.sock");
        let addresses =
            ["passt.sock".into(), here].map(|path| MacAddress::of_peer(&PeerAddress::Socket(path)));
        assert_eq!(addresses[0], addresses[1]);
    }
}
