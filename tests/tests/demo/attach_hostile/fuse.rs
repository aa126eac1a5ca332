//! Guests with memory in a file of FUSE whose program doesn't answer.
//!
//! That program is this test program, started again, which speaks FUSE's protocol (`include/uapi/linux/fuse.h`). Its file isn't mounted at any path
//! of the host: when the process ends, the file is gone, and its waiters get an error.

use std::env;
use std::fs::File;
use std::io::{self, Read, Write, stdin};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{self, Child, ChildStdin, Command, Stdio};

use kvmprof_tests::{not_run, on_kvm, until};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use rustix::process::Signal;

use super::vmm::{Answers, REPLACED, Vmm, answers_of, say};
use super::{Attachment, sampled};

/// Set in the process that is the file system.
const IS_FILE_SYSTEM: &str = "KVMPROF_TEST_FUSE";

/// The version of the protocol, which each kernel from 5.10 on has.
const VERSION: [u32; 2] = [7, 31];
/// Bytes that the kernel may read ahead, and that it may write at once, which it doesn't.
const READ_AHEAD: u32 = 128 << 10;
const MAX_WRITE: u32 = 4096;
/// Bytes of the buffer for requests, which are much shorter.
const REQUEST: usize = 64 << 10;
/// The numbers of the root and of the file in it.
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// How long the kernel may cache attributes, in seconds: for longer than a test takes.
const VALID: u64 = 1 << 20;
/// Errors for a missing FUSE, or one that this process may not use.
const NO_FUSE: [i32; 6] = [
    libc::ENOENT,
    libc::ENODEV,
    libc::ENXIO,
    libc::ENOSYS,
    libc::EPERM,
    libc::EACCES,
];

mod code {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
}

/// The main function of the file system's process.
#[test]
fn the_file_system() {
    if env::var_os(IS_FILE_SYSTEM).is_none() {
        return;
    }
    match mount() {
        Ok((device, root)) => {
            let (pid, root) = (process::id(), root.as_raw_fd());
            say(&format!("file /proc/{pid}/fd/{root}/memory"));
            FileSystem { device }.serve();
        }
        Err(error) if error.raw_os_error().is_some_and(|it| NO_FUSE.contains(&it)) => {
            say(&format!("This host gives no file system of FUSE: {error}"));
        }
        Err(error) => panic!("{error}"),
    }
}

/// Mounts a file system at no path. Returns its device and its root.
fn mount() -> io::Result<(File, OwnedFd)> {
    let device = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/fuse")?;
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let number = device.as_raw_fd().to_string();
    for (key, value) in [
        ("fd", number.as_str()),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
    ] {
        fsconfig_set_string(&context, key, value)?;
    }
    fsconfig_create(&context)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let root = fsmount(&context, flags, MountAttrFlags::empty())?;
    Ok((device, root))
}

/// A request of the kernel: its kind, number and inode.
struct Request {
    code: u32,
    unique: u64,
    node: u64,
}

impl Request {
    /// From a `struct fuse_in_header`.
    fn decode(bytes: &[u8]) -> Self {
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        Self {
            code: u32::from_ne_bytes(bytes[4..8].try_into().unwrap()),
            unique: long(8),
            node: long(16),
        }
    }
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn longs<const N: usize>(longs: [u64; N]) -> Vec<u8> {
    longs.into_iter().flat_map(u64::to_ne_bytes).collect()
}

/// `struct fuse_attr` of the root or of the file.
fn attributes(node: u64) -> Vec<u8> {
    let (size, mode) = match node {
        ROOT => (0, libc::S_IFDIR | 0o755),
        _ => (REPLACED, libc::S_IFREG | 0o600),
    };
    // No times; one link, of root.
    let mut bytes = longs([node, size, size / 512, 0, 0, 0]);
    bytes.extend(words([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
    bytes
}

/// The file system, which answers all requests except reads.
struct FileSystem {
    device: File,
}

impl FileSystem {
    /// Serves until the test has ended. On request, it stops taking requests; it reports reads.
    fn serve(&self) {
        let input = stdin();
        let (mut takes, mut watched) = (true, 2);
        loop {
            let mut ends = [
                PollFd::new(&input, PollFlags::IN),
                PollFd::new(&self.device, PollFlags::IN),
            ];
            poll(&mut ends[..watched], None).unwrap();
            let [is_told, is_asked] = ends.map(|end| !end.revents().is_empty());
            if is_told {
                if input.read_line(&mut String::new()).unwrap() == 0 {
                    return;
                }
                takes = false;
                say("done");
            } else if is_asked && takes {
                self.take();
            } else if is_asked {
                // The file is open already: it is a read.
                say("asked");
                watched = 1;
            }
        }
    }

    /// Takes a request, and answers it.
    fn take(&self) {
        let mut bytes = vec![0; REQUEST];
        match (&self.device).read(&mut bytes) {
            Ok(length) => self.answer(&Request::decode(&bytes[..length])),
            // Its caller no longer waits.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOENT)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn answer(&self, request: &Request) {
        let body = match request.code {
            code::READ => return say("asked"),
            // These have no answer.
            code::FORGET | code::BATCH_FORGET | code::INTERRUPT => return,
            code::INIT => {
                let [major, minor] = VERSION;
                let begin = words([major, minor, READ_AHEAD, 0, 0, MAX_WRITE]);
                [begin, words([0; 10])].concat()
            }
            code::LOOKUP => [longs([FILE, 0, VALID, VALID, 0]), attributes(FILE)].concat(),
            code::GETATTR => [longs([VALID, 0]), attributes(request.node)].concat(),
            code::OPEN => longs([0; 2]),
            _ => return self.write(request.unique, -libc::ENOSYS, &[]),
        };
        self.write(request.unique, 0, &body);
    }

    /// Writes an answer: a `struct fuse_out_header`, and what follows.
    fn write(&self, unique: u64, error: i32, body: &[u8]) {
        let length = u32::try_from(16 + body.len()).unwrap();
        let mut bytes = words([length, error.cast_unsigned()]);
        bytes.extend(longs([unique]));
        bytes.extend(body);
        // It accepts a complete answer only.
        (&self.device).write_all(&bytes).unwrap();
    }
}

/// The file system's process as the test sees it, which is killed when this is dropped.
struct FileServer {
    child: Child,
    input: ChildStdin,
    answers: Answers,
    /// The path of its file.
    file: String,
}

impl FileServer {
    /// Starts it. Without FUSE, returns that error.
    fn start() -> Result<Self, String> {
        let test = "attach_hostile::fuse::the_file_system";
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--nocapture", "--exact", test])
            .env(IS_FILE_SYSTEM, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut server = Self {
            input: child.stdin.take().unwrap(),
            answers: answers_of(&mut child),
            child,
            file: String::new(),
        };
        let answer = server.answers.next().unwrap();
        match answer.strip_prefix("file ") {
            Some(file) => {
                server.file = file.to_owned();
                Ok(server)
            }
            None => Err(answer),
        }
    }

    /// Has it stop taking requests.
    fn stop_taking(&mut self) {
        writeln!(self.input, "stop").unwrap();
        assert_eq!(self.answers.next().as_deref(), Some("done"));
    }

    /// Waits until the file is being read.
    fn until_asked(&mut self) {
        assert_eq!(self.answers.next().as_deref(), Some("asked"));
    }

    fn end(&mut self) {
        // It may have ended, and been waited for, already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// kvmprof, which waits for the file while the vCPU that it has stopped doesn't run.
struct BlockedAttachment {
    // Dropped first: until then nothing else may end.
    server: FileServer,
    attached: Attachment,
    vmm: Vmm,
}

impl BlockedAttachment {
    /// `None` without FUSE. The file system takes kvmprof's request, if it takes any, and doesn't answer it.
    fn start(takes: bool) -> Option<Self> {
        let (vmm, attached) = sampled("ptrace");
        let server = match FileServer::start() {
            Ok(server) => server,
            Err(why) => {
                not_run(&why);
                return None;
            }
        };
        let mut waiting = Self {
            server,
            attached,
            vmm,
        };
        let open = format!("open {}", waiting.server.file);
        waiting.vmm.tell(&open);
        if !takes {
            waiting.server.stop_taking();
        }
        waiting.vmm.tell("map-opened");
        waiting.server.until_asked();
        waiting.until_still();
        Some(waiting)
    }

    /// Waits until the vCPU hasn't run for many readings in a row.
    fn until_still(&self) {
        let (mut looks, mut last) = (0, 0);
        until("the vCPU stands still", || {
            let time = self.vmm.vcpu_time();
            let is_still = self.vmm.is_traced() && time == last;
            (looks, last) = (if is_still { looks + 1 } else { 0 }, time);
            (looks >= 300).then_some(())
        });
    }

    /// Presses Ctrl-C until kvmprof ends by force, or would.
    fn interrupt(&self) {
        until("kvmprof ends by force", || {
            self.attached.guest.signal(Signal::INT);
            let said = self.attached.guest.stderr();
            said.contains("ended by force").then_some(())
        });
    }

    /// Waits until kvmprof has ended and the vCPU runs again.
    fn until_over(&mut self) {
        let ran = self.attached.guest.wait();
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(!ran.stderr.contains("panicked"), "{ran:?}");
        let before = self.vmm.vcpu_time();
        until("the vCPU goes on", || {
            let has_run = self.vmm.vcpu_time() > before + 100_000_000;
            (has_run && !self.vmm.is_traced()).then_some(())
        });
        assert!(self.vmm.is_running());
    }
}

/// Like a program that is stopped, or blocked itself.
#[test]
fn a_second_interrupt_ends_it_before_its_request_is_read() {
    on_kvm(|| {
        let Some(mut waiting) = BlockedAttachment::start(false) else {
            return;
        };
        waiting.interrupt();
        waiting.until_over();
    });
}

/// kvmprof ends nevertheless. The host's kernel doesn't end its blocked thread in the tracer, which keeps the vCPU stopped.
#[test]
fn a_request_that_was_read_is_waited_for() {
    on_kvm(|| {
        let Some(mut waiting) = BlockedAttachment::start(true) else {
            return;
        };
        waiting.interrupt();
        until("kvmprof ends", || {
            waiting.attached.guest.has_ended().then_some(())
        });
        waiting.until_still();
        waiting.server.end();
        waiting.until_over();
    });
}
