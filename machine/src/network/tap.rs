//! An existing tap interface of the host (kernel: Documentation/networking/tuntap.rst). Frames in the tap's file have a
//! virtio header, so that checksums and segmentation can be left to the host's kernel and to the guest.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use kvmprof_devices::virtio::net::{HEADER_SIZE, Link, Offloads, Sent};
use rustix::net::{AddressFamily, SocketType};
use vmm_sys_util::syscall::SyscallReturnCode;

use super::peer::{Peer, PeerLog, is_later};

const DEVICE: &str = "/dev/net/tun";

/// Why a tap interface can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// There is no such interface.
    #[error(
        "There is no network interface {name}; `ip tuntap add dev {name} mode tap user $USER` as root makes a tap"
    )]
    Missing {
        /// Its name.
        name: String,
    },
    /// The device of all taps can't be opened.
    #[error("Cannot open {DEVICE}, which the tap {name} needs")]
    Device {
        /// The interface's name.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The interface belongs to another user.
    #[error(
        "The tap {name} belongs to another user; `ip tuntap add dev {name} mode tap user $USER` as root makes one for you"
    )]
    Permission {
        /// Its name.
        name: String,
    },
    /// Another program has opened it.
    #[error("The tap {name} is in use by another program")]
    Busy {
        /// Its name.
        name: String,
    },
    /// The interface isn't a tap, or was made with other flags.
    #[error("The network interface {name} is no tap, or was made with other flags")]
    Kind {
        /// Its name.
        name: String,
    },
    /// The kernel refused another operation.
    #[error("The host refused the tap {name} ({operation})")]
    Refused {
        /// Its name.
        name: String,
        /// The operation.
        operation: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

/// An open tap. If it is removed, the guest's link stays down: a contained kvmprof may open no tap, since a process that may open one may open,
/// or make, any other.
pub struct TapPeer {
    file: Option<File>,
    faults: u64,
    complaints: PeerLog,
}

impl TapPeer {
    /// Opens the tap with this name.
    ///
    /// # Errors
    /// There is no such tap, it belongs to another user, or the host refuses it.
    pub fn open(name: &str) -> Result<Self, TapError> {
        let file = open(name)?;
        let mut tap = Self {
            file: Some(file),
            faults: 0,
            complaints: PeerLog::new(format!("tap={name}")),
        };
        tap.set_offloads(Offloads::default(), Offloads::default());
        Ok(tap)
    }

    fn lose(&mut self, why: impl std::fmt::Display) {
        if self.file.take().is_some() {
            self.complaints
                .say(format_args!("{why}; the guest's link stays down"));
        }
    }
}

impl Link for TapPeer {
    fn is_up(&self) -> bool {
        self.file.is_some()
    }

    /// Sets the offloads that the kernel may use for received frames. Frames that the guest sends have theirs in the header.
    fn set_offloads(&mut self, received: Offloads, _sent: Offloads) {
        let Some(file) = &self.file else { return };
        let Offloads {
            checksum,
            tso4,
            tso6,
            ecn,
        } = received;
        let bit = |on, bit| if on { bit } else { 0 };
        let bits = bit(checksum, libc::TUN_F_CSUM)
            | bit(tso4, libc::TUN_F_TSO4)
            | bit(tso6, libc::TUN_F_TSO6)
            | bit(ecn, libc::TUN_F_TSO_ECN);
        // SAFETY: the request takes a number, no pointer, and the file is open.
        let result = unsafe {
            libc::ioctl(
                file.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(bits),
            )
        };
        if result < 0 {
            self.faults += 1;
            let error = io::Error::last_os_error();
            self.complaints
                .say(format_args!("its offloads can't be set: {error}"));
        }
    }

    fn send(&mut self, packet: &[u8]) -> Sent {
        let Some(mut file) = self.file.as_ref() else {
            return Sent::Refused;
        };
        match file.write(packet) {
            Ok(_) => Sent::Done,
            Err(error) if is_later(&error) => Sent::Later,
            Err(error) if is_gone(&error) => {
                self.lose("the tap is gone");
                Sent::Refused
            }
            // The interface is down (EIO), or the frame is invalid (EINVAL).
            Err(_) => Sent::Refused,
        }
    }

    fn receive(&mut self, packet: &mut [u8]) -> Option<usize> {
        let mut file = self.file.as_ref()?;
        let room = packet.len();
        match file.read(packet) {
            Ok(0) => None,
            Ok(length) => Some(length.min(room)),
            Err(error) if is_later(&error) => None,
            Err(error) => {
                self.lose(format_args!("the tap is gone: {error}"));
                None
            }
        }
    }
}

impl Peer for TapPeer {
    fn offloads(&self) -> Offloads {
        Offloads::ALL
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    fn has_output(&self) -> bool {
        false
    }

    fn flush(&mut self) {}

    fn hang_up(&mut self) {
        self.lose("the tap is gone");
    }

    fn faults(&self) -> u64 {
        self.faults
    }
}

/// Whether the error says that the interface was removed.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADFD)
}

/// Opens the tap with this name, which has to exist: for root, the kernel would make one.
fn open(name: &str) -> Result<File, TapError> {
    if !exists(name).map_err(refused(name, "a socket"))? {
        return Err(TapError::Missing {
            name: name.to_owned(),
        });
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(DEVICE)
        .map_err(|source| TapError::Device {
            name: name.to_owned(),
            source,
        })?;
    let one_queue = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    attach(&file, name, one_queue)
        .or_else(|error| match error.raw_os_error() {
            // The tap was made for several queues, of which one is used.
            Some(libc::EINVAL) => attach(&file, name, one_queue | libc::IFF_MULTI_QUEUE),
            _ => Err(error),
        })
        .map_err(|error| refusal(name, error))?;
    let size = libc::c_int::try_from(HEADER_SIZE).unwrap_or_default();
    // SAFETY: the request reads an int, which lives as long as the call, and the file is open.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) };
    let set = SyscallReturnCode(result).into_empty_result();
    set.map_err(refused(name, "TUNSETVNETHDRSZ"))?;
    Ok(file)
}

fn exists(name: &str) -> io::Result<bool> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name).is_ok())
}

/// Connects the open file to the interface with this name (TUNSETIFF).
fn attach(file: &File, name: &str, flags: libc::c_int) -> io::Result<()> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: libc::c_short::try_from(flags).unwrap_or_default(),
        },
    };
    // The last byte stays NUL.
    let room = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
    for (target, byte) in room.zip(name.bytes()) {
        *target = libc::c_char::from_ne_bytes([byte]);
    }
    // SAFETY: the request reads and writes a struct ifreq, which lives as long as the call, and the file is open.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    SyscallReturnCode(result).into_empty_result()
}

/// The error for the kernel's answer to TUNSETIFF.
fn refusal(name: &str, error: io::Error) -> TapError {
    let owned = name.to_owned();
    match error.raw_os_error() {
        Some(libc::EPERM) => TapError::Permission { name: owned },
        Some(libc::EBUSY) => TapError::Busy { name: owned },
        Some(libc::EINVAL) => TapError::Kind { name: owned },
        _ => refused(name, "TUNSETIFF")(error),
    }
}

fn refused(name: &str, operation: &'static str) -> impl FnOnce(io::Error) -> TapError {
    let name = name.to_owned();
    move |source| TapError::Refused {
        name,
        operation,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tap_is_not_created() {
        let error = TapPeer::open("kvmprof-none").err().unwrap();
        assert!(matches!(error, TapError::Missing { .. }), "{error}");
        assert!(error.to_string().contains("ip tuntap add dev kvmprof-none"));
        assert!(!exists("kvmprof-none").unwrap());
    }

    #[test]
    fn the_kernels_refusals_have_reasons() {
        let refusal = |errno| refusal("tap0", io::Error::from_raw_os_error(errno)).to_string();
        assert!(refusal(libc::EPERM).contains("another user"));
        assert!(refusal(libc::EBUSY).contains("in use"));
        assert!(refusal(libc::EINVAL).contains("no tap"));
        assert!(refusal(libc::ENOMEM).contains("TUNSETIFF"));
    }
}
