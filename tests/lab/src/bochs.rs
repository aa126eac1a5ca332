//! The Bochs that emulates lab machines with VT-x, which QEMU doesn't emulate.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

use crate::LabError;
use crate::machine::{self, COMMAND_LINE, InsideNeeds, Machine, RunningMachine, Streams};

const PROGRAM: &str = "bochs";
/// Its Debian packages: the program, a display for terminals, and firmware.
const PACKAGES: &str = "bochs bochs-term bochsbios vgabios";
/// Makes the image that it boots from.
const ISO_MAKER: &str = "xorriso";
/// The boot loader in the image.
const LOADER: [(&str, &str); 2] = [
    ("isolinux.bin", "/usr/lib/ISOLINUX/isolinux.bin"),
    ("ldlinux.c32", "/usr/lib/syslinux/modules/bios/ldlinux.c32"),
];

/// Instructions that Bochs executes in a second of the machine's time, so that time doesn't depend on the host. On a quiet host it is about real
/// time.
const INSTRUCTIONS_PER_SECOND: u32 = 100_000_000;
/// More words on the kernel's command line: the rate of the time-stamp counter, which counts instructions, and the end of a machine that panics,
/// which is a triple fault.
const WORDS: &str = "tsc_early_khz=100000 reboot=t,f 8250.nr_uarts=3";

/// What the machine's first process needs: KVM on Intel's VT-x, and a driver of the parallel ports.
pub(crate) const INSIDE: InsideNeeds = InsideNeeds {
    modules: &["kvm_intel"],
    streams: include_str!("bochs.sh"),
    program: (
        "/parallel_port",
        include_bytes!(concat!(env!("OUT_DIR"), "/parallel_port")),
    ),
};

/// Starts a machine.
///
/// # Errors
/// If a program or a file of a Debian package is missing, or the image or a stream can't be made.
pub(crate) fn start(machine: &Machine) -> Result<RunningMachine, LabError> {
    let image = boot_image(machine)?;
    let (streams, theirs) = streams().map_err(LabError::file("create", "a stream"))?;
    let settings = file_of(&settings(machine.memory, &image, &theirs))?;
    // Debian's Bochs has a debugger, which waits for a command to start.
    let orders = file_of("continue\n")?;
    let mut bochs = Command::new(PROGRAM);
    bochs
        .args(["-q", "-f", &path_of(&settings), "-rc", &path_of(&orders)])
        // The machine's screen isn't used. Its display doesn't start without a kind of terminal.
        .env("TERM", "vt100")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let inherited = theirs.iter().chain([&image, &settings, &orders]);
    machine::hand_over(&mut bochs, inherited.map(AsRawFd::as_raw_fd).collect());
    let child = started(bochs.spawn(), PROGRAM, PACKAGES)?;
    // Only Bochs's own copies of its ends are left, so that its end is noticed.
    Ok(RunningMachine { child, streams })
}

/// The settings (bochsrc(5)) of a machine with `memory` MiB. The processor is one whose CPUID says no rate of its time-stamp counter, since that
/// would be a real one's.
fn settings(memory: u64, image: &File, streams: &Streams) -> String {
    let [console, stdout, stderr, out, control] = streams.each_ref().map(path_of);
    let image = path_of(image);
    format!(
        "display_library: term
cpu: model=corei7_haswell_4770, ips={INSTRUCTIONS_PER_SECOND}, reset_on_triple_fault=0
clock: sync=none, time0=utc
memory: guest={memory}, host={memory}
ata0-master: type=cdrom, path={image}, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={console}
com2: enabled=1, mode=term, dev={control}
com3: enabled=1, mode=file, dev={stderr}
parport1: enabled=1, file={out}
parport2: enabled=1, file={stdout}
speaker: enabled=0
log: /dev/stderr
panic: action=fatal
error: action=ignore
info: action=ignore
"
    )
}

/// Makes an image of a CD with a boot loader, the kernel and the initramfs.
fn boot_image(machine: &Machine) -> Result<File, LabError> {
    let folder = tempfile::tempdir().map_err(LabError::file("create", "a temporary folder"))?;
    let place = |name: &str| folder.path().join(name);
    for (name, path) in LOADER {
        if !Path::new(path).is_file() {
            return Err(LabError::ProgramMissing {
                program: "ISOLINUX",
                package: "isolinux syslinux-common",
            });
        }
        symlink(path, place(name)).map_err(LabError::file("create", place(name)))?;
    }
    let kernel = machine.kernel.canonicalize();
    kernel
        .and_then(|kernel| symlink(kernel, place("vmlinuz")))
        .map_err(LabError::file("read", machine.kernel))?;
    fs::copy(path_of(&machine.initramfs), place("initrd"))
        .map_err(LabError::file("copy", "the initramfs"))?;
    let menu = format!(
        "default lab\nprompt 0\nlabel lab\nkernel vmlinuz\ninitrd initrd\nappend {COMMAND_LINE} {WORDS}\n"
    );
    fs::write(place("isolinux.cfg"), menu)
        .map_err(LabError::file("write", place("isolinux.cfg")))?;

    let image = temporary()?;
    let copy = image
        .try_clone()
        .map_err(LabError::file("share", "a temporary file"))?;
    let mut maker = Command::new(ISO_MAKER);
    maker
        .args(["-as", "mkisofs", "-quiet", "-o", "-"])
        .args(["-b", "isolinux.bin", "-c", "boot.cat"])
        .args(["-no-emul-boot", "-boot-load-size", "4", "-boot-info-table"])
        // Symbolic links are followed.
        .arg("-f")
        .arg(folder.path())
        .stdin(Stdio::null())
        .stdout(copy);
    let made = started(maker.output(), ISO_MAKER, ISO_MAKER)?;
    if !made.status.success() {
        return Err(LabError::Fetch {
            command: ISO_MAKER.to_owned(),
            message: String::from_utf8_lossy(&made.stderr).trim().to_owned(),
        });
    }
    Ok(image)
}

/// The host's ends of the streams, and Bochs's: pipes, and a terminal for control, which goes both ways.
fn streams() -> io::Result<(Streams, Streams)> {
    let pipe = || io::pipe().map(|(ours, theirs)| (file(ours), file(theirs)));
    let (console, stdout, stderr, out) = (pipe()?, pipe()?, pipe()?, pipe()?);
    let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    unlockpt(&control)?;
    let terminal = ptsname(&control, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = File::from(open(terminal, flags, Mode::empty())?);
    Ok((
        [console.0, stdout.0, stderr.0, out.0, file(control)],
        [console.1, stdout.1, stderr.1, out.1, terminal],
    ))
}

fn file(descriptor: impl Into<OwnedFd>) -> File {
    File::from(descriptor.into())
}

/// A file with this text, which needs no name.
fn file_of(text: &str) -> Result<File, LabError> {
    let mut file = temporary()?;
    file.write_all(text.as_bytes())
        .map_err(LabError::file("write", "a temporary file"))?;
    Ok(file)
}

fn temporary() -> Result<File, LabError> {
    tempfile::tempfile().map_err(LabError::file("create", "a temporary file"))
}

/// A path of this file for a program that inherits it.
fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The state of a program that should have been started.
fn started<T>(
    result: io::Result<T>,
    program: &'static str,
    package: &'static str,
) -> Result<T, LabError> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => LabError::ProgramMissing { program, package },
        _ => LabError::file("run", program)(error),
    })
}
