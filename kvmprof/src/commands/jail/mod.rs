//! `kvmprof jail`: runs `kvmprof run` with namespaces, a root folder, a user and limits of its own (`docs/jail.md`), as
//! Firecracker's jailer does.

mod background;
mod cgroup;
mod contents;
mod error;
mod limits;
mod mounts;
mod process;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, WithStatus, usage};
use kvmprof_machine::share::ShareHelper;
use kvmprof_sandbox::user::User;

use crate::child::End;
use crate::commands::parse_run;
use background::{Background, Side};
use cgroup::Cgroup;
use contents::Contents;
use limits::ResourceLimit;
use process::Start;

pub use contents::{Bind, Needs};

/// Run a guest as kvmprof run does, in namespaces, a folder and limits of its own and as another user
///
/// For guests that are distrusted, and hosts where no other program puts kvmprof into a container.
#[derive(Debug, Args)]
#[command(
    after_help = "The jail has its own mount, pid, ipc, uts and network namespaces. In it are DIR, in which outputs and sockets have \
    to be, and for reading the files that the options of run name; each under the name that it has outside. \
    Folders (run --share) are served by virtiofsd outside of it.\n\n\
    Exit status: that of kvmprof run, or 128 and the number of the signal that ended it; 1 if there is no jail.\n\n\
    Example: kvmprof jail --uid 1000 --gid 1000 --root /srv/guest -- run --kernel /boot/vmlinuz --socket /srv/guest/socket"
)]
pub struct JailArguments {
    /// The user that kvmprof run becomes: a number, not 0
    #[arg(long, value_name = "UID")]
    uid: u32,
    /// The group that it gets, and no other: a number, not 0
    #[arg(long, value_name = "GID")]
    gid: u32,
    /// The folder that it may write to: that user's. It is made if it isn't there
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// A further file or folder of the host that is in the jail, for reading; with :rw for writing too, such as a backing file of a disk
    #[arg(long = "bind", value_name = "PATH[:rw]")]
    binds: Vec<Bind>,
    /// A control group (cgroup v2), by its path below the root of that hierarchy. It is made, with the guest's memory and 512 MiB, a
    /// processor for each vCPU and one more, and 512 processes and threads as limits; and removed at the end
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// A network namespace, by its name (ip netns) or path, in place of a new one that has only the loopback interface
    #[arg(long, value_name = "NAME")]
    netns: Option<PathBuf>,
    /// A limit of the process: no-file=N descriptors (2048 without it), or fsize=BYTES of each file that it writes
    #[arg(long = "resource-limit", value_name = "NAME=VALUE")]
    limits: Vec<ResourceLimit>,
    /// Go into the background once the jail is there, and print the process id of what waits for its end; SIGTERM for that is SIGTERM for the guest.
    /// What kvmprof says on standard error goes nowhere if that is a terminal
    #[arg(long)]
    daemonize: bool,
    /// run and its options
    #[arg(last = true, required = true, value_name = "run OPTION...")]
    command: Vec<OsString>,
}

impl Command for JailArguments {
    /// Runs a guest in a jail until it ends.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        // The jail inherits no descriptors of the process that has started this command.
        kvmprof_sandbox::process::close_inherited(std::iter::empty())
            .context("Cannot close inherited files")?;
        if !self.daemonize {
            return self.run(None);
        }
        // SAFETY: the command has started no thread.
        let side = unsafe { background::begin() };
        match side.context("Cannot go into the background")? {
            Side::Background(background) => self.run(Some(background)),
            Side::Foreground(Ok(process)) => {
                let said = writeln!(console.text(), "{}", process.as_raw_nonzero());
                said.context("Cannot write the process id")?;
                Ok(ExitStatus::SUCCESS)
            }
            Side::Foreground(Err(status)) => Ok(status),
        }
    }
}

impl JailArguments {
    fn run(&self, background: Option<Background>) -> anyhow::Result<ExitStatus> {
        let user = User::new(self.uid, self.gid).map_err(usage)?;
        let run = parse_run(&self.command)?;
        if !rustix::process::geteuid().is_root() {
            anyhow::bail!(
                "kvmprof jail needs root, to make namespaces: start it as root (kvmprof in the jail isn't)"
            );
        }
        let needs = run.needs()?;
        let contents = Contents::new(&self.root, &self.binds, &needs, &user)?;
        let cgroup = self.cgroup.as_deref();
        let cgroup =
            cgroup.map(|path| Cgroup::make(path, run.guest().memory_bytes(), run.guest().cpus()));
        let cgroup = cgroup.transpose()?;
        let confine = || match &cgroup {
            Some(cgroup) => cgroup.enter().map_err(io::Error::other),
            None => Ok(()),
        };
        let virtiofsd = needs.virtiofsd.as_deref();
        // SAFETY: the command has started no thread.
        let shares = unsafe { ShareHelper::fork_outside(&needs.shares, virtiofsd, confine) }?;
        let start = Start {
            contents: &contents,
            user: &user,
            cgroup: cgroup.as_ref(),
            netns: self.netns.as_deref(),
            limits: &self.limits,
            shares: shares.as_ref(),
            command: &self.command,
        };
        let end = process::run(&start, background);
        // The process that serves folders is in the group, too.
        drop(shares);
        drop(cgroup);
        match end? {
            End::Exited(status) => Ok(ExitStatus::of_command(status)),
            End::Killed(signal) => Err(WithStatus {
                message: format!("Signal {signal} has ended kvmprof in the jail"),
                status: ExitStatus::of_command(signal.saturating_add(128)),
            }
            .into()),
        }
    }
}
