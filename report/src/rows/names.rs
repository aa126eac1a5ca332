//! Numbers the names of functions, processes and threads, and assigns addresses to functions for a recording.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use kvmprof_recording::file::{
    BinaryFunction, BinaryInfo, Block, Kind, Mapping, ProcessLabels, ProcessMappings, Segment,
};
use kvmprof_recording::{
    COMM_LENGTH, IDLE_PID, MAX_STACK_FRAMES, Mode, Sample, StackEnd, StackSummary, comm_of,
};

use super::{Row, RowsError};
use crate::model::{Code, Function, FunctionId, NameId, NodeId, PlaceId};
use crate::symbolize::{LabelSet, Labels};
use crate::text::visible;

/// Maximum number of bytes of all names, and the bytes that each name counts in addition: the result has to fit into a recording.
const MAX_NAMES: usize = 48 << 20;
const FOR_EACH_NAME: usize = 128;
/// Bytes of a function in a recording. Only the first one is used.
const STEP: u64 = 16;
/// The addresses of the first functions in the kernel and of the first module in user space, and the bits of an address within a module: modules and
/// functions are fewer than `2 * MAX_NAMES / FOR_EACH_NAME`.
const KERNEL_BEGIN: u64 = 0xffff_8000_0000_0000;
const USER_BEGIN: u64 = 1 << 32;
const MODULE_BITS: u32 = 24;
/// The distance of two processes' page tables, in bytes: a pair of pages each.
const TABLES: u64 = 1 << 13;
/// The function and module of samples without a stack.
const NO_STACK: (&str, &str) = ("[no stack]", "[unknown]");
/// Names in brackets of code of user mode that is in no file. All other names in brackets are of the kernel and its modules.
const USER_MODULES: [&str; 3] = ["[anon]", "[user]", "[vdso]"];

/// All names that were added so far.
#[derive(Debug, Default)]
pub struct Names {
    code: Code,
    /// The frames of the functions in `code`, which are numbered from 1.
    places: Vec<PlaceId>,
    /// The files that frames of processes are in, in a recording.
    modules: BTreeSet<(i32, NameId)>,
    /// The sets of labels of processes.
    labels: Labels,
    /// The numbers of processes that have the same labels, and of their threads.
    ids: BTreeMap<(NameId, LabelSet, Option<NameId>), i32>,
    /// The process whose number is [`IDLE_PID`].
    idle: Option<NameId>,
    /// The last other number that was assigned.
    last: i32,
    bytes: usize,
}

impl Names {
    /// The labels of `row`.
    ///
    /// # Errors
    /// There are too many names.
    pub fn labels(&mut self, row: &Row<'_>) -> Result<LabelSet, RowsError> {
        let known = self.labels.sets();
        let set = self.labels.set(row.labels.iter().copied());
        if self.labels.sets() > known {
            for (key, value) in row.labels {
                self.take(key.len().saturating_add(value.len()))?;
            }
        }
        Ok(set)
    }

    /// The sample that `row` stands for, without its time and addresses, and the functions of its stack, innermost first. Its process is that of its name with
    /// these `labels`; the idle process has none.
    ///
    /// # Errors
    /// There are too many names.
    pub fn place(
        &mut self,
        row: &Row<'_>,
        labels: LabelSet,
    ) -> Result<(Sample, Vec<FunctionId>), RowsError> {
        let stack = row.functions.iter().copied();
        let stack = stack.zip(row.modules.iter().copied().chain(std::iter::repeat("")));
        let mut stack: Vec<(&str, &str)> = stack.take(MAX_STACK_FRAMES).collect();
        if stack.is_empty() {
            stack.push(NO_STACK);
        }
        let kernel = match row.mode {
            Mode::User => 0,
            // As wherever frames are shown: the first one is the kernel's.
            _ => {
                let frames = stack.iter().skip(1);
                1 + frames.take_while(|(_, module)| is_kernel(module)).count()
            }
        };
        let (process, thread) = (self.name(row.process), self.name(row.thread));
        let is_idle = row.mode == Mode::Idle && *self.idle.get_or_insert(process) == process;
        let labels = if is_idle { LabelSet::default() } else { labels };
        let pid = self.id((process, labels, None), is_idle.then_some(IDLE_PID))?;
        let functions = stack.into_iter().enumerate();
        let functions = functions
            .map(|(number, (function, module))| self.function(function, module, number < kernel));
        let functions: Vec<FunctionId> = functions.collect::<Result<_, _>>()?;
        // A thread with the name of its process is the main thread.
        let is_main = process == thread && row.thread.len() < COMM_LENGTH;
        let tid = self.id((process, labels, Some(thread)), is_main.then_some(pid))?;
        let is_cut = row.functions.len() > functions.len();
        let sample = Sample {
            pid,
            tid,
            cpl: if row.mode == Mode::User { 3 } else { 0 },
            mode: row.mode,
            comm: comm_of(row.thread),
            address_space: tables(pid),
            stack: summary(kernel, functions.len() - kernel, is_cut),
            ..Sample::default()
        };
        Ok((sample, functions))
    }

    fn take(&mut self, bytes: usize) -> Result<(), RowsError> {
        self.bytes = (self.bytes.saturating_add(bytes)).saturating_add(FOR_EACH_NAME);
        (self.bytes <= MAX_NAMES)
            .then_some(())
            .ok_or(RowsError::TooManyNames)
    }

    fn name(&mut self, name: &str) -> NameId {
        let known = self.code.find_name(name);
        known.unwrap_or_else(|| self.code.name(&visible(name)))
    }

    /// The number of a process or thread. A new one gets `number`, or the next one.
    fn id(
        &mut self,
        names: (NameId, LabelSet, Option<NameId>),
        number: Option<i32>,
    ) -> Result<i32, RowsError> {
        if let Some(id) = self.ids.get(&names) {
            return Ok(*id);
        }
        let (process, _, thread) = names;
        self.take(self.code.text(thread.unwrap_or(process)).len())?;
        let id = number.unwrap_or_else(|| {
            // The limit of bytes for names bounds the numbers.
            self.last = self.last.saturating_add(1);
            self.last
        });
        self.ids.insert(names, id);
        Ok(id)
    }

    fn function(
        &mut self,
        name: &str,
        module: &str,
        is_kernel: bool,
    ) -> Result<FunctionId, RowsError> {
        let bytes = name.len().saturating_add(module.len());
        let function = Function {
            name: self.name(name),
            module: self.name(module),
            is_kernel,
        };
        let function = self.code.add_function(function);
        if function.index() > self.places.len() {
            self.take(bytes)?;
            self.places.push(self.code.add_named(function));
        }
        Ok(function)
    }

    /// The number of the stack of these `functions`, innermost first.
    pub fn node(&mut self, functions: &[FunctionId]) -> NodeId {
        let outermost_first = functions.iter().rev();
        outermost_first.fold(NodeId::default(), |caller, function| {
            let place = self.places[function.index() - 1];
            self.code.add_node(caller, place)
        })
    }

    /// The numbers, names and labels of processes.
    pub fn processes(&self) -> impl Iterator<Item = (i32, &str, LabelSet)> {
        let processes = self.ids.iter();
        let processes = processes.filter(|((.., thread), _)| thread.is_none());
        processes.map(|((name, labels, _), pid)| (*pid, &**self.code.text(*name), *labels))
    }

    /// The functions and stacks, and the labels of processes.
    pub fn into_parts(self) -> (Code, Labels) {
        (self.code, self.labels)
    }

    /// The addresses of `functions` of process `pid` in a recording.
    ///
    /// # Errors
    /// There are too many names.
    pub fn addresses(&mut self, pid: i32, functions: &[FunctionId]) -> Result<Vec<u64>, RowsError> {
        let mut addresses = Vec::with_capacity(functions.len());
        for id in functions {
            let function = self.code.function(*id);
            addresses.push(address(*id, function));
            if !function.is_kernel && self.modules.insert((pid, function.module)) {
                self.take(self.code.text(function.module).len())?;
            }
        }
        Ok(addresses)
    }

    /// The blocks of a recording that resolve the addresses to names.
    ///
    /// # Errors
    /// There are too many names.
    pub fn blocks(&self) -> Result<Vec<u8>, RowsError> {
        let mut symbols = String::new();
        let mut files: BTreeMap<NameId, Vec<BinaryFunction>> = BTreeMap::new();
        for (id, function) in self.code.functions() {
            let name = self.code.text(function.name);
            let address = address(id, function);
            if function.is_kernel {
                // The format of `/proc/kallsyms`, whose names have no spaces. Writing to a String cannot fail.
                let [name, module] = [name, self.code.text(function.module)]
                    .map(|name| name.replace(|c: char| c.is_ascii_whitespace(), "\u{a0}"));
                let _ = writeln!(symbols, "{address:x} t {name}\t{module}");
            } else {
                let functions = files.entry(function.module).or_default();
                functions.push(BinaryFunction {
                    address: address - begin(function.module),
                    length: STEP,
                    name: name.to_string(),
                });
            }
        }
        let files = files
            .iter()
            .map(|(module, functions)| self.file(*module).to_block(functions));
        let processes = self.processes();
        let processes = processes.map(|(pid, name, _)| self.mappings(pid, name).to_block());
        let labels = self.processes().filter_map(|(pid, _, labels)| {
            let labels = self.labels.get(labels);
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let labels = ProcessLabels {
                pid,
                time: 0,
                labels: labels.collect(),
            };
            (!labels.labels.is_empty()).then(|| labels.to_block())
        });
        let symbols = Block::encode(Kind::Symbols, symbols.as_bytes());
        let blocks = files.chain(processes).chain(labels).chain([symbols]);
        let blocks: Option<Vec<Vec<u8>>> = blocks.collect();
        Ok(blocks.ok_or(RowsError::TooManyNames)?.concat())
    }

    fn file(&self, module: NameId) -> BinaryInfo {
        BinaryInfo {
            id: number_of(module),
            file: self.code.text(module).to_string(),
            segments: vec![Segment {
                offset: 0,
                address: 0,
                length: 1 << MODULE_BITS,
            }],
            ..BinaryInfo::default()
        }
    }

    fn mappings(&self, pid: i32, name: &str) -> ProcessMappings {
        let own = (pid, NameId::default())..(pid + 1, NameId::default());
        let mapping = |(_, module): &(i32, NameId)| Mapping {
            begin: begin(*module),
            end: begin(*module) + (1 << MODULE_BITS),
            offset: 0,
            file: self.code.text(*module).to_string(),
            binary: Some(number_of(*module)),
        };
        ProcessMappings {
            address_space: tables(pid),
            pid,
            name: name.to_owned(),
            mappings: self.modules.range(own).map(mapping).collect(),
            ..ProcessMappings::default()
        }
    }
}

/// The number of a module in a recording.
fn number_of(module: NameId) -> u32 {
    u32::try_from(module.index()).unwrap_or(u32::MAX)
}

/// The begin of a module in user space.
fn begin(module: NameId) -> u64 {
    USER_BEGIN + (u64::from(number_of(module)) << MODULE_BITS)
}

/// The address of a function in a recording.
fn address(id: FunctionId, function: Function) -> u64 {
    let begin = if function.is_kernel {
        KERNEL_BEGIN
    } else {
        begin(function.module)
    };
    begin + id.index() as u64 * STEP
}

/// Whether a module is the kernel or one of its modules. A data set says that only by brackets.
fn is_kernel(module: &str) -> bool {
    module.starts_with('[') && !USER_MODULES.contains(&module)
}

/// The address of the page tables of a process.
fn tables(pid: i32) -> u64 {
    (u64::from(pid.unsigned_abs()) + 1) * TABLES
}

fn summary(kernel: usize, user: usize, is_cut: bool) -> StackSummary {
    // There are MAX_STACK_FRAMES at most.
    let number = |frames: usize| u16::try_from(frames).unwrap_or(u16::MAX);
    let end = |frames, is_cut| match (frames, is_cut) {
        (0, _) => StackEnd::Absent,
        (_, true) => StackEnd::Truncated,
        (_, false) => StackEnd::Complete,
    };
    StackSummary {
        kernel: number(kernel),
        user: number(user),
        host: 0,
        kernel_end: end(kernel, is_cut && user == 0),
        user_end: end(user, is_cut),
    }
}
