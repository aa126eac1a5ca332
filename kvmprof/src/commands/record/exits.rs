//! The exits of a recorded guest, which another process counts: it has the rights for that, and parses nothing that the guest has made.

use std::env;
use std::io::{self, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, bail};
use kvmprof_cli::child::end_with_this_process;
use kvmprof_recording::file::{HEADER, Kind, Reader, header};
use rustix::process::{Pid, Signal, kill_process};

use super::limited::MoreBlocks;
use crate::commands::exits::is_readable;

/// A running `kvmprof exits`, which makes blocks of a recording. It ends when this is dropped.
#[derive(Debug)]
pub struct ExitBlocks {
    child: Child,
    output: ChildStdout,
    reader: Reader,
    /// Bytes of blocks that aren't whole yet.
    waiting: Vec<u8>,
    /// Bytes that were taken, with the header.
    done: u64,
}

impl ExitBlocks {
    /// Has the exits of the guest of `process` (PID:START_TIME) counted from [`begin`](Self::begin) on. The guest has been looked at when this returns.
    ///
    /// # Errors
    /// They can't be counted. Why is on standard error then.
    pub fn start(process: &str) -> anyhow::Result<Self> {
        let program = env::current_exe().context("Cannot find this program")?;
        let mut command = Command::new(program);
        command
            .args(["exits", process, "--blocks"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        end_with_this_process(&mut command);
        let mut child = command.spawn().context("Cannot start kvmprof exits")?;
        let output = child.stdout.take().context("kvmprof exits has no output")?;
        let mut reader = Reader::without(&[Kind::Exits]);
        reader.push(&header());
        let mut blocks = Self {
            child,
            output,
            reader,
            waiting: Vec::new(),
            done: HEADER as u64,
        };
        if blocks.output.read_exact(&mut [0; HEADER]).is_err() {
            let status = blocks.child.wait()?;
            bail!("kvmprof exits has ended ({status}): it has said why");
        }
        Ok(blocks)
    }

    /// Has the counting begin.
    pub fn begin(&mut self) {
        self.child.stdin = None;
    }

    /// Asks that process for its end.
    fn end(&mut self) {
        // It waits for this where it hasn't begun.
        self.begin();
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // It has ended by itself if this fails.
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl MoreBlocks for ExitBlocks {
    fn take(&mut self, end: bool) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if end {
            self.end();
            self.output.read_to_end(&mut bytes)?;
            let status = self.child.wait()?;
            if !status.success() {
                log::warn!(
                    "kvmprof exits has ended ({status}): the recording has no exits from then on"
                );
            }
        } else {
            let mut piece = [0; 4 << 10];
            // Also when none come any more.
            while is_readable(&self.output) {
                match self.output.read(&mut piece)? {
                    0 => break,
                    count => bytes.extend(&piece[..count]),
                }
            }
        }
        self.reader.push(&bytes);
        self.waiting.append(&mut bytes);
        let reader = &mut self.reader;
        while reader.next_block().map_err(io::Error::other)?.is_some() {}
        let length = reader.offset() - self.done;
        self.done += length;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let length = length.min(self.waiting.len());
        Ok(self.waiting.drain(..length).collect())
    }
}

impl Drop for ExitBlocks {
    fn drop(&mut self) {
        self.end();
        // It can't wait for room in the pipe then.
        let _ = io::copy(&mut self.output, &mut io::sink());
        let _ = self.child.wait();
    }
}
