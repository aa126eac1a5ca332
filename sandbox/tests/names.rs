//! Each kind of thread, taken over, tries each call with a path that changes or reads files: beside, below and above the folder of an output. Each attempt is in a
//! process of its own, contained as a guest's is, with no file to read but one.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use kvmprof_sandbox::filters::{STATUS, call_name, prepare};
use kvmprof_sandbox::paths::{Restricted, Use, restrict};
use kvmprof_sandbox::{Mode, Thread, enter};

/// An attempt's status if the kernel has refused it with EACCES, if it was made, and if it has another error.
const REFUSED: i32 = 10;
const MADE: i32 = 11;
const OTHER: i32 = 12;

const AT: u64 = libc::AT_FDCWD.cast_unsigned() as u64;
const LOCK: u64 = (libc::O_CREAT | libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK) as u64;
const READ: u64 = libc::O_RDONLY as u64;
const WRITE: u64 = libc::O_WRONLY as u64;
const TRUNCATE: u64 = libc::O_TRUNC as u64;
const PIPE: u64 = libc::S_IFIFO as u64;

/// The addresses of what a call reads.
struct CallAddresses {
    /// A file that is there.
    file: u64,
    /// A name at which nothing is.
    free: u64,
    /// An address of a Unix socket, that of the file.
    address: u64,
    /// `struct open_how` for writing.
    how: u64,
}

type Arguments = fn(&CallAddresses) -> [u64; 6];

/// `struct open_how`: flags, mode, and how the path is followed.
static HOW: [u64; 3] = [(libc::O_WRONLY | libc::O_CREAT) as u64, 0o600, 0];

/// The calls by their names, with their arguments.
const CALLS: &[(&str, Arguments)] = &[
    ("open", |it| [it.file, LOCK, 0o600, 0, 0, 0]),
    ("open", |it| [it.free, LOCK, 0o600, 0, 0, 0]),
    ("open", |it| [it.file, READ, 0, 0, 0, 0]),
    ("creat", |it| [it.free, 0o600, 0, 0, 0, 0]),
    ("openat", |it| [AT, it.file, READ, 0, 0, 0]),
    ("openat", |it| [AT, it.file, WRITE, 0, 0, 0]),
    ("openat", |it| [AT, it.file, TRUNCATE, 0, 0, 0]),
    ("openat", |it| [AT, it.free, LOCK, 0o600, 0, 0]),
    ("openat2", |it| [AT, it.file, it.how, 24, 0, 0]),
    ("openat2", |it| [AT, it.free, it.how, 24, 0, 0]),
    ("rename", |it| [it.file, it.free, 0, 0, 0, 0]),
    ("renameat", |it| [AT, it.file, AT, it.free, 0, 0]),
    ("renameat2", |it| [AT, it.file, AT, it.free, 0, 0]),
    ("link", |it| [it.file, it.free, 0, 0, 0, 0]),
    ("linkat", |it| [AT, it.file, AT, it.free, 0, 0]),
    ("symlink", |it| [it.file, it.free, 0, 0, 0, 0]),
    ("symlinkat", |it| [it.file, AT, it.free, 0, 0, 0]),
    ("unlink", |it| [it.file, 0, 0, 0, 0, 0]),
    ("unlinkat", |it| [AT, it.file, 0, 0, 0, 0]),
    ("rmdir", |it| [it.file, 0, 0, 0, 0, 0]),
    ("mkdir", |it| [it.free, 0o700, 0, 0, 0, 0]),
    ("mkdirat", |it| [AT, it.free, 0o700, 0, 0, 0]),
    ("mknod", |it| [it.free, PIPE, 0, 0, 0, 0]),
    ("mknodat", |it| [AT, it.free, PIPE, 0, 0, 0]),
    ("truncate", |it| [it.file, 0, 0, 0, 0, 0]),
    ("chmod", |it| [it.file, 0o777, 0, 0, 0, 0]),
    ("fchmodat", |it| [AT, it.file, 0o777, 0, 0, 0]),
    ("chown", |it| [it.file, 1, 1, 0, 0, 0]),
    ("lchown", |it| [it.file, 1, 1, 0, 0, 0]),
    ("fchownat", |it| [AT, it.file, 1, 1, 0, 0]),
    ("utimensat", |it| [AT, it.file, 0, 0, 0, 0]),
    ("setxattr", |it| [it.file, it.free, it.free, 1, 0, 0]),
    ("bind", |it| [0, it.address, 110, 0, 0, 0]),
    ("connect", |it| [0, it.address, 110, 0, 0, 0]),
    ("sendto", |it| [0, it.file, 1, 0, it.address, 110]),
    ("execve", |it| [it.file, 0, 0, 0, 0, 0]),
    ("execveat", |it| [AT, it.file, 0, 0, 0, 0]),
    ("chdir", |it| [it.file, 0, 0, 0, 0, 0]),
    ("chroot", |it| [it.file, 0, 0, 0, 0, 0]),
    ("mount", |it| [it.file, it.file, 0, libc::MS_BIND, 0, 0]),
    ("name_to_handle_at", |it| [AT, it.file, it.free, 0, 0, 0]),
    ("inotify_add_watch", |it| [0, it.file, u64::MAX, 0, 0, 0]),
    ("readlink", |it| [it.file, it.free, 0, 0, 0, 0]),
    ("readlinkat", |it| [AT, it.file, it.free, 0, 0, 0]),
    ("stat", |it| [it.file, 0, 0, 0, 0, 0]),
    ("lstat", |it| [it.file, 0, 0, 0, 0, 0]),
    ("newfstatat", |it| [AT, it.file, 0, 0, 0, 0]),
    ("access", |it| [it.file, 0, 0, 0, 0, 0]),
    ("faccessat", |it| [AT, it.file, 0, 0, 0, 0]),
    ("faccessat2", |it| [AT, it.file, 0, 0, 0, 0]),
    ("statfs", |it| [it.file, 0, 0, 0, 0, 0]),
];

/// Calls that reach other processes, the network, the host's settings or rarely used parts of its kernel: no table has them, whatever the arguments.
const OUTWARD: [(&str, &str); 5] = [
    (
        "Processes and threads: made, traced, read, written to, signalled, given other rights",
        "clone vfork ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_open pidfd_getfd \
        pidfd_send_signal tkill rt_sigqueueinfo rt_tgsigqueueinfo prlimit64 setpriority sched_setscheduler \
        sched_setattr ioprio_set migrate_pages move_pages",
    ),
    (
        "Its own rights, and memory that is executed",
        "setuid setresuid setgid setgroups setfsuid capset prctl arch_prctl personality pkey_mprotect \
        remap_file_pages modify_ldt landlock_restrict_self",
    ),
    (
        "The network, and other sockets",
        "socketpair listen accept sendmmsg recvmmsg",
    ),
    (
        "Parts of the kernel by which others get around filters, or which had many faults",
        "io_uring_setup io_uring_enter userfaultfd bpf memfd_create memfd_secret open_by_handle_at keyctl \
        add_key request_key fanotify_init splice vmsplice tee io_setup shmget msgget semget mq_open",
    ),
    (
        "Namespaces, mounts, and the host itself",
        "setns unshare umount2 pivot_root fsopen open_tree move_mount mount_setattr quotactl swapon reboot \
        sethostname settimeofday clock_settime adjtimex syslog acct iopl ioperm finit_module delete_module \
        kexec_file_load",
    ),
];

/// The number of the call with this name.
fn number_of(name: &str) -> i64 {
    let found = (0..1000).find(|number| call_name(*number) == Some(name));
    found.unwrap_or_else(|| panic!("there is no {name}"))
}

/// Whether the thread's table has the call with these arguments, so that it is Landlock's to refuse it.
fn is_in_table(thread: Thread, call: i64, arguments: &[u64; 6]) -> bool {
    match call {
        libc::SYS_openat => arguments[2] == READ,
        libc::SYS_openat2 => thread == Thread::BinariesWithSysroot,
        _ => false,
    }
}

/// The folder of an output, with files and a socket beside it, in a folder below it and above it.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("folder/inner")).unwrap();
        fs::write(tree.path().join("readable"), "readable").unwrap();
        for place in Self::PLACES {
            fs::write(tree.path().join(place).join("file"), "content").unwrap();
        }
        symlink("file", tree.path().join("folder/link")).unwrap();
        drop(UnixListener::bind(tree.path().join("folder/socket")).unwrap());
        Self(tree)
    }

    /// Beside the output, below its folder, and above it.
    const PLACES: [&str; 3] = ["folder", "folder/inner", ""];

    /// Of everything in it: its path, owner, mode, size, times and content.
    fn state(&self) -> Vec<String> {
        let mut folders = vec![self.0.path().to_owned()];
        let mut state = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let found = fs::symlink_metadata(&path).unwrap();
                let content = fs::read(&path).ok();
                let times = (found.mtime_nsec(), found.ctime_nsec());
                let rights = (found.uid(), found.mode(), found.nlink(), times);
                state.push(format!("{path:?} {rights:?} {content:?}"));
                if found.is_dir() {
                    folders.push(path);
                }
            }
        }
        state.sort();
        state
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Makes the call on a contained thread of a new process, and returns its status.
fn attempt(thread: Thread, call: i64, arguments: &[u64; 6], readable: &Path) -> i32 {
    // SAFETY: the child takes no lock of another thread: what it calls locks nothing but the allocator, which fork(2) of the C library leaves usable.
    match unsafe { libc::fork() } {
        0 => {
            let restricted = restrict(&[(readable.to_owned(), Use::Read)]);
            if !matches!(restricted, Ok(Restricted::Fully | Restricted::Partly)) {
                // SAFETY: it ends this process.
                unsafe { libc::_exit(REFUSED) };
            }
            enter(thread);
            let [a, b, c, d, e, f] = *arguments;
            // SAFETY: the test fails if the call is made, and none of these changes memory of this process.
            let made = unsafe { libc::syscall(call, a, b, c, d, e, f) };
            let status = match (made, io::Error::last_os_error().raw_os_error()) {
                (0.., _) => MADE,
                (_, Some(libc::EACCES)) => REFUSED,
                _ => OTHER,
            };
            // SAFETY: as above.
            unsafe { libc::_exit(status) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the call writes the status.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(waited, child);
            assert!(libc::WIFEXITED(status), "{status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn no_thread_changes_or_reads_a_file_by_its_path() {
    let tree = Tree::new();
    let readable = tree.0.path().join("readable");
    prepare(Mode::On, || {}).unwrap();
    let before = tree.state();
    let mut refused_by_landlock = 0;
    for place in Tree::PLACES {
        let place = tree.0.path().join(place);
        let (file, free) = (c_path(&place.join("file")), c_path(&place.join("free")));
        let mut address = [0_u8; 110];
        let family = libc::AF_UNIX.to_le_bytes();
        address[..2].copy_from_slice(&family[..2]);
        address[2..2 + file.as_bytes().len()].copy_from_slice(file.as_bytes());
        let words = CallAddresses {
            file: file.as_ptr() as u64,
            free: free.as_ptr() as u64,
            address: address.as_ptr() as u64,
            how: HOW.as_ptr() as u64,
        };
        for (name, arguments) in CALLS {
            let (call, arguments) = (number_of(name), arguments(&words));
            for thread in Thread::ALL {
                let status = attempt(thread, call, &arguments, &readable);
                let what = format!("{thread:?}, {name} {arguments:x?} in {}", place.display());
                if is_in_table(thread, call, &arguments) {
                    assert_eq!(status, REFUSED, "{what}");
                    refused_by_landlock += 1;
                } else {
                    assert_eq!(status, STATUS, "{what}");
                }
            }
        }
    }
    assert_eq!(tree.state(), before);
    // That of each kind for reading, and two by the structure.
    assert_eq!(refused_by_landlock, 3 * (Thread::ALL.len() + 2));
    // What may be read is read: it isn't the harness that refuses everything.
    let open = c_path(&readable);
    let arguments = [AT, open.as_ptr() as u64, 0, 0, 0, 0];
    let status = attempt(Thread::Events, libc::SYS_openat, &arguments, &readable);
    assert_eq!(status, MADE);
}

/// Each kind of thread ends its process when it makes one.
#[test]
fn no_thread_makes_a_call_that_leads_out_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    prepare(Mode::On, || {}).unwrap();
    for name in OUTWARD.iter().flat_map(|(_, names)| names.split(' ')) {
        for thread in Thread::ALL {
            let status = attempt(thread, number_of(name), &[0; 6], folder.path());
            assert_eq!(status, STATUS, "{thread:?}, {name}");
        }
    }
    // Other threads' processors: a few may choose their own.
    let affinity = libc::SYS_sched_setaffinity;
    for thread in Thread::ALL {
        let status = attempt(thread, affinity, &[1, 0, 0, 0, 0, 0], folder.path());
        assert_eq!(status, STATUS, "{thread:?}");
    }
}
