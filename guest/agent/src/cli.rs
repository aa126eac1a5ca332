//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use crate::agent::{Agent, Settings};
use crate::cuse::Permissions;
use crate::daemon::{Process, Readiness, go_to_background};
use crate::port::PortLocation;
use crate::{kernel_log, other};

/// Makes /dev/pcs, /dev/prf, /dev/prf0.., /dev/profil and /dev/pmc in a guest of kvmprof's
///
/// Ends when the nodes are there, and goes on serving them in the background. Messages go to the
/// kernel's log (dmesg).
#[derive(Debug, Parser)]
#[command(name = "pcsd", version)]
pub struct Arguments {
    /// Stay in the foreground, for systemd and the like
    #[arg(long)]
    foreground: bool,
    /// The port to kvmprof: a device node, or a Unix socket [default: the port named kvmprof.0]
    #[arg(long, value_name = "PATH")]
    port: Option<PathBuf>,
    /// Permissions of the nodes, in octal; those of /dev/profil and /dev/pmc are always 0666
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = parse_mode)]
    mode: u32,
    /// Group of the nodes but /dev/profil and /dev/pmc, a name or a number
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// How long to wait for the port and for kvmprof
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=3600))]
    wait: u64,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode & !0o777 == 0 => Ok(mode),
        _ => Err("permissions are octal, 0 to 0777".to_owned()),
    }
}

/// The file with the numbers of groups (group(5)).
const GROUPS: &str = "/etc/group";

/// The number of a group.
fn group_id(group: &str) -> anyhow::Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let groups =
        std::fs::read_to_string(GROUPS).with_context(|| format!("Cannot read {GROUPS}"))?;
    find_group(&groups, group).with_context(|| format!("There is no group {group} in {GROUPS}"))
}

fn find_group(groups: &str, group: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// Does what the command line says. Returns whether this succeeded.
///
/// # Errors
/// Any error that keeps the nodes from being made or served.
pub fn run(arguments: Arguments) -> anyhow::Result<bool> {
    kernel_log::start(arguments.foreground);
    let settings = Settings {
        port: arguments
            .port
            .map_or(PortLocation::Named, PortLocation::Path),
        permissions: Permissions {
            mode: arguments.mode,
            group: arguments.group.as_deref().map(group_id).transpose()?,
        },
        attach_timeout: Duration::from_secs(arguments.wait),
    };
    let readiness = if arguments.foreground {
        Readiness::Foreground
    } else {
        match go_to_background().context("Cannot go to the background")? {
            Process::Started { success } => return Ok(success),
            Process::Background(readiness) => readiness,
        }
    };
    let mut agent = Agent::start(settings).map_err(|error| match other::running() {
        Some(pid) => error.context(format!("Another pcsd runs, process {pid}")),
        None => error,
    })?;
    readiness.tell().context("Cannot go to the background")?;
    agent.run()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::nodes::Node;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_help_names_all_nodes_and_those_with_fixed_permissions() {
        let command = Arguments::command();
        let about = command.get_about().unwrap().to_string();
        let help_of = |option: &str| {
            let mut arguments = command.get_arguments();
            let argument = arguments.find(|argument| argument.get_id().as_str() == option);
            argument.unwrap().get_help().unwrap().to_string()
        };
        for node in Node::all(1) {
            let path = format!("/dev/{}", node.name);
            assert!(about.contains(&path), "{path}: {about}");
            for option in ["mode", "group"] {
                let help = help_of(option);
                let is_named = help.contains(&path);
                assert_eq!(is_named, node.is_for_everybody(), "{path}: {help}");
            }
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("0660"), Ok(0o660));
        for wrong in ["", "8", "1777", "rw", "-1"] {
            assert!(parse_mode(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn groups_may_be_numbers() {
        let groups = "root:x:0:\nprofilers:x:77:joe,ann\nbroken\nworse:x:y:\n";
        assert_eq!(find_group(groups, "profilers"), Some(77));
        for none in ["profiler", "broken", "worse", "x", ""] {
            assert_eq!(find_group(groups, none), None, "{none:?}");
        }
        assert_eq!(group_id("1234").unwrap(), 1234);
    }
}
