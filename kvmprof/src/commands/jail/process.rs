//! The process in the jail, which is the first one of its pid namespace, and the process outside, which waits for its end.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use anyhow::{Context, anyhow};
use kvmprof_machine::share::ShareHelper;
use kvmprof_sandbox::user::User;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::background::Background;
use super::cgroup::Cgroup;
use super::contents::Contents;
use super::error::failed_with;
use super::limits::{self, ResourceLimit};
use super::mounts;
use crate::child::{BlockedSignals, End, PassOn};
use crate::commands::options_of_jail;

/// The namespaces that every jail has.
const NAMESPACES: i32 =
    libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
/// The host name in the jail.
const HOST_NAME: &[u8] = b"kvmprof";
/// The folder of the namespaces of `ip netns`.
const NAMED_NAMESPACES: &str = "/run/netns";
/// Maximum length of a message about a failure to make the jail, in bytes.
const MESSAGE_MAX: u64 = 64 << 10;

/// The program to run, and its jail.
pub struct Start<'a> {
    /// The jail's files.
    pub contents: &'a Contents,
    /// The user that the process becomes.
    pub user: &'a User,
    /// Its control group.
    pub cgroup: Option<&'a Cgroup>,
    /// An existing network namespace; `None` for a new one.
    pub netns: Option<&'a Path>,
    /// Limits of the process in addition to the usual one.
    pub limits: &'a [ResourceLimit],
    /// Starts virtiofsd outside.
    pub shares: Option<&'a ShareHelper>,
    /// The arguments of kvmprof in the jail.
    pub command: &'a [OsString],
}

/// Runs kvmprof in a jail, and waits for its end, in the background if that is given.
///
/// # Errors
/// The jail can't be made. Nothing is left of it then.
pub fn run(start: &Start<'_>, background: Option<Background>) -> anyhow::Result<End> {
    let program = File::open("/proc/self/exe").context("Cannot open kvmprof's own program")?;
    let network = start.netns.map(network_namespace).transpose()?;
    let (mut errors, say) = pipe().context("Cannot make a pipe")?;
    let (alive, keep) = pipe().context("Cannot make a pipe")?;
    let signals = BlockedSignals::block().context("Cannot block signals")?;
    let flags = NAMESPACES
        | match network {
            Some(_) => 0,
            None => libc::CLONE_NEWNET,
        };
    // SAFETY: the call is like fork(2) of a process with one thread, whose stack is copied.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0) };
    match i32::try_from(child) {
        Ok(0) => {
            drop((errors, keep));
            let why = in_jail(
                start,
                &program,
                network.as_ref(),
                &alive,
                &signals,
                background.as_ref(),
            );
            give_reason(say, &why);
        }
        Ok(child @ 1..) => {
            drop((say, alive, program, network));
            if let Some(shares) = start.shares {
                shares.leave();
            }
            let mut why = String::new();
            // The pipe is closed when the program is executed.
            let read = (&mut errors).take(MESSAGE_MAX).read_to_string(&mut why);
            read.context("Cannot hear of the jail")?;
            let child = Pid::from_raw(child).context("Cannot hear of the jail")?;
            if let Some(background) = background.filter(|_| why.is_empty())
                && let Err(error) = background.started()
            {
                log::warn!("The jail's terminal can't be left: {error}");
            }
            // The child has a session of its own, and gets no signals from the terminal.
            let ended = signals.wait(child, PassOn::All);
            drop(keep);
            match why.is_empty() {
                true => Ok(ended.context("Cannot wait for the jail")?.0),
                false => Err(anyhow!(why)),
            }
        }
        _ => Err(anyhow!(
            "The jail can't be made: the host refuses namespaces: {}; root in a container may lack the rights: start it on the host",
            io::Error::last_os_error()
        )),
    }
}

/// Ends the process in the jail after an error.
fn give_reason(mut say: PipeWriter, why: &anyhow::Error) -> ! {
    // This fails only if the process outside is gone.
    let _ = write!(say, "{why:#}");
    // SAFETY: the call ends the process at once. Functions that are registered for the exit belong to the other process.
    unsafe { libc::_exit(1) }
}

/// Enters the jail and executes the program. Returns only on an error.
fn in_jail(
    start: &Start<'_>,
    program: &File,
    network: Option<&File>,
    alive: &PipeReader,
    signals: &BlockedSignals,
    background: Option<&Background>,
) -> anyhow::Error {
    let shares = start.shares.map(ShareHelper::hand_over).transpose();
    let entered = enter(start, network, alive, signals);
    let left = background.map(Background::leave_terminal).transpose();
    match (entered, shares, left) {
        (Ok(()), Ok(shares), Ok(_)) => execute(program, start.command, &options_of_jail(shares)),
        (Err(error), _, _) => error,
        (_, Err(error), _) | (_, _, Err(error)) => error.into(),
    }
}

fn enter(
    start: &Start<'_>,
    network: Option<&File>,
    alive: &PipeReader,
    signals: &BlockedSignals,
) -> anyhow::Result<()> {
    if let Some(network) = network {
        // SAFETY: the call takes a descriptor and a number.
        check(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) })
            .context("The jail can't be made: --netns names no network namespace")?;
    }
    if let Some(cgroup) = start.cgroup {
        cgroup.enter()?;
    }
    mounts::enter(start.contents, start.user)?;
    // SAFETY: the call reads as many bytes as its argument says.
    check(unsafe { libc::sethostname(HOST_NAME.as_ptr().cast(), HOST_NAME.len()) })
        .context("The jail can't be made: its host name is refused")?;
    // The jail may lack the working folder.
    let _ = std::env::set_current_dir(&start.contents.working);
    rustix::process::setsid().ok();
    limits::set(start.limits).context("The jail can't be made: a limit is refused")?;
    (start.user.become_for_good()).context("The jail can't be made: its user is refused")?;
    rustix::thread::set_no_new_privs(true)?;
    end_with_parent(alive)?;
    signals.restore()?;
    Ok(())
}

/// Makes sure that this process is killed when the process outside ends, in whatever way.
fn end_with_parent(alive: &PipeReader) -> anyhow::Result<()> {
    // SAFETY: the call takes a number. A change of the user would undo it, so the user has to be set before.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    let mut fds = [PollFd::new(alive, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default()))?;
    match fds.iter().all(|fd| fd.revents().is_empty()) {
        true => Ok(()),
        false => Err(anyhow!("kvmprof jail has been killed")),
    }
}

/// Executes the program with these arguments, more options, and no environment. Returns only on an error.
fn execute(program: &File, arguments: &[OsString], options: &[OsString]) -> anyhow::Error {
    let words = [OsString::from("kvmprof")];
    let words = words.iter().chain(arguments).chain(options);
    let words: Result<Vec<CString>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let words = match words {
        Ok(words) => words,
        Err(error) => return error.into(),
    };
    let pointers = words.iter().map(|word| word.as_ptr());
    let pointers: Vec<_> = pointers.chain([ptr::null()]).collect();
    let environment = [ptr::null::<libc::c_char>()];
    // SAFETY: the words and both lists end with zeros and live as long as the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            pointers.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    anyhow!(
        "The jail's user can't execute kvmprof: {}; make its program executable for all: chmod a+rx",
        io::Error::last_os_error()
    )
}

fn network_namespace(name: &Path) -> anyhow::Result<File> {
    let path = match name.components().count() {
        1 if name.is_relative() => Path::new(NAMED_NAMESPACES).join(name),
        _ => name.to_owned(),
    };
    let advice = "`ip netns add NAME` makes one";
    Ok(File::open(&path).map_err(failed_with(
        "cannot open the network namespace",
        &path,
        advice,
    ))?)
}

fn check(result: i32) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
