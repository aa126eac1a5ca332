//! Memory of processes for tests: processes of this host, and memory made by hand.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::{ProcessMemory, ProgramFile, Runtime, recognize};

/// Words by their addresses; those between are 0 on pages that have any, and other pages aren't there.
#[derive(Clone, Default)]
pub struct Words {
    words: BTreeMap<u64, u64>,
    pub reads: usize,
}

impl Words {
    pub fn put(&mut self, address: u64, word: u64) {
        self.words.insert(address, word);
    }

    /// The addresses of all words.
    pub fn places(&self) -> Vec<u64> {
        self.words.keys().copied().collect()
    }

    fn has_page(&self, address: u64) -> bool {
        let page = address & !0xfff;
        self.words.range(page..page + 0x1000).next().is_some()
    }

    fn byte(&self, address: u64) -> Option<u8> {
        let (at, word) = self.words.range(..=address).next_back().unwrap_or((&0, &0));
        let distance = usize::try_from(address - at).ok()?;
        let byte = word.to_le_bytes().get(distance).copied();
        self.has_page(address).then(|| byte.unwrap_or(0))
    }
}

impl ProcessMemory for Words {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.reads += 1;
        let end = address.checked_add(buffer.len() as u64)?;
        (end >> 63 == 0).then_some(())?;
        for (address, byte) in (address..).zip(buffer) {
            *byte = self.byte(address)?;
        }
        Some(())
    }
}

/// A mapping of a file.
pub struct Mapping {
    pub begin: u64,
    pub end: u64,
    pub offset: u64,
    pub is_executable: bool,
    pub path: String,
}

impl Mapping {
    /// That of a line of /proc/PID/maps. `None` if it is none of a file.
    fn of_line(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, rights, offset, _, _, path] = words[..] else {
            return None;
        };
        let (begin, end) = range.split_once('-')?;
        path.starts_with('/').then(|| Self {
            begin: number(begin),
            end: number(end),
            offset: number(offset),
            is_executable: rights.contains('x'),
            path: path.to_owned(),
        })
    }
}

fn number(hexadecimal: &str) -> u64 {
    u64::from_str_radix(hexadecimal, 16).unwrap()
}

/// A process of this host that waits.
pub struct Waiting {
    process: Child,
    /// What it has said.
    pub line: String,
    /// The stack pointer and the program counter of the thread that waits.
    pub sp: u64,
    pub ip: u64,
    memory: File,
}

impl ProcessMemory for Waiting {
    fn read(&mut self, address: u64, buffer: &mut [u8]) -> Option<()> {
        (address >> 63 == 0).then_some(())?;
        self.memory.read_exact_at(buffer, address).ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Waiting {
    /// Runs `command`, which says a line, and then reads from its standard input.
    pub fn new(command: &mut Command) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = process.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        // It waits once a thread sleeps in read(2).
        let tasks = format!("/proc/{}/task", process.id());
        let [sp, ip] = loop {
            let mut tasks = fs::read_dir(&tasks).unwrap();
            let found = tasks.find_map(|task| {
                let path = task.unwrap().path().join("syscall");
                let call = fs::read_to_string(path).unwrap_or_default();
                let words: Vec<&str> = call.split_whitespace().collect();
                let ["0", "0x0", .., sp, ip] = words[..] else {
                    return None;
                };
                Some([sp, ip].map(|word| number(word.strip_prefix("0x").unwrap())))
            });
            match found {
                Some(found) => break found,
                None => std::thread::yield_now(),
            }
        };
        let memory = File::open(format!("/proc/{}/mem", process.id())).unwrap();
        Self {
            process,
            line,
            sp,
            ip,
            memory,
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its mappings of files.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> + use<> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.process.id())).unwrap();
        let mappings: Vec<Mapping> = maps.lines().filter_map(Mapping::of_line).collect();
        mappings.into_iter()
    }

    /// Its runtime, and the distance of that one's file from its own addresses. `None` if it is of a version that isn't known.
    pub fn runtime(&self) -> Option<(Arc<dyn Runtime>, u64)> {
        let mut files: BTreeMap<String, u64> = BTreeMap::new();
        for mapping in self.mappings().filter(|mapping| mapping.offset == 0) {
            files.entry(mapping.path).or_insert(mapping.begin);
        }
        files.into_iter().find_map(|(path, begin)| {
            let contents = fs::read(&path).ok()?;
            let runtime = recognize(&ProgramFile {
                path: &path,
                contents: &contents,
            })?;
            // A program at fixed addresses has its own ones.
            let is_fixed = contents[16] == 2;
            Some((runtime, if is_fixed { 0 } else { begin }))
        })
    }
}
