//! Assigns addresses to functions, and numbers to processes and threads.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use foldhash::fast::RandomState;
use kvmprof_recording::file::{
    BinaryFunction, BinaryInfo, Block, Kind, Mapping, ProcessMappings, Segment,
};
use kvmprof_recording::{
    COMM_LENGTH, IDLE_PID, MAX_STACK_FRAMES, Mode, Sample, StackEnd, StackSummary,
};

use super::{Row, RowsError};

/// Maximum number of bytes of all names, and the bytes that each name counts in addition: the result has to fit into a recording.
const MAX_NAMES: usize = 48 << 20;
const FOR_EACH_NAME: usize = 128;
/// Bytes of a function. Only the first one is used.
const STEP: u64 = 16;
/// The addresses of the first modules in the kernel and in user space, the bits of an address within a module, and the maximum number of modules.
const KERNEL_BEGIN: u64 = 0xffff_8000_0000_0000;
const USER_BEGIN: u64 = 1 << 32;
const MODULE_BITS: u32 = 32;
const MAX_MODULES: usize = 1 << 14;
/// The distance of two processes' page tables, in bytes: a pair of pages each.
const TABLES: u64 = 1 << 13;
/// The function and module of samples without a stack.
const NO_STACK: (&str, &str) = ("[no stack]", "[unknown]");
/// Names in brackets of code of user mode that is in no file. All other names in brackets are of the kernel and its modules.
const USER_MODULES: [&str; 3] = ["[anon]", "[user]", "[vdso]"];

/// The functions of the kernel, of a kernel module or of a file.
#[derive(Debug)]
struct Module {
    name: String,
    is_kernel: bool,
    begin: u64,
    /// The functions in the order of their addresses.
    functions: Vec<String>,
    addresses: HashMap<String, u64, RandomState>,
}

#[derive(Debug, Default)]
struct Process {
    pid: i32,
    name: String,
    threads: HashMap<String, i32, RandomState>,
    /// The files that frames of the process are in.
    modules: BTreeSet<usize>,
}

/// All names that were added so far.
#[derive(Debug, Default)]
pub struct Names {
    modules: Vec<Module>,
    /// The indices in `modules` by name, of modules of user mode and of the kernel.
    places: [HashMap<String, usize, RandomState>; 2],
    processes: Vec<Process>,
    pids: HashMap<String, usize, RandomState>,
    /// The last number that was assigned to a process or thread.
    last: i32,
    bytes: usize,
}

impl Names {
    /// The sample that `row` stands for, without its time, and the frames of its stack.
    ///
    /// # Errors
    /// There are too many names.
    pub fn place(&mut self, row: &Row<'_>) -> Result<(Sample, Vec<u64>), RowsError> {
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
        let process = self.process(row)?;
        let mut frames = Vec::with_capacity(stack.len());
        for (number, (function, module)) in stack.iter().enumerate() {
            let module = self.module(module, number < kernel)?;
            frames.push(self.function(module, function)?);
            if number >= kernel && self.processes[process].modules.insert(module) {
                self.take(self.modules[module].name.len())?;
            }
        }
        let is_cut = row.functions.len() > frames.len();
        let (pid, tid) = self.thread(process, row.thread)?;
        let sample = Sample {
            pc: frames.first().copied().unwrap_or_default(),
            pid,
            tid,
            cpl: if row.mode == Mode::User { 3 } else { 0 },
            mode: row.mode,
            comm: comm(row.thread),
            address_space: tables(pid),
            stack: summary(kernel, frames.len() - kernel, is_cut),
            ..Sample::default()
        };
        Ok((sample, frames))
    }

    fn take(&mut self, bytes: usize) -> Result<(), RowsError> {
        self.bytes = (self.bytes.saturating_add(bytes)).saturating_add(FOR_EACH_NAME);
        (self.bytes <= MAX_NAMES)
            .then_some(())
            .ok_or(RowsError::TooManyNames)
    }

    /// Assigns the next number of a process or thread.
    fn next(&mut self) -> i32 {
        // The limit of bytes for names bounds the numbers.
        self.last = self.last.saturating_add(1);
        self.last
    }

    fn process(&mut self, row: &Row<'_>) -> Result<usize, RowsError> {
        if let Some(place) = self.pids.get(row.process) {
            return Ok(*place);
        }
        self.take(row.process.len())?;
        // The idle process has a fixed number.
        let is_idle =
            row.mode == Mode::Idle && self.processes.iter().all(|one| one.pid != IDLE_PID);
        let pid = if is_idle { IDLE_PID } else { self.next() };
        let place = self.processes.len();
        self.processes.push(Process {
            pid,
            name: row.process.to_owned(),
            ..Process::default()
        });
        self.pids.insert(row.process.to_owned(), place);
        Ok(place)
    }

    /// The numbers of a process and its thread. A thread with the name of its process is the main thread.
    fn thread(&mut self, process: usize, thread: &str) -> Result<(i32, i32), RowsError> {
        let Process {
            pid, name, threads, ..
        } = &self.processes[process];
        let pid = *pid;
        if let Some(tid) = threads.get(thread) {
            return Ok((pid, *tid));
        }
        let is_main = name == thread && thread.len() < COMM_LENGTH;
        self.take(thread.len())?;
        let tid = if is_main { pid } else { self.next() };
        let threads = &mut self.processes[process].threads;
        threads.insert(thread.to_owned(), tid);
        Ok((pid, tid))
    }

    fn module(&mut self, name: &str, is_kernel: bool) -> Result<usize, RowsError> {
        if let Some(place) = self.places[usize::from(is_kernel)].get(name) {
            return Ok(*place);
        }
        self.take(name.len())?;
        let place = self.modules.len();
        if place >= MAX_MODULES {
            return Err(RowsError::TooManyNames);
        }
        let begin = if is_kernel { KERNEL_BEGIN } else { USER_BEGIN };
        self.modules.push(Module {
            name: name.to_owned(),
            is_kernel,
            begin: begin + ((place as u64) << MODULE_BITS),
            functions: Vec::new(),
            addresses: HashMap::default(),
        });
        self.places[usize::from(is_kernel)].insert(name.to_owned(), place);
        Ok(place)
    }

    fn function(&mut self, module: usize, name: &str) -> Result<u64, RowsError> {
        if let Some(address) = self.modules[module].addresses.get(name) {
            return Ok(*address);
        }
        self.take(name.len())?;
        let module = &mut self.modules[module];
        let address = module.begin + module.functions.len() as u64 * STEP;
        module.functions.push(name.to_owned());
        module.addresses.insert(name.to_owned(), address);
        Ok(address)
    }

    /// The blocks of a recording that resolve the addresses to names.
    ///
    /// # Errors
    /// There are too many names.
    pub fn blocks(&self) -> Result<Vec<u8>, RowsError> {
        let mut symbols = String::new();
        let mut blocks = Vec::new();
        for (id, module) in (0..).zip(&self.modules) {
            if module.is_kernel {
                module.add_symbols(&mut symbols);
            } else {
                blocks.push(module.binary(id));
            }
        }
        for process in &self.processes {
            blocks.push(self.mappings(process).to_block());
        }
        blocks.push(Block::encode(Kind::Symbols, symbols.as_bytes()));
        let blocks: Option<Vec<Vec<u8>>> = blocks.into_iter().collect();
        Ok(blocks.ok_or(RowsError::TooManyNames)?.concat())
    }

    fn mappings(&self, process: &Process) -> ProcessMappings {
        let modules = process.modules.iter();
        let mapping = |place: &usize| {
            let module = &self.modules[*place];
            Mapping {
                begin: module.begin,
                end: module.begin + module.length(),
                offset: 0,
                file: module.name.clone(),
                binary: u32::try_from(*place).ok(),
            }
        };
        ProcessMappings {
            address_space: tables(process.pid),
            pid: process.pid,
            name: process.name.clone(),
            mappings: modules.map(mapping).collect(),
            ..ProcessMappings::default()
        }
    }
}

impl Module {
    /// The size of all its functions, in bytes.
    fn length(&self) -> u64 {
        self.functions.len() as u64 * STEP
    }

    fn functions(&self) -> impl Iterator<Item = (u64, &str)> {
        let functions = (0_u64..).zip(&self.functions);
        functions.map(|(number, name)| (number * STEP, name.as_str()))
    }

    /// Adds the functions in the format of `/proc/kallsyms`, whose names have no spaces.
    fn add_symbols(&self, text: &mut String) {
        let whole = |name: &str| name.replace(|c: char| c.is_ascii_whitespace(), "\u{a0}");
        let module = whole(&self.name);
        for (offset, name) in self.functions() {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:x} t {}\t{module}",
                self.begin + offset,
                whole(name)
            );
        }
        text.push('\n');
    }

    fn binary(&self, id: u32) -> Option<Vec<u8>> {
        let functions = self.functions();
        let functions: Vec<BinaryFunction> = functions
            .map(|(address, name)| BinaryFunction {
                address,
                length: STEP,
                name: name.to_owned(),
            })
            .collect();
        let info = BinaryInfo {
            id,
            file: self.name.clone(),
            segments: vec![Segment {
                offset: 0,
                address: 0,
                length: self.length(),
            }],
            ..BinaryInfo::default()
        };
        info.to_block(&functions)
    }
}

/// Whether a module is the kernel or one of its modules. A data set says that only by brackets.
fn is_kernel(module: &str) -> bool {
    module.starts_with('[') && !USER_MODULES.contains(&module)
}

/// The address of the page tables of a process.
fn tables(pid: i32) -> u64 {
    (u64::from(pid.unsigned_abs()) + 1) * TABLES
}

/// A thread's name, cut to the length of a comm.
fn comm(name: &str) -> [u8; COMM_LENGTH] {
    let mut comm = [0; COMM_LENGTH];
    let mut ends = (0..COMM_LENGTH.min(name.len() + 1)).rev();
    let end = ends.find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    comm[..end].copy_from_slice(&name.as_bytes()[..end]);
    comm
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
