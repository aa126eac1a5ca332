//! Processes, as /proc describes them. A process may end at any moment: then results are `None` or empty.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::io::Errno;

/// Maximum number of bytes of a command line that are read.
const MAX_COMMAND_LINE: u64 = 1 << 20;
const MAX_GROUPS: u64 = 64 << 10;
/// Maximum number of bytes of the list of mounts that are read: the root is among the first.
const MAX_MOUNTS: u64 = 1 << 20;
/// Maximum number of descriptors of guests and vCPUs of one process; each takes some 15 us. A guest has 4096 vCPUs at most.
const MAX_DESCRIPTORS: usize = 1 << 14;

/// Fields of a process's or a thread's status (proc_pid_stat(5)): the first one behind the name, and two more.
const STATE: usize = 3;
const FLAGS: usize = 9;
const START_TIME: usize = 22;
/// Flags of threads that the kernel runs its own code in (`PF_IO_WORKER` and `PF_USER_WORKER`, `include/linux/sched.h`).
const IO_WORKER: u32 = 0x10;
const USER_WORKER: u32 = 0x4000;
/// `include/uapi/linux/kvm.h`
const KVM_RUN: u64 = 0xae80;

/// The object behind a descriptor of KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A guest (KVM_CREATE_VM).
    Guest,
    /// The guest's vCPU with this id (KVM_CREATE_VCPU).
    Vcpu(u32),
    /// /dev/sev: the process makes encrypted guests.
    Sev,
}

/// A descriptor of KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub number: i32,
    pub kind: Kind,
}

/// The kind of a descriptor, by its link in /proc/PID/fd (`virt/kvm/kvm_main.c`: names of anonymous inodes). No file has such
/// a link: the links of files begin with a slash.
pub fn kind(link: &[u8]) -> Option<Kind> {
    match link {
        b"anon_inode:kvm-vm" => return Some(Kind::Guest),
        b"/dev/sev" => return Some(Kind::Sev),
        _ => {}
    }
    let index = link.strip_prefix(b"anon_inode:kvm-vcpu:")?;
    number(index).map(Kind::Vcpu)
}

fn number<T: FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn folder(pid: i32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// The entries of `folder` whose names are numbers.
fn numbers(folder: &Path) -> io::Result<impl Iterator<Item = i32> + use<>> {
    use std::os::unix::ffi::OsStrExt;
    let entries = fs::read_dir(folder)?;
    Ok(entries.filter_map(|entry| number(entry.ok()?.file_name().as_bytes())))
}

/// All processes.
pub fn pids() -> Vec<i32> {
    numbers(Path::new("/proc")).map_or_else(|_| Vec::new(), Iterator::collect)
}

/// The threads of a process.
pub fn threads(pid: i32) -> Vec<i32> {
    let found = numbers(&folder(pid).join("task"));
    found.map_or_else(|_| Vec::new(), Iterator::collect)
}

/// The numbers of all descriptors that a process holds.
///
/// # Errors
/// This process may not open their folder, or the other one has ended.
pub fn open_descriptors(pid: i32) -> io::Result<impl Iterator<Item = i32>> {
    numbers(&folder(pid).join("fd"))
}

/// The descriptors of KVM that a process holds, in order.
///
/// # Errors
/// This process may not look, or the other one has ended.
pub fn descriptors(pid: i32) -> io::Result<Vec<Descriptor>> {
    let folder = folder(pid).join("fd");
    let mut found = Vec::new();
    for number in open_descriptors(pid)? {
        match rustix::fs::readlink(folder.join(number.to_string()), Vec::new()) {
            Ok(link) => found.extend(kind(link.as_bytes()).map(|kind| Descriptor { number, kind })),
            // The folder can be readable where its links aren't.
            Err(error @ (Errno::ACCESS | Errno::PERM)) => return Err(error.into()),
            // It was closed meanwhile.
            Err(_) => {}
        }
        if found.len() == MAX_DESCRIPTORS {
            break;
        }
    }
    found.sort_unstable_by_key(|descriptor| descriptor.number);
    Ok(found)
}

/// Whether descriptor `number` of a process is a guest.
pub fn is_guest(pid: i32, number: i32) -> bool {
    let link = folder(pid).join("fd").join(number.to_string());
    let link = rustix::fs::readlink(link, Vec::new());
    link.is_ok_and(|link| kind(link.as_bytes()) == Some(Kind::Guest))
}

/// When a process was started, in clock ticks since the host's start. With the pid, this distinguishes processes that
/// have the same pid one after the other.
pub fn start_time(pid: i32) -> Option<u64> {
    stat_field(&fs::read(folder(pid).join("stat")).ok()?, START_TIME)
}

/// The user that a process runs as: its real uid. The owner of its folder in /proc can be another one: a process can make that root (proc_pid(5)).
pub fn user(pid: i32) -> Option<u32> {
    let status = fs::read(folder(pid).join("status")).ok()?;
    // The name, which comes first, has no line ends (proc_pid_status(5)).
    let mut lines = status.split(|byte| *byte == b'\n');
    let users = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let mut users = users
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    number(users.next()?)
}

/// A field of the status of a process or a thread, by its number in proc_pid_stat(5). It must be behind the name.
fn stat_field<T: FromStr>(stat: &[u8], field: usize) -> Option<T> {
    // The name is in parentheses and can have any characters, also parentheses.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let behind = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let index = field.checked_sub(STATE)?;
    behind.split_ascii_whitespace().nth(index)?.parse().ok()
}

/// The name of the program that a process runs: that of its file, or else the name that the process has given itself.
pub fn program(pid: i32) -> Option<String> {
    let folder = folder(pid);
    if let Ok(file) = fs::read_link(folder.join("exe"))
        && let Some(name) = file.file_name()
    {
        let name = name.to_string_lossy();
        let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
        return Some(name.to_owned());
    }
    let comm = fs::read(folder.join("comm")).ok()?;
    Some(String::from_utf8_lossy(&comm).trim_end().to_owned())
}

/// A process's arguments, with a NUL behind each.
pub fn command_line(pid: i32) -> Vec<u8> {
    read(pid, "cmdline", MAX_COMMAND_LINE)
}

/// The control groups of a process (proc_pid_cgroup(5)), or the first part of them.
pub fn groups(pid: i32) -> Vec<u8> {
    read(pid, "cgroup", MAX_GROUPS)
}

/// The path of the folder that a process works in; empty if this process may not know.
pub fn folder_of(pid: i32) -> Vec<u8> {
    let link = rustix::fs::readlink(folder(pid).join("cwd"), Vec::new());
    link.map_or_else(|_| Vec::new(), CString::into_bytes)
}

/// The first `max` bytes of a file of a process.
fn read(pid: i32, name: &str, max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(folder(pid).join(name)) {
        // An error may cut the file: the process could have changed it as well.
        let _ = file.take(max).read_to_end(&mut bytes);
    }
    bytes
}

/// The path of a process's root, as seen from this process's root. It is `/`, too, if the process has other mounts.
pub fn root(pid: i32) -> Option<Vec<u8>> {
    let link = rustix::fs::readlink(folder(pid).join("root"), Vec::new());
    link.ok().map(CString::into_bytes)
}

/// The list of a process's mounts (proc_pid_mountinfo(5)), or the first part of it.
pub fn mounts(pid: i32) -> Vec<u8> {
    read(pid, "mountinfo", MAX_MOUNTS)
}

/// Whether this process may read the memory of another one.
pub fn can_read_memory(pid: i32) -> bool {
    File::open(folder(pid).join("mem")).is_ok()
}

/// The descriptor of the vCPU that a thread is running just now, as /proc/PID/task/TID/syscall shows it.
pub fn running_vcpu(pid: i32, tid: i32) -> Option<i32> {
    let folder = folder(pid).join("task").join(tid.to_string());
    let call = fs::read_to_string(folder.join("syscall")).ok()?;
    let descriptor = running_vcpu_of(&call)?;
    // KVM's own worker in the VMM (kvm-nx-lpage-recovery) has the registers of the thread that made it, and so shows the same system call.
    let flags: u32 = stat_field(&fs::read(folder.join("stat")).ok()?, FLAGS)?;
    (flags & (IO_WORKER | USER_WORKER) == 0).then_some(descriptor)
}

/// The result of [`running_vcpu`] from the file's contents (proc_pid_syscall(5)): the call's number and its arguments.
fn running_vcpu_of(call: &str) -> Option<i32> {
    let mut words = call.split_ascii_whitespace();
    let mut word = || words.next();
    let hexadecimal = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let call: libc::c_long = word()?.parse().ok()?;
    let descriptor = hexadecimal(word()?)?;
    let is_run = call == libc::SYS_ioctl && hexadecimal(word()?)? == KVM_RUN;
    is_run.then_some(i32::try_from(descriptor).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_links_of_kvm_match() {
        assert_eq!(kind(b"anon_inode:kvm-vm"), Some(Kind::Guest));
        assert_eq!(kind(b"anon_inode:kvm-vcpu:11"), Some(Kind::Vcpu(11)));
        assert_eq!(kind(b"/dev/sev"), Some(Kind::Sev));
        for other in [
            b"anon_inode:kvm-vm-stats".as_slice(),
            b"anon_inode:kvm-vcpu-stats:0",
            b"anon_inode:kvm-vcpu:",
            b"anon_inode:kvm-vcpu:-1",
            b"anon_inode:kvm-vcpu:99999999999",
            b"/home/anon_inode:kvm-vm",
            b"/dev/kvm",
            b"",
        ] {
            assert_eq!(kind(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn a_start_time_is_parsed_after_any_process_name() {
        let stat = b"7 (a) 1 2) S 1 7 7 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 1 0 98765 1 2\n";
        assert_eq!(stat_field(stat, START_TIME), Some(98_765_u64));
        assert_eq!(stat_field(stat, FLAGS), Some(4_194_560_u32));
        assert_eq!(stat_field::<u64>(b"7 (a) S 1", START_TIME), None);
        assert_eq!(stat_field::<u64>(b"", START_TIME), None);
    }

    #[test]
    fn a_threads_system_call_gives_its_vcpu() {
        let line = "16 0x1b 0xae80 0x0 0x0 0x0 0x0 0x7f0 0x7f1\n";
        assert_eq!(running_vcpu_of(line), Some(27));
        for other in [
            "16 0x1b 0xae81 0x0\n",
            "17 0x1b 0xae80 0x0\n",
            "16 0x1ffffffff 0xae80 0x0\n",
            "running\n",
            "-1 0x7f 0x0",
            "16 0x1b",
            "16",
            "",
        ] {
            assert_eq!(running_vcpu_of(other), None, "{other}");
        }
    }

    #[test]
    fn this_process_is_listed() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(pids().contains(&own));
        assert!(threads(own).contains(&rustix::thread::gettid().as_raw_nonzero().get()));
        assert!(start_time(own).is_some());
        assert_eq!(user(own), Some(rustix::process::getuid().as_raw()));
        assert!(program(own).unwrap().starts_with("kvmprof_attach"));
        assert!(command_line(own).ends_with(b"\0"));
        assert!(can_read_memory(own));
        assert_eq!(descriptors(own).unwrap(), []);
    }
}
