//! The file that `perf report` and `perf script` read (`tools/perf/Documentation/perf.data-file-format.txt` of the Linux
//! sources; `include/uapi/linux/perf_event.h` has the records).
//!
//! An event is a tick: of the clock, `cpu-clock` with its period in ns, or by its own name with their number. Ticks of a halted vCPU are one event with their
//! total period, in the function `[halted]` of the process that perf calls `swapper`. perf has no field for the mode: the context of the frames shows kernel
//! and user, and an entry function among the frames shows interrupts.
//!
//! perf takes names from files in a folder beside the output: `kallsyms`, for perf's option of that name, and ELF files with symbols
//! only, whose whole paths the mappings have: one that stands for each of the guest's files, with its name and build id, and one for each process's
//! code that is in none. The files have only sampled functions, so that perf shows the same as `kvmprof report`. Addresses in them are
//! those of the guest's files.

mod elf;
mod file;
mod records;
mod symbols;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::firefox::hexadecimal;
use super::{Event, EventThread, ExportError, Library, Source, word};
use crate::model::{Frame, ModuleId, ModuleKind};
use crate::symbolize::MappingSet;
use file::{GuestProperties, PerfFile};
use records::{FileRange, Records};
use symbols::{ANCHOR, CUT_SHORT_AT, HALTED_AT, KALLSYMS, SymbolFolder};

/// The length of a round, in ns: perf keeps two rounds in memory to sort events, which are sorted already.
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

/// Writes `source` to the file at `path`, and its symbols beside it.
pub fn write(source: &Source, path: &Path) -> Result<(), ExportError> {
    if !source.profile().selection.transforms.is_empty() {
        return Err(ExportError::Transformed);
    }
    // Created first, since only existing files have a canonical path.
    let mut file = PerfFile::create(path, source.weight())?;
    let folder = SymbolFolder::create(&symbols_beside(path))?;
    let mut export = Export {
        source,
        folder,
        records: Records::default(),
        comms: HashMap::new(),
        known: HashMap::new(),
        maps: HashMap::new(),
        round_end: None,
        times: None,
    };
    export.records.kernel_mapping(ANCHOR);
    source.for_each_by_time(|event| {
        export.add(event)?;
        Ok(export.records.hand_over(source.budget(), &mut file)?)
    })?;
    export.records.hand_over(source.budget(), &mut file)?;
    let info = &source.profile().contents.info;
    let kernel = source.profile().contents.kernel.as_ref();
    let guest = GuestProperties {
        release: kernel.map_or("", |kernel| &kernel.release),
        program: &info.program,
        vcpus: info.vcpus,
        memory: info.memory_bytes,
        times: export.times,
        build_ids: export.build_ids(),
    };
    file.finish(&guest)?;
    Ok(export.folder.finish()?)
}

struct Export<'a> {
    source: &'a Source,
    folder: SymbolFolder,
    records: Records,
    // The names of threads, by pid and tid.
    comms: HashMap<(i32, i32), String>,
    // Stacks of each process with functions that the folder has already, by number.
    known: HashMap<i32, HashSet<u32>>,
    // The mappings of each process in the records so far.
    maps: HashMap<i32, Maps>,
    round_end: Option<u64>,
    // The times of the first and the last sample.
    times: Option<(u64, u64)>,
}

/// The mappings of a process's files, by their start, as long as it has the mappings of `set`.
#[derive(Default)]
struct Maps {
    set: MappingSet,
    files: HashMap<u64, ModuleId>,
}

impl Export<'_> {
    fn add(&mut self, event: &Event) -> Result<(), ExportError> {
        self.end_round(event.time);
        let (first, _) = self.times.unwrap_or((event.time, event.time));
        self.times = Some((first, event.time));
        self.name_thread(event);
        self.note_functions(event)?;
        let mut chain = Chain::default();
        let profile = self.source.profile();
        match self.source.stack(event) {
            None => chain.push(true, HALTED_AT),
            Some(stack) => {
                let frames = profile.frames(stack);
                for frame in frames.filter(|frame| !frame.is_inlined) {
                    chain.push(frame.is_kernel, frame.address);
                }
                if stack.is_cut_short {
                    chain.push(chain.last_is_kernel(), CUT_SHORT_AT);
                }
            }
        }
        let period = self.source.weight().of(event.ticks);
        self.records
            .sample(self.source.thread(event), event, period, &chain);
        Ok(())
    }

    fn end_round(&mut self, time: u64) {
        let end = *self
            .round_end
            .get_or_insert_with(|| time.saturating_add(ROUND));
        if time >= end {
            self.round_end = Some(time.saturating_add(ROUND));
            self.records.round();
        }
    }

    /// perf has a name of its own for pid 0.
    fn name_thread(&mut self, event: &Event) {
        let of = self.source.thread(event);
        let thread = (of.pid, of.tid);
        if thread == (0, 0) || self.comms.get(&thread) == Some(&of.comm) {
            return;
        }
        self.records.comm(of, event);
        if self.comms.insert(thread, of.comm.clone()).is_some() {
            // The process may execute another program with other functions.
            self.known.remove(&of.pid);
        }
    }

    fn note_functions(&mut self, event: &Event) -> Result<(), ExportError> {
        let source = self.source;
        let Some(number) = event.stack else {
            return Ok(());
        };
        let pid = source.thread(event).pid;
        if self
            .known
            .get(&pid)
            .is_some_and(|known| known.contains(&number))
            && self.is_mapped(pid, number)
        {
            return Ok(());
        }
        let frames = source.frames_to_keep(event)?;
        let is_cut_short = frames.iter().any(|frame| frame.is_note);
        let outermost = frames.iter().rfind(|frame| !frame.is_note);
        let is_in_user = outermost.is_some_and(|frame| !frame.is_kernel);
        let set = outermost.map(|frame| frame.mappings);
        let maps = self.maps.entry(pid).or_default();
        let set = set.filter(|set| is_in_user && maps.set != *set);
        if let Some(set) = set {
            *maps = Maps {
                set,
                files: HashMap::new(),
            };
            self.known.remove(&pid);
        }
        self.known.entry(pid).or_default().insert(number);
        // perf expects one function of an address: the one with the code.
        let frames = frames
            .iter()
            .filter(|frame| frame.address != 0 && !frame.is_inlined);
        let mut of_files = Vec::new();
        let mut of_process = Vec::new();
        for frame in frames {
            match Library::of(frame) {
                _ if frame.is_kernel => self.folder.note_kernel(frame),
                Some(file) if file.0.kind == ModuleKind::File => of_files.push((frame, file)),
                _ => of_process.push(frame),
            }
        }
        // The process's own file is everywhere where no other one is, so it has to be mapped before them.
        let needs_own = set.is_some() || !of_process.is_empty();
        if needs_own || is_cut_short && is_in_user {
            self.map_process(event, &of_process, set.is_some())?;
        }
        for (frame, library) in of_files {
            self.map_file(event, frame, library)?;
        }
        Ok(())
    }

    /// Whether the records so far have the mappings of the process in which the stack with this number was.
    fn is_mapped(&self, pid: i32, number: u32) -> bool {
        let profile = self.source.profile();
        let stack = profile.stacks.get(number as usize);
        let outermost = stack.and_then(|stack| profile.frames(stack).last());
        let set = self.maps.get(&pid).map(|maps| maps.set);
        outermost.is_none_or(|frame| frame.is_kernel || set == Some(frame.mappings))
    }

    /// Maps a file of the process's own with the functions of `frames` at all addresses, if it has none or `is_remapped`.
    fn map_process(
        &mut self,
        event: &Event,
        frames: &[&Frame<'_>],
        is_remapped: bool,
    ) -> Result<(), ExportError> {
        let source = self.source;
        let thread = source.thread(event);
        let pid = thread.pid;
        let process = source.profile().processes.get(&pid);
        let name = process.map_or("", |process| &process.name);
        let (mut path, mut is_new) = self.folder.note_process(pid, name, None)?;
        for frame in frames {
            let (latest, is_another) = self.folder.note_process(pid, name, Some(frame))?;
            path = latest;
            is_new |= is_another;
        }
        if is_new || is_remapped {
            let path = path.as_os_str().as_bytes();
            self.records.user_mapping(thread, event.time, path);
            self.maps.entry(pid).or_default().files.clear();
            if is_new && !is_remapped {
                // Files of stacks that are known have to be mapped again.
                self.known.remove(&pid);
            }
        }
        Ok(())
    }

    /// Maps the file of symbols of `library`, which has the code of `frame`, where the process has it.
    fn map_file(
        &mut self,
        event: &Event,
        frame: &Frame<'_>,
        library: Library<'_>,
    ) -> Result<(), ExportError> {
        let source = self.source;
        let thread = source.thread(event);
        let path = self.folder.note_file(library, frame)?;
        let mapping = frame.mapping;
        let maps = self.maps.entry(thread.pid).or_default();
        if maps.files.get(&mapping.begin) != Some(&library.0.id) {
            let range = FileRange {
                begin: mapping.begin,
                length: mapping.end - mapping.begin,
                page_offset: frame
                    .file_address
                    .wrapping_sub(frame.address - mapping.begin),
            };
            self.records
                .file_mapping(thread, event.time, range, path.as_os_str().as_bytes());
            maps.files.insert(mapping.begin, library.0.id);
        }
        Ok(())
    }

    /// The records of the kernel's build id and of those of the guest's files.
    fn build_ids(&self) -> Vec<u8> {
        let mut records = Records::default();
        if let Some(kernel) = &self.source.profile().contents.kernel {
            let id = hexadecimal(&kernel.build_id, records::BUILD_ID_LENGTH);
            if !id.is_empty() {
                records.build_id(None, &id);
            }
        }
        for (path, id) in self.folder.build_ids() {
            records.build_id(Some(path.as_os_str().as_bytes()), id);
        }
        records.bytes
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
    fn chains_mark_kernel_and_user_frames() {
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
