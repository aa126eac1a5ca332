//! The QEMU that emulates lab machines: this host's, or a newer one from Debian's backports.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::kernels::{self, Kernel, backport};
use crate::machine::{self, COMMAND_LINE, InsideNeeds, Machine, RunningMachine, Streams};
use crate::{LabError, tsc};

const PROGRAM: &str = "qemu-system-x86_64";
/// The Debian package of QEMU, which also brings the libraries that a newer QEMU needs.
const PACKAGE: &str = "qemu-system-x86";
/// Packages with the firmware that a newer QEMU needs, and the folders of the firmware in them.
const FIRMWARE: [(&str, &str); 2] = [
    ("qemu-system-data", "usr/share/qemu"),
    ("seabios", "usr/share/seabios"),
];

/// All that QEMU can emulate, but for XSAVE and what needs it: KVM in the
/// machine isn't told of its guest's XSETBV, so that the guest finds a CPUID
/// that contradicts itself. Some kernels crash of that. And without fast copies
/// of bytes, for which kernels use `rep movsb`: emulated, it is slower than their loops.
const CPU: &str = "max,-xsave,-avx,-avx2,-f16c,-fma,-pku,-vaes,-vpclmulqdq,-fsrm,-erms";
/// A fifth level makes each walk of the machine's and its guests' page tables longer by nearly half, and all of a guest slower by a tenth.
const FOUR_LEVELS: &str = ",-la57";

/// The stream that is the serial console and no virtio port.
const CONSOLE: usize = 0;

/// What the machine's first process needs: the ports, KVM on AMD's SVM, which is what QEMU emulates, and the program that holds the lab
/// kernel's code still; see its source.
pub(crate) const INSIDE: InsideNeeds = InsideNeeds {
    modules: &["virtio_pci", "virtio_console", "kvm_amd"],
    streams: include_str!("qemu.sh"),
    program: (
        "/keeper",
        include_bytes!(concat!(env!("OUT_DIR"), "/keeper")),
    ),
};

/// A version's first two numbers.
type Version = (u32, u32);

/// The first version in which an emulated CPU sees code at once that another one has written. In older versions, a kernel with two CPUs
/// that patches itself may execute an `int3` that is no longer there, and panics (QEMU's commit cb62bd15e14e, "accel/tcg: Always lock pages
/// before translation").
const FIRST_SOUND: Version = (8, 1);

/// A QEMU on this host.
pub(crate) struct Qemu {
    program: PathBuf,
    /// Folders with its firmware, if QEMU doesn't find it by itself.
    firmware: Vec<PathBuf>,
}

impl Qemu {
    /// Finds this host's QEMU if it is new enough, or else fetches that of Debian's backports on first use. If that fails, returns this
    /// host's after all, with a message.
    ///
    /// # Errors
    /// If this host has no QEMU.
    pub fn find() -> Result<Self, LabError> {
        let own = Self {
            program: PROGRAM.into(),
            firmware: Vec::new(),
        };
        let version = own.version().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LabError::ProgramMissing {
                program: PROGRAM,
                package: PACKAGE,
            },
            _ => LabError::file("run", PROGRAM)(error),
        })?;
        let Some((major, minor)) = version.filter(|version| *version < FIRST_SOUND) else {
            return Ok(own);
        };
        let newer = Self::of_backports().and_then(|newer| match newer.version() {
            Ok(Some(version)) if version >= FIRST_SOUND => Ok(newer),
            Ok(_) => Err(LabError::Fetch {
                command: format!("{} --version", newer.program.display()),
                message: "it doesn't run here, or is as old".to_owned(),
            }),
            Err(error) => Err(LabError::file("run", &newer.program)(error)),
        });
        newer.or_else(|failure| {
            eprintln!("lab: {failure}");
            eprintln!(
                "lab: QEMU {major}.{minor} is older than {}.{}: kernels with several CPUs panic in it now and then",
                FIRST_SOUND.0, FIRST_SOUND.1
            );
            Ok(own)
        })
    }

    fn of_backports() -> Result<Self, LabError> {
        let firmware = FIRMWARE.map(|(package, folder)| Ok(backport(package)?.join(folder)));
        Ok(Self {
            program: backport(PACKAGE)?.join("usr/bin").join(PROGRAM),
            firmware: firmware.into_iter().collect::<Result<_, LabError>>()?,
        })
    }

    /// Starts a machine.
    ///
    /// # Errors
    /// If a stream can't be made, or QEMU can't be started.
    pub fn start(&self, machine: &Machine) -> Result<RunningMachine, LabError> {
        let (streams, theirs) = stream_pairs()?;
        let levels = if machine.has_five_levels {
            ""
        } else {
            FOUR_LEVELS
        };
        let cpu = format!("{CPU}{levels}");
        let initramfs = machine.initramfs.as_raw_fd();
        let mut qemu = self.command();
        // Not microvm, though it boots quicker: one boot in ten hangs there.
        qemu.args(["-machine", "q35,sata=off,smm=off,smbus=off,vmport=off"])
            .args(["-accel", "tcg,thread=multi", "-cpu", &cpu])
            .args(["-smp", &machine.cpus.to_string()])
            .args(["-m", &format!("{}M", machine.memory)])
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-monitor", "none"])
            .args(["-append", &command_line()])
            .arg("-kernel")
            .arg(machine.kernel)
            .args(["-initrd", &format!("/proc/self/fd/{initramfs}")])
            .args(["-device", "virtio-serial-pci"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut inherited = vec![initramfs];
        for (number, stream) in theirs.iter().enumerate() {
            let stream = stream.as_raw_fd();
            inherited.push(stream);
            qemu.args(["-chardev", &format!("socket,id=stream{number},fd={stream}")]);
            if number == CONSOLE {
                qemu.args(["-serial", &format!("chardev:stream{number}")]);
            } else {
                let port = format!("virtserialport,nr={number},chardev=stream{number}");
                qemu.args(["-device", &port]);
            }
        }
        machine::hand_over(&mut qemu, inherited);
        let child = qemu.spawn().map_err(LabError::file("run", &self.program))?;
        // Only QEMU's own copies of its ends are left, so that its end is seen.
        Ok(RunningMachine { child, streams })
    }

    /// A command that starts QEMU.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        for folder in &self.firmware {
            command.arg("-L").arg(folder);
        }
        command
    }

    /// The version that QEMU prints; `None` if it isn't understood.
    fn version(&self) -> io::Result<Option<Version>> {
        let said = Command::new(&self.program).arg("--version").output()?;
        Ok(version_in(&String::from_utf8_lossy(&said.stdout)))
    }
}

/// The QEMU of Debian's backports, which is that of Debian's next release: its program, and the folders with its firmware. Fetched on first use.
///
/// # Errors
/// If a package cannot be fetched.
pub fn newer_qemu() -> Result<(PathBuf, Vec<PathBuf>), LabError> {
    let Qemu { program, firmware } = Qemu::of_backports()?;
    Ok((program, firmware))
}

/// The kernel's command line with the rate of the time-stamp counter, in kHz. On a busy host a kernel that measures that itself, by devices that
/// QEMU emulates, has been seen to be wrong by a factor of 40: all guests of such a machine have clocks that run too fast by as much,
/// and get nowhere for timers.
fn command_line() -> String {
    format!(
        "{COMMAND_LINE} 8250.nr_uarts=1 tsc_early_khz={}",
        tsc::rate_khz()
    )
}

/// The host's ends of the streams, and QEMU's. The latter are in the order in which the first process numbers its ports.
fn stream_pairs() -> Result<(Streams, [UnixStream; 5]), LabError> {
    let pair = || UnixStream::pair().map_err(LabError::file("create", "a socket pair"));
    let (a, b, c, d, e) = (pair()?, pair()?, pair()?, pair()?, pair()?);
    let ours = [a.0, b.0, c.0, d.0, e.0].map(|stream| File::from(OwnedFd::from(stream)));
    Ok((ours, [a.1, b.1, c.1, d.1, e.1]))
}

/// The version in `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`.
fn version_in(said: &str) -> Option<Version> {
    let (_, version) = said.split_once("version ")?;
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

/// Fetches all packages that the lab uses, so that nothing later needs apt.
///
/// # Errors
/// As for [`kernels::kernels`].
pub fn fetch() -> Result<Vec<Kernel>, LabError> {
    kernels::busybox()?;
    kernels::passt()?;
    Qemu::find()?;
    kernels::kernels()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b2)\nCopyright";
        assert_eq!(version_in(debian), Some((7, 2)));
        let newer = version_in("QEMU emulator version 10.0.2 (Debian)").unwrap();
        assert!(newer >= FIRST_SOUND);
        assert_eq!(version_in("QEMU emulator version ten"), None);
        assert_eq!(version_in(""), None);
    }

    #[test]
    fn firmware_is_named_before_the_machine() {
        let qemu = Qemu {
            program: PROGRAM.into(),
            firmware: vec!["/a".into(), "/b".into()],
        };
        let command = qemu.command();
        let words: Vec<_> = command.get_args().collect();
        assert_eq!(words, ["-L", "/a", "-L", "/b"]);
    }
}
