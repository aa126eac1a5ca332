//! The help of `kvmprof record`: what is asked for most, in groups, and everything with `--help-all`.

use clap::{Arg, ArgAction, Command};

/// The options of the short help by their groups. Those of a guest that is started have theirs already.
const GROUPS: [(&str, &[&str]); 4] = [
    ("When it ends", &["seconds", "until"]),
    (
        "What is sampled",
        &["hz", "event", "pid", "stacks", "tasks", "exits"],
    ),
    ("What comes of it", &["output", "html", "open"]),
    (
        super::STARTED,
        &[
            "kernel", "initrd", "root", "exec", "cmdline", "memory", "cpus", "console",
        ],
    ),
];
/// What the short help has beside these.
const OTHERS: [&str; 3] = ["target", "socket", "version"];

/// The command with both helps.
pub fn with_groups(command: Command) -> Command {
    let group = |option: &Arg| {
        let has = |(_, names): &&(&str, &[&str])| names.contains(&option.get_id().as_str());
        GROUPS.iter().find(has).map(|(heading, _)| *heading)
    };
    let in_group = move |option: Arg| match group(&option) {
        Some(heading) => option.help_heading(heading),
        None if OTHERS.contains(&option.get_id().as_str()) => option,
        None => option.hide_short_help(true),
    };
    command
        .mut_args(in_group)
        .disable_help_flag(true)
        .arg(
            Arg::new("help")
                .short('h')
                .long("help")
                .action(ArgAction::HelpShort)
                .help("Print this help"),
        )
        .arg(
            Arg::new("help-all")
                .long("help-all")
                .action(ArgAction::HelpLong)
                .help("Print the help of all options"),
        )
}
