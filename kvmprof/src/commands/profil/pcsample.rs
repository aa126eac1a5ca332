//! `kvmprof pcsample`.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use clap::Args;
use kvmprof_abi::profil::Function;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};

use super::arguments::{ProcessArguments, samples};
use super::device::ProcessProfile;
use super::document::Collected;
use super::histogram::Hit;
use super::session::with_session;
use super::table::function_rows;
use crate::commands::recordings::NO_OUTPUT;

/// Collect program counters of a process of a running guest
///
/// As pcsample(2) of Solaris: while the process runs in user mode, its program counter is stored, 100 times a second on
/// each vCPU, until there are as many as were asked for. The result is a table of its functions. The guest's kernel does
/// nothing for it, and the process notices nothing.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0, also after Ctrl-C; 1 when there is no guest at the socket, it has no clock, or the \
    process did not run; 2 for wrong options.\n\n\
    Examples:\n  kvmprof pcsample --socket /run/guest.sock --pid 230 --nsamples 1000\n  \
    kvmprof pcsample --pid 230 --nsamples 500000 --every-tick --seconds 10 --raw | sort | uniq -c"
)]
pub struct PcsampleArguments {
    #[command(flatten)]
    process: ProcessArguments,
    /// How many program counters to collect, at most
    #[arg(long, short, value_name = "K", value_parser = samples, allow_negative_numbers = true)]
    nsamples: u64,
    /// Print the program counters, one on each line, in the order in which they were stored
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

impl Command for PcsampleArguments {
    /// Collects the program counters and prints them.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let call = self.process.call(Function::Pcsample, self.nsamples);
        with_session(&self.process, |session| {
            let ending = session.collect(&call)?;
            let (status, samples) = session.profile.at_once(ProcessProfile::samples)?;
            session.finish(&status, ending)?;
            let process = &session.process;
            let print = |out: &mut dyn Write| {
                if self.raw {
                    return samples.iter().try_for_each(|pc| writeln!(out, "{pc:#x}"));
                }
                let name = |hit: &Hit| process.name(hit.begin, hit.last);
                let collected = Collected {
                    pid: self.process.pid,
                    stored: self.process.stored_ticks(process),
                    ending,
                    status: &status,
                    layout: None,
                    rows: &function_rows(&hits(&samples), name),
                    top: self.process.most_rows(),
                };
                collected.write(self.process.json, out)
            };
            print(console.text()).context(NO_OUTPUT)?;
            session.say_ending(ending, console);
            Ok(ExitStatus::SUCCESS)
        })
    }
}

/// The number of times that each program counter was stored.
fn hits(samples: &[u64]) -> Vec<Hit> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for pc in samples {
        *counts.entry(*pc).or_default() += 1;
    }
    let counts = counts.into_iter();
    counts
        .map(|(pc, count)| Hit {
            begin: pc,
            last: pc,
            count,
        })
        .collect()
}
