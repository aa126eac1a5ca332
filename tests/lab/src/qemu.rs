//! The QEMU that emulates lab machines: this host's, or a newer one from Debian's backports.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::LabError;
use crate::kernels::backport;

const PROGRAM: &str = "qemu-system-x86_64";
/// The Debian package of QEMU, which also brings the libraries that a newer QEMU needs.
const PACKAGE: &str = "qemu-system-x86";
/// Packages with the firmware that a newer QEMU needs, and the folders of the firmware in them.
const FIRMWARE: [(&str, &str); 2] = [
    ("qemu-system-data", "usr/share/qemu"),
    ("seabios", "usr/share/seabios"),
];

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

    /// The path of its program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A command that starts QEMU. The caller adds the machine's options.
    pub fn command(&self) -> Command {
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

/// The version in `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`.
fn version_in(said: &str) -> Option<Version> {
    let (_, version) = said.split_once("version ")?;
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
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
