//! The guest that a command is for: all commands find it here.

mod attached;
mod machines;

use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use clap::Args;
use kvmprof_attach::Machine;
use kvmprof_cli::command_line::{Console, SocketArgs, usage};
use kvmprof_client::{Connection, live_sockets};
use kvmprof_report::text::visible;

use attached::Attached;
pub use machines::{find_machine, find_machine_or_only};

/// The guest of a command: its argument, or the option `--socket`.
#[derive(Args, Clone, Debug, Default)]
pub struct TargetArgs {
    /// The guest: its name, the pid of its VMM (see kvmprof list), or the path of a socket, with a slash in it. If not given, the
    /// only one that runs
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    #[command(flatten)]
    socket: SocketArgs,
}

/// A connection to what samples a guest.
pub struct Guest {
    connection: Connection,
    /// What this process has started to sample the guest of another VMM. It ends when this is dropped.
    _attached: Option<Attached>,
}

impl Deref for Guest {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// What was found of a guest.
enum FoundGuest {
    /// A kvmprof serves it.
    Served(Connection),
    /// Nobody samples it yet.
    Machine(Box<Machine>),
}

impl TargetArgs {
    /// The guest that an option of another name has named, if it has.
    pub fn of_option(target: Option<String>, socket: SocketArgs) -> Self {
        Self { target, socket }
    }

    /// Whether an argument or an option names a guest; the environment doesn't count.
    pub fn is_named(&self) -> bool {
        self.target.is_some() || self.socket.named().is_some()
    }

    /// Connects to the guest. One that another VMM runs is attached to until the result is dropped, so that it can be sampled by its exits if it is to be
    /// sampled `by_event`.
    ///
    /// # Errors
    /// [`UsageError`](kvmprof_cli::command_line::UsageError) if no guest is named and there isn't just one; it isn't found, can't be attached
    /// to, or doesn't answer.
    pub fn connect(&self, by_event: bool, console: &mut Console<'_>) -> anyhow::Result<Guest> {
        let (connection, attached) = match self.find()? {
            FoundGuest::Served(connection) => (connection, None),
            FoundGuest::Machine(machine) => {
                let machine = machines::without_obstacle(*machine)?;
                let (connection, attached) = attached::attach(&machine, by_event, console)?;
                (connection, Some(attached))
            }
        };
        Ok(Guest {
            connection,
            _attached: attached,
        })
    }

    /// Connects to what samples a guest already.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect); or nobody samples it.
    pub fn connect_served(&self) -> anyhow::Result<Connection> {
        match self.find()? {
            FoundGuest::Served(connection) => Ok(connection),
            FoundGuest::Machine(machine) => Err(usage(format_args!(
                "Nobody samples the guest of process {}: kvmprof attach does, and kvmprof record and top do by themselves",
                machines::in_words(&machine)
            ))),
        }
    }

    /// Connects to a guest that kvmprof runs: guests of other VMMs lack what the command `command` is for.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect); or another VMM runs it.
    pub fn connect_own(&self, command: &str) -> anyhow::Result<Connection> {
        if self.target.is_none() {
            return self.socket.connect();
        }
        match self.find()? {
            FoundGuest::Served(connection) => Ok(connection),
            FoundGuest::Machine(machine) => Err(usage(format_args!(
                "kvmprof {command} is for guests of kvmprof run that have a --name or a --socket, which process {} has not: see kvmprof list",
                machines::in_words(&machine)
            ))),
        }
    }

    /// The process of the guest's VMM, as PID:START_TIME, for what sees the guest from outside.
    ///
    /// # Errors
    /// [`UsageError`](kvmprof_cli::command_line::UsageError) if the guest is named by a socket, which another process may serve; there isn't just one, or it can't be
    /// attached to.
    pub fn process(&self) -> anyhow::Result<String> {
        let machine = match self.target.as_deref() {
            Some(target) if !target.contains('/') => machines::named(target)?,
            None if self.socket.path().is_none() => machines::only()?,
            _ => {
                return Err(usage(
                    "--exits needs the guest's name or its VMM's pid, as kvmprof list shows them, not a socket",
                ));
            }
        };
        let machine = machines::without_obstacle(machine)?;
        Ok(format!("{}:{}", machine.pid, machine.start_time))
    }

    fn find(&self) -> anyhow::Result<FoundGuest> {
        let served = live_sockets();
        let Some(target) = self.target.as_deref() else {
            if self.socket.path().is_some() || !served.is_empty() {
                return Ok(FoundGuest::Served(self.socket.connect()?));
            }
            return self.by_machine(machines::only()?, &served);
        };
        if let Some(socket) = self.socket.named() {
            return Err(usage(format_args!(
                "Both {} and --socket {} name a guest: give one of them",
                visible(target),
                socket.display()
            )));
        }
        if target.contains('/') {
            return self.by_socket(Path::new(target));
        }
        // A number is always a pid: who starts a guest chooses its name.
        if machines::process_of(target).is_none()
            && let Some(socket) = named(&served, target)
        {
            return self.by_socket(socket);
        }
        self.by_machine(machines::named(target)?, &served)
    }

    fn by_socket(&self, path: &Path) -> anyhow::Result<FoundGuest> {
        Ok(FoundGuest::Served(self.socket.connect_to(path)?))
    }

    /// The machine, or the connection to a kvmprof that serves it at one of the sockets `served`.
    fn by_machine(&self, machine: Machine, served: &[PathBuf]) -> anyhow::Result<FoundGuest> {
        // Another user's VMM may call itself anything.
        let is_own_program =
            machine.program == "kvmprof" && machine.user == rustix::process::geteuid().as_raw();
        let own = (machine.name.as_deref()).filter(|_| is_own_program);
        if let Some(socket) = own.and_then(|name| named(served, name)) {
            return self.by_socket(socket);
        }
        // Nobody listens at one that a killed program has left.
        let attached = attached::socket(machine.pid).ok();
        let attached = attached.and_then(|socket| self.socket.connect_to(&socket).ok());
        Ok(match attached {
            Some(connection) => FoundGuest::Served(connection),
            None => FoundGuest::Machine(Box::new(machine)),
        })
    }
}

/// The socket of this name.
fn named<'a>(sockets: &'a [PathBuf], name: &str) -> Option<&'a Path> {
    let mut sockets = sockets.iter().map(PathBuf::as_path);
    sockets.find(|socket| socket.file_stem() == Some(OsStr::new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_names() {
        let sockets = ["/run/kvmprof/db.sock", "/run/kvmprof/db2.sock"].map(PathBuf::from);
        assert_eq!(named(&sockets, "db"), Some(&*sockets[0]));
        assert_eq!(named(&sockets, "d"), None);
        assert_eq!(named(&sockets, "db.sock"), None);
    }
}
