//! A guest's program built by this machine's compiler with debug information, and recordings of it.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]
#![allow(dead_code, reason = "each test uses a part")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use kvmprof_recording::elf::{self, ParsedBinary};
use kvmprof_recording::file::{BinaryFunction, BinaryInfo, Block, Kind, Mapping, ProcessMappings};
use kvmprof_recording::{Mode, Sample, StackEnd};
use tempfile::TempDir;

use super::recordings::{Written, stack_of};

/// `inner` is inlined into `outer`. Its body is line 2.
pub const SOURCE: &str = "\
volatile long total; static inline __attribute__((always_inline)) void inner(long x) {
    total += x * total;
}
__attribute__((noinline)) void outer(long x) {
    inner(x);
}
__asm__(\".globl _stext\\n.set _stext, outer\");
int main(void) { outer(7); return 0; }
";
/// The address of the program's mapping.
pub const BASE: u64 = 0x7f12_3450_0000;
/// The kernel's slide.
pub const SLIDE: u64 = 0xffff_ffff_6000_0000;

/// A folder with a guest's files, and the properties of its program.
pub struct Guest {
    pub folder: TempDir,
    pub program: ParsedBinary,
}

impl Guest {
    pub fn new() -> Self {
        Self::built(&[])
    }

    /// A guest whose program is built with further `options`.
    pub fn built(options: &[&str]) -> Self {
        Self::compiled("cc", "work.c", SOURCE, options)
    }

    /// A guest whose program `compiler` makes of `text`, in a file called `name`.
    pub fn compiled(compiler: &str, name: &str, text: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join(name);
        fs::write(&source, text).unwrap();
        let bin = folder.path().join("root/usr/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(folder.path().join("root/tmp")).unwrap();
        let program = bin.join("work");
        let status = Command::new(compiler)
            .current_dir(&bin)
            .args(["-g", "-O2", "-Wl,--build-id=0x0badc0de"])
            .args(options)
            .arg("-o")
            .args([&program, &source])
            .status();
        assert!(status.unwrap().success());
        let program = elf::parse(&fs::read(program).unwrap()).unwrap();
        Self { folder, program }
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub fn program_file(&self) -> PathBuf {
        self.root().join("usr/bin/work")
    }

    /// The address of a function in the file.
    pub fn address(&self, name: &str) -> u64 {
        self.function(name).address
    }

    pub fn function(&self, name: &str) -> &BinaryFunction {
        let mut functions = self.program.functions.iter();
        functions.find(|function| function.name == name).unwrap()
    }

    /// The blocks of the program's mappings, and of its file with this build id and these functions.
    pub fn blocks(&self, build_id: &str, functions: &[BinaryFunction]) -> [Vec<u8>; 2] {
        let binary = self.info(build_id).to_block(functions);
        [self.mappings(Some(1)).to_block().unwrap(), binary.unwrap()]
    }

    /// A recording of one sample of each of these stacks in user mode, and of the program with all of its functions.
    pub fn of_program(&self, build_id: &str, stacks: &[&[u64]]) -> PathBuf {
        let stacks: Vec<(&[u64], &[u64])> = stacks.iter().map(|user| (&[][..], *user)).collect();
        let blocks = self.blocks(build_id, &self.program.functions);
        self.recording(&stacks, &blocks)
    }

    /// The run-time address of the file's address `address`.
    pub fn mapped(&self, address: u64) -> u64 {
        let segment = self.program.segments[0];
        BASE + address - segment.address + (segment.offset & 0xfff)
    }

    pub fn mappings(&self, binary: Option<u32>) -> ProcessMappings {
        let segment = self.program.segments[0];
        let mapping = |begin, offset, file: &str, binary| Mapping {
            begin,
            end: begin + 0x1_0000,
            offset,
            file: file.to_owned(),
            binary,
        };
        ProcessMappings {
            address_space: 0x8000,
            pid: 77,
            name: String::new(),
            perf_map: "/tmp/perf-77.map".to_owned(),
            time: 1000,
            mappings: vec![
                mapping(BASE, segment.offset & !0xfff, "/usr/bin/work", binary),
                mapping(0x7fff_0000_0000, 0, "[anon]", None),
            ],
        }
    }

    pub fn info(&self, build_id: &str) -> BinaryInfo {
        BinaryInfo {
            id: 1,
            file: "/usr/bin/work".to_owned(),
            build_id: build_id.to_owned(),
            segments: self.program.segments.clone(),
            code_crc32: self.program.code_crc32,
            source: "initrd".to_owned(),
        }
    }

    /// A recording of one sample for each of `stacks`: kernel frames, user frames.
    pub fn recording(&self, stacks: &[(&[u64], &[u64])], blocks: &[Vec<u8>]) -> PathBuf {
        let mut written = Written::with_symbols("");
        written.info = Default::default();
        for (kernel, user) in stacks {
            let frames = [*kernel, *user].concat();
            let sample = Sample {
                time: 2000,
                pc: frames[0],
                pid: 77,
                tid: 77,
                address_space: 0x9000,
                mode: match kernel {
                    [] => Mode::User,
                    _ => Mode::Kernel,
                },
                stack: stack_of(kernel.len(), user.len(), StackEnd::Complete),
                ..Sample::default()
            };
            written.push(&sample.into(), &frames);
        }
        let path = self.folder.path().join("recording");
        let bytes = [written.finish().0, blocks.concat()].concat();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// A recording of an inlined function below `main`, and of an address that has no name. Returns its path and the stack.
    pub fn named_recording(&self) -> (PathBuf, [u64; 2]) {
        let inner = self.mapped(self.address("outer") + 8);
        let user = [inner, self.mapped(self.address("main"))];
        // Before the first function of the program's code.
        let segment = self.program.segments[0];
        let nameless = [BASE + (segment.offset & 0xfff)];
        let functions = ["outer", "main"].map(|name| self.function(name).clone());
        let blocks = self.blocks("0badc0de", &functions);
        let path = self.recording(&[(&[], &user), (&[], &nameless)], &blocks);
        (path, user)
    }

    pub fn kallsyms(&self) -> Vec<u8> {
        let line = |name| {
            let address = self.address(name).wrapping_add(SLIDE);
            format!("{address:x} T {name}\n")
        };
        let text = line("outer") + &line("main") + &line("outer").replace("outer", "_stext");
        Block::encode(Kind::Symbols, text.as_bytes()).unwrap()
    }
}
