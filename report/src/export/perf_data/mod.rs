//! The file that `perf report` and `perf script` read (`tools/perf/Documentation/perf.data-file-format.txt` of the Linux
//! sources; `include/uapi/linux/perf_event.h` has the records).
//!
//! An event is a tick: of the clock, `cpu-clock` with its period in ns, or by its own name with their number. Ticks of a halted vCPU are one event with their
//! total period, in the function `[halted]` of the process that perf calls `swapper`. perf has no field for the mode:
//! the context of the frames shows kernel and user, and an entry function among the frames shows interrupts.
//!
//! perf takes names from files in a folder beside the output: `kallsyms`, for perf's option of that name, and for each
//! process an ELF file with symbols only; events have its whole path. The files have only sampled functions, so that
//! perf shows the same as `kvmprof report`.

mod elf;
mod file;
mod records;
mod symbols;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Event, ExportError, Source};
use crate::profile::Stack;
use file::PerfFile;
use records::Records;
use symbols::{ANCHOR, CUT_SHORT_AT, HALTED_AT, KALLSYMS, SymbolFolder};

/// The length of a round, in ns: perf keeps two rounds in memory to sort events. vCPUs are never that far apart.
const ROUND: u64 = 2_000_000_000;

/// The folder with perf's symbol files, beside the file at `path`.
pub fn symbols_beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".symbols");
    name.into()
}

/// The command that shows the file at `path`.
pub fn reading_command(path: &Path) -> String {
    format!(
        "perf report -i {} --kallsyms {}",
        word(path),
        word(&symbols_beside(path).join(KALLSYMS))
    )
}

/// `path` as one word of a shell command.
fn word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |character: char| character.is_alphanumeric() || "/._-+:@%".contains(character);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Writes `source` to the file at `path`, and its symbols beside it.
pub fn write(source: &Source, path: &Path) -> Result<(), ExportError> {
    // Created first, since only existing files have a canonical path.
    let mut file = PerfFile::create(path, source.weight())?;
    let folder = SymbolFolder::create(&symbols_beside(path))?;
    let mut export = Export {
        source,
        folder,
        records: Records::default(),
        comms: HashMap::new(),
        known: HashMap::new(),
        round_end: None,
        latest: 0,
    };
    export.records.kernel_mapping(ANCHOR);
    source.for_each(|event| {
        export.add(event)?;
        Ok(export.records.hand_over(source.room(), &mut file)?)
    })?;
    export.records.hand_over(source.room(), &mut file)?;
    export.folder.finish()?;
    Ok(file.finish()?)
}

struct Export<'a> {
    source: &'a Source,
    folder: SymbolFolder,
    records: Records,
    // The names of threads, by pid and tid.
    comms: HashMap<(i32, i32), String>,
    // Stacks of each process with functions that the folder has already.
    known: HashMap<i32, HashSet<Stack>>,
    round_end: Option<u64>,
    latest: u64,
}

impl Export<'_> {
    fn add(&mut self, event: &Event) -> Result<(), ExportError> {
        self.end_round(event.time);
        self.name_thread(event);
        self.note_functions(event)?;
        let mut chain = Chain::default();
        match &event.stack {
            None => chain.push(true, HALTED_AT),
            Some(stack) => {
                for (index, address) in stack.frames.iter().enumerate() {
                    chain.push(stack.is_kernel(index), *address);
                }
                if stack.is_cut_short() {
                    chain.push(chain.last_is_kernel(), CUT_SHORT_AT);
                }
            }
        }
        let period = self.source.weight().of(event.ticks);
        self.records.sample(event, period, &chain);
        Ok(())
    }

    fn end_round(&mut self, time: u64) {
        self.latest = self.latest.max(time);
        let end = *self
            .round_end
            .get_or_insert_with(|| time.saturating_add(ROUND));
        if self.latest >= end {
            self.round_end = Some(self.latest.saturating_add(ROUND));
            self.records.round();
        }
    }

    /// perf has a name of its own for pid 0.
    fn name_thread(&mut self, event: &Event) {
        let thread = (event.pid, event.tid);
        if thread == (0, 0) || self.comms.get(&thread) == Some(&event.comm) {
            return;
        }
        self.records.comm(event);
        if self.comms.insert(thread, event.comm.clone()).is_some() {
            // It may be another program, with other functions.
            self.known.remove(&event.pid);
        }
    }

    fn note_functions(&mut self, event: &Event) -> Result<(), ExportError> {
        let Some(stack) = &event.stack else {
            return Ok(());
        };
        let known = self.known.entry(event.pid).or_default();
        if known.contains(stack) {
            return Ok(());
        }
        let source = self.source;
        let process = source.profile().processes.get(&event.pid);
        let name = process.map_or("", |process| &process.name);
        let new = (self.folder).note(event.pid, name, &source.frames_to_keep(event)?)?;
        if let Some(path) = new {
            self.records
                .user_mapping(event, path.as_os_str().as_bytes());
        }
        self.known
            .entry(event.pid)
            .or_default()
            .insert(stack.clone());
        Ok(())
    }
}

/// A call chain: addresses, with a context marker before the kernel's and before the user's.
#[derive(Debug, Default)]
struct Chain {
    entries: Vec<u64>,
    is_kernel: Option<bool>,
    starts_in_kernel: bool,
    first: u64,
}

impl Chain {
    fn push(&mut self, is_kernel: bool, address: u64) {
        if self.is_kernel.is_none() {
            (self.starts_in_kernel, self.first) = (is_kernel, address);
        }
        if self.is_kernel != Some(is_kernel) {
            self.entries.push(records::context(is_kernel));
            self.is_kernel = Some(is_kernel);
        }
        self.entries.push(address);
    }

    fn last_is_kernel(&self) -> bool {
        self.is_kernel == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_can_be_typed() {
        let command = reading_command(Path::new("/tmp/my file's.data"));
        let symbols = "'/tmp/my file'\\''s.data.symbols/kallsyms'";
        assert!(command.ends_with(symbols), "{command}");
        assert_eq!(
            reading_command(Path::new("a.data")),
            "perf report -i a.data --kallsyms a.data.symbols/kallsyms"
        );
    }

    #[test]
    fn chains_tell_the_kernels_frames_from_the_users() {
        let mut chain = Chain::default();
        for (is_kernel, address) in [(true, 1), (true, 2), (false, 3)] {
            chain.push(is_kernel, address);
        }
        let (kernel, user) = (records::context(true), records::context(false));
        assert_eq!(chain.entries, [kernel, 1, 2, user, 3]);
        assert!(chain.starts_in_kernel && !chain.last_is_kernel());
        assert_eq!(chain.first, 1);
    }
}
