//! The file that `perf report` and `perf script` read (`tools/perf/Documentation/perf.data-file-format.txt` of the Linux
//! sources; `include/uapi/linux/perf_event.h` has the records).
//!
//! An event is a tick: of the clock, `cpu-clock` with its period in ns, or by its own name with their number. Ticks of a halted vCPU are one event with their
//! total period, in the function `[halted]` of the process that perf calls `swapper`. perf has no field for the mode:
//! the context of the frames shows kernel and user, and an entry function among the frames shows interrupts.
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

use super::by_time::for_each_by_time;
use super::firefox::hexadecimal;
use super::{Event, ExportError, Frame, Library, Source};
use crate::profile::Stack;
use crate::symbolize::{AddressLocation, MappingSet};
use file::{GuestProperties, PerfFile};
use kvmprof_recording::file::Mapping;
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
        maps: HashMap::new(),
        round_end: None,
        times: None,
    };
    export.records.kernel_mapping(ANCHOR);
    for_each_by_time(source, |event| {
        export.add(event)?;
        Ok(export.records.hand_over(source.room(), &mut file)?)
    })?;
    export.records.hand_over(source.room(), &mut file)?;
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
    // Stacks of each process with functions that the folder has already.
    known: HashMap<i32, HashSet<Stack>>,
    // The mappings of each process in the records so far.
    maps: HashMap<i32, Maps>,
    round_end: Option<u64>,
    // The times of the first and the last sample.
    times: Option<(u64, u64)>,
}

/// The mappings of a process's files, by their begin, as long as it has the mappings of `set`.
#[derive(Default)]
struct Maps {
    set: MappingSet,
    files: HashMap<u64, Library>,
}

impl Export<'_> {
    fn add(&mut self, event: &Event) -> Result<(), ExportError> {
        self.end_round(event.time);
        let (first, _) = self.times.unwrap_or((event.time, event.time));
        self.times = Some((first, event.time));
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
        let thread = (event.pid, event.tid);
        if thread == (0, 0) || self.comms.get(&thread) == Some(&event.comm) {
            return;
        }
        self.records.comm(event);
        if self.comms.insert(thread, event.comm.clone()).is_some() {
            // The process may execute another program with other functions.
            self.known.remove(&event.pid);
        }
    }

    fn note_functions(&mut self, event: &Event) -> Result<(), ExportError> {
        let Some(stack) = &event.stack else {
            return Ok(());
        };
        let is_in_user = !stack.is_kernel(stack.frames.len().saturating_sub(1));
        let maps = self.maps.entry(event.pid).or_default();
        let is_remapped = is_in_user && maps.set != stack.mappings;
        if is_remapped {
            *maps = Maps {
                set: stack.mappings,
                files: HashMap::new(),
            };
            self.known.remove(&event.pid);
        }
        let known = self.known.entry(event.pid).or_default();
        if !known.insert(stack.clone()) {
            return Ok(());
        }
        let source = self.source;
        let frames = source.frames_to_keep(event)?;
        // perf wants one function of an address: the one with the code.
        let frames = frames
            .iter()
            .filter(|frame| frame.address != 0 && !frame.is_inlined);
        let mut of_files = Vec::new();
        let mut of_process = Vec::new();
        for frame in frames {
            match in_file(source, stack, frame) {
                _ if frame.is_kernel => self.folder.note_kernel(frame),
                Some(file) => of_files.push((frame, file)),
                None => of_process.push(frame),
            }
        }
        // The process's own file is everywhere where no other one is, so it has to be mapped before them.
        let needs_own = is_remapped || !of_process.is_empty();
        if needs_own || stack.is_cut_short() && is_in_user {
            self.map_process(event, &of_process, is_remapped)?;
        }
        for (frame, (library, mapping)) in of_files {
            self.map_file(event, frame, library, mapping)?;
        }
        Ok(())
    }

    /// Maps a file of the process's own with the functions of `frames` at all addresses, if it has none or `is_remapped`.
    fn map_process(
        &mut self,
        event: &Event,
        frames: &[&Frame<'_>],
        is_remapped: bool,
    ) -> Result<(), ExportError> {
        let process = self.source.profile().processes.get(&event.pid);
        let name = process.map_or("", |process| &process.name);
        let (mut path, mut is_new) = self.folder.note_process(event.pid, name, None)?;
        for frame in frames {
            let (latest, is_another) = self.folder.note_process(event.pid, name, Some(frame))?;
            path = latest;
            is_new |= is_another;
        }
        if is_new || is_remapped {
            let path = path.as_os_str().as_bytes();
            self.records.user_mapping(event, path);
            self.maps.entry(event.pid).or_default().files.clear();
            if is_new && !is_remapped {
                // Files of stacks that are known have to be mapped again.
                self.known.remove(&event.pid);
            }
        }
        Ok(())
    }

    /// Maps the file of symbols of `library` where the process has `mapping`, which has the code of `frame`.
    fn map_file(
        &mut self,
        event: &Event,
        frame: &Frame<'_>,
        library: Library,
        mapping: &Mapping,
    ) -> Result<(), ExportError> {
        let path = self.folder.note_file(&library, frame)?;
        let maps = self.maps.entry(event.pid).or_default();
        if maps.files.get(&mapping.begin) != Some(&library) {
            let range = FileRange {
                begin: mapping.begin,
                length: mapping.end - mapping.begin,
                page_offset: frame
                    .file_address
                    .wrapping_sub(frame.address - mapping.begin),
            };
            self.records
                .file_mapping(event, range, path.as_os_str().as_bytes());
            maps.files.insert(mapping.begin, library);
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
        records.into_bytes()
    }
}

/// The file and the mapping that have the code of `frame`, if it is in one of the guest's files.
fn in_file<'a>(
    source: &'a Source,
    stack: &Stack,
    frame: &Frame<'_>,
) -> Option<(Library, &'a Mapping)> {
    let profile = source.profile();
    let tables = profile.resolver.tables();
    match tables.locate(stack.mappings, frame.address, frame.is_kernel) {
        AddressLocation::Mapping(mapping) => {
            Some((Library::of_mapping(profile, mapping)?, mapping))
        }
        _ => None,
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
