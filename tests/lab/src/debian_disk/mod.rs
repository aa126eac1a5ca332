//! A disk with a whole Debian system, made of Debian's packages.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use crate::{LabError, cache_folder};

/// The packages in it: systemd, those for a login and a network, and fio.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,udev,kmod,iproute2,wget,fio,\
    linux-image-cloud-amd64,initramfs-tools,zstd,login,procps,e2fsprogs";
const CUSTOMIZE: &str = include_str!("customize.sh");
const MAKE_IMAGE: &str = include_str!("image.sh");
/// The file system's size, in bytes.
const BYTES: u64 = 2 << 30;
/// Leaves out documentation and translations, which only make the disk larger.
const OPTIONS: [&str; 8] = [
    "--variant=minbase",
    "--quiet",
    "--format=tar",
    r#"--aptopt=Acquire::Languages "none""#,
    r#"--aptopt=APT::Install-Recommends "false""#,
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
];
const SUITE: [&str; 2] = ["bookworm", "http://deb.debian.org/debian"];

/// A Debian 12 system: `root` logs in on the serial port without a password, and a network device gets its address by DHCP.
#[derive(Debug, Clone)]
pub struct DebianDisk {
    /// The disk, a qcow2 image with an ext4 file system and no partitions.
    pub image: PathBuf,
    /// The kernel that is installed in it.
    pub kernel: PathBuf,
    /// That kernel's initial RAM disk.
    pub initrd: PathBuf,
}

/// The disk in the cache folder. It is made on first use, and again after its recipe has changed. Copy it before it is written.
///
/// # Errors
/// If a program is missing (`mmdebstrap`, `mkfs.ext4`, `qemu-img`, and `fakeroot` for users other than root), or fails.
pub fn debian_disk() -> Result<DebianDisk, LabError> {
    let cache = cache_folder()?;
    fs::create_dir_all(&cache).map_err(LabError::file("create", &cache))?;
    let lock = cache.join(".debian-disk.lock");
    let lock_file = File::create(&lock).map_err(LabError::file("create", &lock))?;
    flock(&lock_file, FlockOperation::LockExclusive)
        .map_err(|error| LabError::file("lock", &lock)(error.into()))?;
    let folder = cache.join("debian-disk");
    if fs::read_to_string(folder.join("recipe")).ok() != Some(recipe()) {
        make(&cache, &folder)?;
    }
    Ok(DebianDisk {
        image: folder.join("debian.qcow2"),
        kernel: folder.join("vmlinuz"),
        initrd: folder.join("initrd.img"),
    })
}

/// Everything on which the disk depends, except for the versions of packages.
fn recipe() -> String {
    let options = OPTIONS.join(" ");
    let suite = SUITE.join(" ");
    format!("{options}\n{PACKAGES}\n{suite}\n{BYTES}\n{CUSTOMIZE}\n{MAKE_IMAGE}")
}

/// Makes the disk beside its final place, and then moves it there as a whole.
fn make(cache: &Path, folder: &Path) -> Result<(), LabError> {
    let work = tempfile::Builder::new()
        .prefix(".debian-disk-")
        .tempdir_in(cache)
        .map_err(LabError::file("create a folder in", cache))?;
    eprintln!("lab: making a disk of Debian's packages, which takes a minute or two");
    let archive = work.path().join("root.tar");
    run(Command::new("mmdebstrap")
        .args(OPTIONS)
        .arg(format!("--include={PACKAGES}"))
        .arg(format!("--customize-hook={CUSTOMIZE}"))
        .arg(SUITE[0])
        .arg(&archive)
        .arg(SUITE[1]))?;
    // Only root can unpack files of other owners; fakeroot remembers the owners that they would have.
    let mut shell = if rustix::process::geteuid().is_root() {
        Command::new("sh")
    } else {
        let mut command = Command::new("fakeroot");
        command.arg("sh");
        command
    };
    run(shell
        .args(["-c", MAKE_IMAGE, "sh"])
        .arg(work.path())
        .arg(BYTES.to_string()))?;
    let written = work.path().join("recipe");
    fs::write(&written, recipe()).map_err(LabError::file("write", &written))?;
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(LabError::file("remove", folder))?;
    }
    let made = work.keep();
    fs::rename(&made, folder).map_err(LabError::file("create", folder))
}

fn run(command: &mut Command) -> Result<(), LabError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |message: String| LabError::Fetch {
        command: program.clone(),
        message,
    };
    let needed = "apt-get install mmdebstrap e2fsprogs qemu-utils fakeroot";
    let ran = command
        .output()
        .map_err(|error| failed(format!("{error}: {needed}")))?;
    match ran.status.code() {
        Some(0) => Ok(()),
        // The status with which a shell reports a missing program.
        Some(127) => Err(failed(format!(
            "{}: {needed}",
            String::from_utf8_lossy(&ran.stderr).trim()
        ))),
        _ => Err(failed(
            String::from_utf8_lossy(&ran.stderr).trim().to_owned(),
        )),
    }
}
