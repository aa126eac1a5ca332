//! `kvmprof processes`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use anyhow::Context;
use clap::Args;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_cli::table::{Align, write_table};
use kvmprof_cli::text::write_json;
use kvmprof_client::{ClientError, Connection};
use kvmprof_recording::processes::{GuestProcess, GuestProcessList};

use super::targets::TargetArgs;

/// Maximum length of the list, in bytes: the server keeps no longer text.
const MAX_LIST: usize = 32 << 20;
/// Tries to get the list, for up to 2 s each: that of a guest that was just attached to isn't there at once.
const TRIES: u32 = 14;
/// Characters of a container's id and of a command line that are shown.
const SHOWN_ID: usize = 12;
const SHOWN_COMMAND: usize = 120;
const CUT: &str = "...";
/// The indentation of a child in a tree.
const INDENT: &str = "  ";

/// List the processes of a running guest, with their containers and command lines
///
/// All of them, as the guest's kernel has them in memory at this moment, whether or not they were ever sampled. INNER is the process's id in its
/// own pid namespace, if that isn't the guest's first one. S is the state of its main thread as ps has it, and CPU the vCPU on which that
/// runs or has run last.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no guest at the socket, or its processes are unknown; 2 for wrong options.\n\n\
    Example: kvmprof processes --tree"
)]
pub struct ProcessesArguments {
    #[command(flatten)]
    target: TargetArgs,
    /// Put each process below its parent
    #[arg(long)]
    tree: bool,
    /// Print the JSON document that the guest's kvmprof gives (guest/abi/WIRE.md describes it)
    #[arg(long, conflicts_with = "tree")]
    json: bool,
}

impl Command for ProcessesArguments {
    /// Prints the processes of a running guest.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let document = read_list(&*self.target.connect(false, console)?)?;
        let written = if self.json {
            let document: serde_json::Value = serde_json::from_slice(&document).context(NO_LIST)?;
            write_json(console.text(), document)
        } else {
            let list: GuestProcessList = serde_json::from_slice(&document).context(NO_LIST)?;
            write_list(console.text(), &list.processes, self.tree)
        };
        written.context("Cannot write the list of processes")?;
        Ok(ExitStatus::SUCCESS)
    }
}

const NO_LIST: &str =
    "The list of processes cannot be read: use the kvmprof of the release that runs the guest";

fn read_list(connection: &Connection) -> anyhow::Result<Vec<u8>> {
    let read = || connection.snapshot(device::PROCESS_LIST, MAX_LIST);
    let errno = |list: &Result<_, ClientError>| list.as_ref().err().and_then(ClientError::errno);
    // The server waits before it answers so, if the kernel may be found yet.
    let mut list = read();
    for _ in 1..TRIES {
        if errno(&list) != Some(Errno::ENXIO) {
            break;
        }
        list = read();
    }
    let why = match errno(&list) {
        Some(Errno::ENXIO) => {
            "The guest's processes are unknown: its kernel isn't Linux, or wasn't found in its memory yet"
        }
        Some(Errno::ENODEV) => NO_LIST,
        _ => "Cannot get the list of processes",
    };
    list.context(why)
}

fn write_list(output: &mut dyn Write, processes: &[GuestProcess], tree: bool) -> io::Result<()> {
    let headings = [
        ("PID", Align::Right),
        ("INNER", Align::Right),
        ("S", Align::Left),
        ("CPU", Align::Right),
        ("CONTAINER", Align::Left),
        ("COMMAND", Align::Left),
    ];
    let order = match tree {
        true => below_parents(processes),
        false => processes.iter().map(|process| (process, 0)).collect(),
    };
    let rows: Vec<[String; 6]> = (order.into_iter())
        .map(|(process, depth)| row(process, depth))
        .collect();
    write_table(output, &headings, &rows)
}

/// The processes and how many ancestors of each are shown, each behind its parent and before that one's next child. What is in no order, as parents that are
/// their own descendants in what a hostile guest has in its memory, comes last.
fn below_parents(processes: &[GuestProcess]) -> Vec<(&GuestProcess, usize)> {
    let pids: BTreeSet<i32> = processes.iter().map(|process| process.pid).collect();
    let mut children: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    let mut waiting = Vec::new();
    for (index, process) in processes.iter().enumerate() {
        if pids.contains(&process.parent) {
            children.entry(process.parent).or_default().push(index);
        } else {
            waiting.push((index, 0));
        }
    }
    waiting.reverse();
    let mut order = Vec::with_capacity(processes.len());
    let mut placed = vec![false; processes.len()];
    while let Some((index, depth)) = waiting.pop() {
        placed[index] = true;
        let process = &processes[index];
        order.push((process, depth));
        let own = children.remove(&process.pid).unwrap_or_default();
        waiting.extend(own.into_iter().rev().map(|index| (index, depth + 1)));
    }
    let rest = processes.iter().zip(placed);
    order.extend(
        rest.filter(|(_, is_placed)| !is_placed)
            .map(|(process, _)| (process, 0)),
    );
    order
}

fn row(process: &GuestProcess, depth: usize) -> [String; 6] {
    let label = |key: &str| process.labels.get(key);
    let shown = |key: &str| label(key).map_or_else(|| "-".to_owned(), String::clone);
    let container = label("container").or_else(|| label("unit"));
    let container = container.map_or_else(
        || "-".to_owned(),
        |name| {
            cut(
                name,
                if label("container").is_some() {
                    SHOWN_ID
                } else {
                    40
                },
                "",
            )
        },
    );
    // Threads of the kernel have neither, and are in brackets as in ps.
    let command = (label("arguments").or_else(|| label("executable"))).map_or_else(
        || format!("[{}]", process.name),
        |command| cut(command, SHOWN_COMMAND, CUT),
    );
    [
        process.pid.to_string(),
        shown("inner_pid"),
        process.state.to_string(),
        process
            .vcpu
            .map_or_else(|| "-".to_owned(), |vcpu| vcpu.to_string()),
        container,
        format!("{}{command}", INDENT.repeat(depth.min(20))),
    ]
}

/// The first `count` characters of `text`, and `end` if it has more.
fn cut(text: &str, count: usize, end: &str) -> String {
    let mut letters = text.chars();
    let begin: String = letters.by_ref().take(count).collect();
    match letters.next() {
        Some(_) => begin + end,
        None => begin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1d0a5e9c3b7788a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff";

    fn process(pid: i32, parent: i32, labels: &[(&str, &str)]) -> GuestProcess {
        let labels = labels.iter();
        GuestProcess {
            pid,
            parent,
            name: format!("name{pid}"),
            state: 'S',
            vcpu: Some(1),
            labels: labels
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    fn text(processes: &[GuestProcess], tree: bool) -> Vec<String> {
        let mut output = Vec::new();
        write_list(&mut output, processes, tree).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn processes_have_their_containers_and_command_lines() {
        let long = "x".repeat(200);
        let all = [
            process(1, 0, &[("unit", "init.scope"), ("arguments", "/sbin/init")]),
            process(2, 0, &[]),
            process(
                70,
                1,
                &[
                    ("container", ID),
                    ("inner_pid", "1"),
                    ("executable", "/bin/a\u{202e}b"),
                ],
            ),
            process(71, 70, &[("arguments", &long)]),
        ];
        let command = "x".repeat(120) + "...";
        assert_eq!(
            text(&all, false),
            [
                "PID  INNER  S  CPU  CONTAINER     COMMAND".to_owned(),
                "1      -  S    1  init.scope    /sbin/init".to_owned(),
                "2      -  S    1  -             [name2]".to_owned(),
                "70      1  S    1  4f1d0a5e9c3b  /bin/a\u{fffd}b".to_owned(),
                format!("71      -  S    1  -             {command}"),
            ]
        );
        let tree = text(&all, true);
        assert!(
            tree[2].ends_with("  4f1d0a5e9c3b    /bin/a\u{fffd}b"),
            "{tree:?}"
        );
        assert!(tree[3].ends_with(&format!("      {command}")), "{tree:?}");
        assert!(tree[4].starts_with("2 "), "{tree:?}");
    }

    /// Ancestors in a circle, and one process twice: each is shown once.
    #[test]
    fn circles_end() {
        let all = [
            process(5, 6, &[]),
            process(6, 5, &[]),
            process(7, 7, &[]),
            process(8, 0, &[]),
            process(8, 0, &[]),
            process(9, 8, &[]),
        ];
        let order = below_parents(&all).into_iter();
        let order: Vec<_> = order.map(|(process, depth)| (process.pid, depth)).collect();
        assert_eq!(order, [(8, 0), (9, 1), (8, 0), (5, 0), (6, 0), (7, 0)]);
    }
}
