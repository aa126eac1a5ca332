//! Resolves frames to names from all sources.

mod generated;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use kvmprof_recording::{LanguageFrame, Sample};

use super::debug::{DebugFile, SourceLine};
use super::debug_files::DebugFiles;
use super::files::{FileSources, LoadedFile};
use super::former::Epoch;
use super::frame::{CodeAddress, Frame, Resolved};
use super::kallsyms::{FunctionAt, KERNEL};
use super::labels::Labels;
use super::perf_maps::PerfMaps;
use super::tables::{AddressLocation, Tables, file_address, module_name, segment_of};
use super::vmlinux::Vmlinux;
use super::{MappingSet, StateTimes, SymbolError, USER, demangle};
use crate::text::visible;
use kvmprof_recording::Sysroot;
use kvmprof_recording::file::{Binary, Contents, Mapping, Piece, ProcessMappings, Segment};

/// Maximum number of functions and addresses whose names are remembered.
const MAX_FOUND: usize = 1 << 19;

/// Sources of names besides the recording.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The debug file of the guest's kernel.
    pub vmlinux: Option<PathBuf>,
    /// A folder with the guest's files.
    pub sysroot: Option<PathBuf>,
    /// Debug files that aren't in that folder.
    pub debug_files: Option<Rc<dyn DebugFiles>>,
    /// Whether the frames of interpreters are shown that execute functions of a language.
    pub native: bool,
}

/// Identifies a cached result: by kernel address (seen from user mode, or not) and time, by an address in a file, or by an address in mappings, whose
/// name is known by the line of this number in the perf map of this number, or isn't. Without debug information it is the function's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Kernel(bool, u64, Epoch),
    File(u32, u64),
    Process(MappingSet, u64, Option<(usize, usize)>),
    /// A frame of a language, by its word.
    Language(u64),
}

type FileKey = (Option<u32>, String);

/// Resolves frames, and caches the results.
#[derive(Clone, Debug, Default)]
pub struct Resolver {
    tables: Tables,
    vmlinux: Option<Rc<Vmlinux>>,
    file_sources: FileSources,
    found: RefCell<HashMap<Key, Rc<[Frame]>>>,
    files: RefCell<HashMap<FileKey, Rc<LoadedFile>>>,
    maps: PerfMaps,
    is_hurried: Cell<bool>,
    shows_native: bool,
}

impl Resolver {
    /// A resolver for the recording with `contents`, with additional `sources`.
    ///
    /// # Errors
    /// A source can't be read, or is for another kernel.
    pub fn new(contents: &Contents, sources: &Sources) -> Result<Self, SymbolError> {
        let mut resolver = Self::from_contents(contents);
        resolver.shows_native = sources.native;
        if let Some(path) = &sources.sysroot {
            let sysroot = Sysroot::open(path).map_err(|source| SymbolError::Sysroot {
                path: path.clone(),
                source,
            })?;
            resolver.file_sources.sysroot = Some(Rc::new(sysroot));
        }
        resolver
            .file_sources
            .debug_files
            .clone_from(&sources.debug_files);
        if let Some(path) = &sources.vmlinux {
            resolver.vmlinux = Some(Rc::new(Vmlinux::open(
                path,
                contents,
                &resolver.tables,
                &resolver.file_sources.notes,
            )?));
        }
        Ok(resolver)
    }

    /// A resolver for the recording with `contents` only.
    pub fn from_contents(contents: &Contents) -> Self {
        Self {
            tables: Tables::new(contents),
            ..Self::default()
        }
    }

    /// A resolver for a profile that has names, of processes with these labels.
    pub fn from_labels(labels: Labels) -> Self {
        let mut resolver = Self::default();
        resolver.tables.labels = labels;
        resolver
    }

    /// The name of the main thread of process `pid` by its mappings, if known.
    pub fn process_name(&self, pid: i32) -> Option<&str> {
        self.tables.spaces.process_name(pid)
    }

    /// The mappings of the sampled process at the time of `sample`.
    pub fn mappings_of(&self, sample: &Sample) -> MappingSet {
        self.state_of(sample).state.mappings
    }

    /// What the sampled process has at the time of `sample`, and when it has the same.
    pub fn state_of(&self, sample: &Sample) -> StateTimes {
        let Sample {
            address_space,
            pid,
            time,
            ..
        } = *sample;
        let Tables {
            kernel,
            spaces,
            labels,
            generated,
            ..
        } = &self.tables;
        let times = spaces.times(address_space, pid, time);
        let (of_process, of_labels) = labels.at(pid, time);
        let (code, of_code) = generated.at(pid, time);
        times.with_generated(code, of_code).with(
            kernel.epoch(time),
            kernel.epoch_times(time),
            of_process,
            of_labels,
        )
    }

    /// The names of the recording itself.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Adds functions of the kernel or its modules, in the form of `/proc/kallsyms`.
    pub fn add_symbols(&mut self, text: &str) {
        self.tables.add_symbols(text);
        self.forget();
    }

    /// Adds a file. It replaces a former one with its id.
    pub fn add_file(&mut self, binary: Binary) {
        self.tables.add_file(binary);
        self.forget();
    }

    /// Adds `mappings` to those of their address space.
    pub fn add_mappings(&mut self, mappings: &ProcessMappings) {
        self.tables.spaces.add(mappings);
    }

    /// Adds the names in a piece of a recording. Pieces without names have no effect.
    pub fn add_piece(&mut self, piece: Piece) {
        match piece {
            Piece::Symbols(text) => self.add_symbols(&text),
            Piece::Binary(binary) => self.add_file(binary),
            Piece::Mappings(mappings) => self.add_mappings(&mappings),
            Piece::Labels(labels) => self.tables.labels.add(&labels),
            Piece::GeneratedCode(code) => {
                let file = self.tables.generated.add(&code);
                self.maps.forget_recorded(file);
            }
            Piece::Functions(more) => {
                self.tables.add_functions(&more.functions);
                self.forget();
            }
            Piece::Info(_)
            | Piece::Kernel(_)
            | Piece::Reset(_)
            | Piece::Pause(_)
            | Piece::Samples(_)
            | Piece::Details(_)
            | Piece::Times(_)
            | Piece::Looks(_)
            | Piece::Exits(_)
            | Piece::End(_) => {}
        }
    }

    /// Removes all mappings, labels and names of generated code. Earlier results of [`Self::mappings_of`] are empty from now on.
    pub fn forget_mappings(&mut self) {
        self.tables.spaces.forget();
        self.tables.labels = Labels::default();
        self.tables.generated.forget();
    }

    /// Clears the cache.
    fn forget(&self) {
        self.found.take();
        self.files.take();
        self.maps.forget();
    }

    /// Clears the cache if it has more than `limit` entries: guests can make up addresses for days.
    pub fn forget_beyond(&self, limit: usize) {
        let found = self.found.borrow().len() + self.files.borrow().len();
        if found + self.maps.len() > limit {
            self.forget();
        }
    }

    /// Warnings about sources that were not used, each once.
    pub fn take_notes(&self) -> Vec<String> {
        self.file_sources.notes.take()
    }

    /// Makes later lookups fast: addresses that aren't cached get no source lines.
    pub fn skip_source_lines(&self) {
        self.is_hurried.set(true);
    }

    /// Lets [`Self::shows_native`] be true.
    #[must_use]
    pub fn with_native(self, shows_native: bool) -> Self {
        Self {
            shows_native,
            ..self
        }
    }

    /// Whether the frames of interpreters are shown that execute functions of a language.
    pub fn shows_native(&self) -> bool {
        self.shows_native
    }

    /// Resolves a frame.
    pub fn resolve(&self, asked: CodeAddress) -> Resolved {
        if !asked.is_kernel
            && let Some(frame) = LanguageFrame::from_word(asked.address)
        {
            return self.in_language(frame);
        }
        let location = (self.tables).locate(asked.mappings, asked.address, asked.is_kernel);
        match location {
            AddressLocation::Mapping(mapping) if !is_nameless(mapping) => {
                self.in_file(mapping, asked)
            }
            AddressLocation::Kernel(found) => self.in_kernel(Some(found), asked),
            AddressLocation::Unknown if asked.is_kernel || self.is_in_image(asked.address) => {
                self.in_kernel(None, asked)
            }
            AddressLocation::Mapping(mapping) => {
                self.elsewhere(module_name(&mapping.file), Some(mapping), asked)
            }
            AddressLocation::Unknown => self.elsewhere(USER, None, asked),
        }
    }

    /// At most `length` bytes of machine code at an address, from `--vmlinux` or a file of the sysroot. The kernel changes its code while it runs.
    /// `None` if neither has that code.
    pub fn code(&self, asked: CodeAddress, length: usize) -> Option<Vec<u8>> {
        match (self.tables).locate(asked.mappings, asked.address, asked.is_kernel) {
            AddressLocation::Mapping(mapping) => {
                let file = self.file(mapping);
                let address = file_address(mapping, &file.segments, asked.address);
                let code = file.code(mapping, self.tables.file(mapping), &self.file_sources)?;
                code.read(address, length)
            }
            AddressLocation::Kernel(found) if &**found.module != KERNEL => None,
            AddressLocation::Unknown if !asked.is_kernel => None,
            AddressLocation::Kernel(_) | AddressLocation::Unknown => {
                let vmlinux = self.vmlinux.as_deref()?;
                let address = asked.address.wrapping_sub(vmlinux.slide);
                vmlinux.code.read(address, length)
            }
        }
    }

    /// The executable segment that [`Resolved::file_address`] of `address` in `mapping` is in; `None` if it is an offset in the file, because
    /// the file's segments aren't known.
    pub(crate) fn segment(&self, mapping: &Mapping, address: u64) -> Option<Segment> {
        let byte = (address - mapping.begin).wrapping_add(mapping.offset);
        segment_of(&self.file(mapping).segments, byte)
    }

    /// Whether [`Self::code`] may find anything.
    pub fn has_code(&self) -> bool {
        self.file_sources.sysroot.is_some() || self.vmlinux.is_some()
    }

    /// Whether `--vmlinux` names the address of a program, in a guest that isn't Linux.
    fn is_in_image(&self, address: u64) -> bool {
        let image = self.vmlinux.as_deref().filter(|file| file.is_whole_guest);
        image.is_some_and(|file| file.debug.functions.find(address).is_some())
    }

    /// The cached result for `key`, or the result of `find`.
    fn once(&self, key: Key, find: impl FnOnce() -> Vec<Frame>) -> Rc<[Frame]> {
        if let Some(found) = self.found.borrow().get(&key) {
            return Rc::clone(found);
        }
        let frames: Rc<[Frame]> = find().into();
        let mut found = self.found.borrow_mut();
        // A hostile guest or recording can have any number of addresses.
        if found.len() >= MAX_FOUND {
            found.clear();
        }
        found.insert(key, Rc::clone(&frames));
        frames
    }

    fn in_kernel(&self, found: Option<FunctionAt<'_>>, asked: CodeAddress) -> Resolved {
        let is_debugged = found.is_none_or(|found| &**found.module == KERNEL);
        let vmlinux = self.vmlinux.as_deref().filter(|_| is_debugged);
        let linked = |vmlinux: &Vmlinux| asked.address.wrapping_sub(vmlinux.slide);
        let by_file = || {
            let vmlinux = vmlinux?;
            let (name, begin) = vmlinux.debug.functions.find(linked(vmlinux))?;
            Some((name, linked(vmlinux) - begin))
        };
        let symbol = found
            .map(|found| (found.name, found.offset))
            .or_else(by_file);
        let offset = symbol.map(|(_, offset)| offset);
        let address = match vmlinux {
            Some(_) => asked.address,
            None => asked.address - offset.unwrap_or(0),
        };
        let key = Key::Kernel(asked.is_kernel, address, asked.mappings.kernel());
        let frames = self.once(key, || {
            let function = match symbol {
                Some((name, _)) => visible(&demangle(name)).into(),
                None => format!("{:#x}", asked.address).into(),
            };
            let module = match found {
                // A guest without mappings has its programs in its image.
                _ if !asked.is_kernel => USER.into(),
                Some(found) => Arc::clone(found.module),
                None => KERNEL.into(),
            };
            let frame = Frame::new(function, module);
            match vmlinux {
                Some(vmlinux) => self.with_debug(frame, &vmlinux.debug, linked(vmlinux)),
                None => vec![frame],
            }
        });
        Resolved {
            frames,
            offset,
            file_address: asked.address,
        }
    }

    fn in_file(&self, mapping: &Mapping, asked: CodeAddress) -> Resolved {
        let file = self.file(mapping);
        let address = file_address(mapping, &file.segments, asked.address);
        let function = file.find(self.tables.file(mapping), address);
        let begin = function.map_or(address, |(_, begin)| begin);
        let key = if file.debug.is_some() { address } else { begin };
        let frames = self.once(Key::File(file.number, key), || {
            let name = match function {
                Some((name, _)) if !name.is_empty() => visible(&demangle(name)),
                _ => format!("{}+{begin:#x}", file.name),
            };
            let frame = Frame::new(name.into(), Arc::clone(&file.name));
            match &file.debug {
                Some(debug) => self.with_debug(frame, debug, address),
                None => vec![frame],
            }
        });
        Resolved {
            frames,
            offset: function.map(|(_, begin)| address - begin),
            file_address: address,
        }
    }

    /// Resolves a frame of a language: `function (file.py:7)`, with the line at which the function begins if that is known.
    fn in_language(&self, frame: LanguageFrame) -> Resolved {
        let word = frame.to_word();
        let frames = self.once(Key::Language(word), || {
            let language = frame.language_name();
            let found = self.tables.function(frame.function);
            let Some(function) = found else {
                let name = format!("{language}:{:#x}", frame.function);
                let module = format!("[{language}]");
                return vec![Frame::of_language(name, module)];
            };
            let (name, file) = (visible(&function.name), visible(&function.file));
            let module = match &*file {
                "" => format!("[{language}]"),
                file => module_name(file).to_owned(),
            };
            let name = match function.line {
                0 => format!("{name} ({module})"),
                line => format!("{name} ({module}:{line})"),
            };
            let line = frame.offset.and_then(|offset| function.line_at(offset));
            vec![Frame {
                source: line.map(|line| SourceLine {
                    file: file.into(),
                    line,
                }),
                ..Frame::of_language(name, module)
            }]
        });
        Resolved {
            frames,
            offset: frame.offset.map(u64::from),
            file_address: word,
        }
    }

    /// `outermost`, and the functions inlined into it.
    fn with_debug(&self, outermost: Frame, debug: &DebugFile, address: u64) -> Vec<Frame> {
        if self.is_hurried.get() {
            return vec![outermost];
        }
        let mut found = debug.frames(address);
        let last = found.pop();
        let mut frames: Vec<Frame> = found
            .into_iter()
            .map(|inlined| Frame {
                function: inlined
                    .name
                    .as_deref()
                    .map_or("[inlined]".into(), |name| visible(name).into()),
                module: Arc::clone(&outermost.module),
                source: inlined.source.map(plain),
                is_inlined: true,
                is_generated: false,
                is_of_language: false,
            })
            .collect();
        let (name, source) = last.map_or((None, None), |last| (last.name, last.source));
        // A symbol for a part of the function (foo.part.0) says more; an alias (_stext) says less.
        let name = name.filter(|name| !outermost.function.starts_with(name.as_str()));
        frames.push(Frame {
            function: name.map_or(Arc::clone(&outermost.function), |name| {
                visible(&name).into()
            }),
            source: source.map(plain),
            ..outermost
        });
        frames
    }

    pub(super) fn file(&self, mapping: &Mapping) -> Rc<LoadedFile> {
        let key = (mapping.binary, mapping.file.clone());
        if let Some(known) = self.files.borrow().get(&key) {
            return Rc::clone(known);
        }
        let number = u32::try_from(self.files.borrow().len()).unwrap_or(u32::MAX);
        let recorded = self.tables.file(mapping);
        let sources = (!self.is_hurried.get()).then_some(&self.file_sources);
        let loaded = LoadedFile::load(number, mapping, recorded, sources);
        let loaded = Rc::new(loaded);
        self.files.borrow_mut().insert(key, Rc::clone(&loaded));
        loaded
    }
}

fn plain(line: SourceLine) -> SourceLine {
    SourceLine {
        file: visible(&line.file).into(),
        ..line
    }
}

/// Whether the mapping has no file that the recording knows: `[anon]`, but not `[vdso]`, which has functions.
pub fn is_nameless(mapping: &Mapping) -> bool {
    mapping.binary.is_none() && (mapping.file.starts_with('[') || mapping.file.is_empty())
}
