//! Call stacks of the host below a guest's: they show what the host's kernel and the VMM did for a vCPU when a tick came.
//!
//! The host's kernel unwinds its own part. The VMM's part is a copy of its stack, which is unwound here by the unwind tables of the VMM's
//! files. Addresses don't leave this module: guests and readers of recordings must not see addresses of the host's kernel.
//! Each function gets a number instead, when it is first seen.

mod kernel_functions;
mod program;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmprof_introspection::{StackCopy, UnwindCache};
use kvmprof_recording::{FaultKind, HOST_FRAMES, StackEnd};

use kernel_functions::KernelFunctions;
use program::{OpenProgram, Program};

use crate::exits::ExitNames;
use crate::tracepoint::Tracepoint;

/// Maximum number of functions that get numbers. Functions that are seen later count as unknown.
const MAX_FUNCTIONS: usize = 1 << 14;
/// Maximum number of addresses for which the function and the code are cached.
const MAX_ADDRESSES: usize = 1 << 16;

/// Why the host's stacks can't be read.
#[derive(Debug, thiserror::Error)]
pub enum HostStacksError {
    /// The list of the kernel's functions can't be read.
    #[error("Cannot read /proc/kallsyms for the names of the host's functions: {0}")]
    Kallsyms(io::Error),
    /// The list has no addresses.
    #[error(
        "The host's kernel keeps the addresses of its functions from this process: run it with CAP_SYSLOG, or set the host's sysctl \
         kernel.kptr_restrict to 0 or 1"
    )]
    Hidden,
    /// The mappings of the VMM can't be read.
    #[error("Cannot read the mappings of process {pid}, whose call stacks are asked for: {source}")]
    Mappings {
        /// The VMM.
        pid: i32,
        /// The system's answer.
        source: io::Error,
    },
}

/// The functions of the host's kernel and of one VMM, the unwind tables of the VMM, and the names of exits, as far as they are known. Threads can share it.
#[derive(Debug)]
pub struct HostStacks {
    kernel: KernelFunctions,
    program: Program,
    exits: ExitNames,
    seen: Mutex<FunctionTable>,
}

/// Functions that were seen on stacks until now.
#[derive(Debug, Default)]
struct FunctionTable {
    /// The numbers of functions, by address and by `NAME\tMODULE`.
    by_address: HashMap<u64, u64>,
    by_name: HashMap<String, u64>,
    /// A line for each number, in the form of `/proc/kallsyms`.
    text: String,
    /// The code that ends right before an address, by address.
    code: HashMap<u64, Option<[u8; 8]>>,
    cache: UnwindCache,
}

/// Functions that were seen for the first time.
#[derive(Debug)]
pub struct NewHostFunctions {
    /// A text in the form of `/proc/kallsyms`, with numbers from [`HOST_FRAMES`] on for addresses. The module of the kernel's own functions is `[host:kernel]`, that of the
    /// kernel's module kvm `[host:kvm]`, and that of a program its file's name, as `[host:qemu-system-x86_64]`.
    pub text: String,
    /// The length of the text of all functions seen so far, these included, in bytes.
    pub known: u64,
}

/// What [`HostStacks`] are made of: the functions of the host's kernel, and the VMM's files, which are open and not read yet; by default none of either.
#[derive(Debug, Default)]
pub struct OpenHostStacks {
    kernel: KernelFunctions,
    program: OpenProgram,
    exits: ExitNames,
}

impl OpenHostStacks {
    /// The same, with the names of exits, as the tracepoint `exit` has them: `kvm_exit`.
    #[must_use]
    pub fn with_exits(self, exit: &Tracepoint) -> Self {
        Self {
            exits: ExitNames::of(exit),
            ..self
        }
    }

    /// Reads the files, which takes no rights any more. They are untrusted.
    pub fn read(self) -> HostStacks {
        let stacks = HostStacks {
            kernel: self.kernel,
            program: self.program.read(),
            exits: self.exits,
            seen: Mutex::default(),
        };
        if stacks.has_functions() {
            stacks.seen().number_others();
        }
        stacks
    }
}

impl HostStacks {
    /// Reads the functions of the host's kernel, and opens the files that process `pid` has mapped. Files that it maps later are unknown.
    ///
    /// # Errors
    /// The kernel hides its functions, or this process may not look into the other one.
    pub fn open(pid: i32) -> Result<OpenHostStacks, HostStacksError> {
        let kernel = KernelFunctions::read().map_err(HostStacksError::Kallsyms)?;
        if kernel.is_empty() {
            return Err(HostStacksError::Hidden);
        }
        let program =
            OpenProgram::open(pid).map_err(|source| HostStacksError::Mappings { pid, source })?;
        Ok(OpenHostStacks {
            kernel,
            program,
            exits: ExitNames::default(),
        })
    }

    /// Does both for process `pid`.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn read(pid: i32) -> Result<Self, HostStacksError> {
        Self::open(pid).map(OpenHostStacks::read)
    }

    /// Whether the functions of the host's kernel are known, without which there are no stacks.
    pub fn has_functions(&self) -> bool {
        !self.kernel.is_empty()
    }

    /// The frame for an exit with the processor's `reason`, as the instruction set `isa` (`KVM_ISA_*`) has it: a number from [`HOST_FRAMES`] on, of a function with
    /// the reason's name in the module `[host:exit]`.
    pub fn exit(&self, reason: u32, isa: u32) -> u64 {
        self.frame(&self.exits.name(reason, isa), "exit")
    }

    /// The frame for a fault of guest memory of this kind: the same in the module `[host:fault]`.
    pub fn fault(&self, kind: FaultKind) -> u64 {
        self.frame(kind.name(), "fault")
    }

    /// The frame that has this name in the host's `module`.
    fn frame(&self, name: &str, module: &str) -> u64 {
        let mut seen = self.seen();
        seen.number_others();
        HOST_FRAMES + seen.number_of(named(name, module))
    }

    fn seen(&self) -> MutexGuard<'_, FunctionTable> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the frames of a stack to `frames`, innermost first: numbers of functions from [`HOST_FRAMES`] on. The stack has these frames of the
    /// `kernel`, and behind them those of the `program`: RIP, RSP and RBP, and the copy of its stack from RSP on.
    pub fn unwind(
        &self,
        kernel: impl Iterator<Item = u64>,
        program: Option<([u64; 3], &[u8])>,
        frames: &mut Vec<u64>,
    ) {
        let mut seen = self.seen();
        let mut is_first = true;
        for address in kernel {
            // A return address is behind its call instruction.
            let inside = address.wrapping_sub(u64::from(!is_first));
            is_first = false;
            frames.push(seen.number_at(inside, || self.kernel.name(inside)));
        }
        let Some((registers, bytes)) = program else {
            return;
        };
        let FunctionTable { code, cache, .. } = &mut *seen;
        let mut addresses = Vec::new();
        let copy = StackCopy {
            address: registers[1],
            bytes,
        };
        let end = self.program.unwinder().unwind_copied(
            registers,
            copy,
            |end| {
                if code.len() >= MAX_ADDRESSES {
                    code.clear();
                }
                *(code.entry(end)).or_insert_with(|| self.program.code_before(end))
            },
            cache,
            |address| {
                addresses.push(address);
                addresses.len() < MAX_PROGRAM_FRAMES
            },
        );
        for address in addresses {
            frames.push(seen.number_at(address, || self.program.name(address)));
        }
        if end != StackEnd::Complete {
            frames.push(HOST_FRAMES + CUT_SHORT);
        }
    }

    /// The functions that were seen after the first `known` bytes of their text; none if there are no more.
    pub fn functions_after(&self, known: u64) -> Option<NewHostFunctions> {
        let seen = self.seen();
        let text = seen.text.get(usize::try_from(known).ok()?..)?;
        (!text.is_empty()).then(|| NewHostFunctions {
            text: text.to_owned(),
            known: seen.text.len() as u64,
        })
    }
}

/// Maximum number of frames of the VMM's part.
const MAX_PROGRAM_FRAMES: usize = 64;
/// Numbers that don't stand for a function.
const UNKNOWN: u64 = 0;
const CUT_SHORT: u64 = 1;

impl FunctionTable {
    /// The frame for `address`. `name` finds the name of its function.
    fn number_at(&mut self, address: u64, name: impl FnOnce() -> Option<String>) -> u64 {
        if let Some(number) = self.by_address.get(&address) {
            return HOST_FRAMES + number;
        }
        let number = name().map_or(UNKNOWN, |name| self.number_of(name));
        if self.by_address.len() >= MAX_ADDRESSES {
            self.by_address.clear();
        }
        self.by_address.insert(address, number);
        HOST_FRAMES + number
    }

    /// Gives the first numbers to what stands for no function, unless it has them.
    fn number_others(&mut self) {
        if !self.by_name.is_empty() {
            return;
        }
        for name in ["[unknown]\t[host]", "[cut_short]\t[host]"] {
            self.number_of(name.to_owned());
        }
    }

    /// The number of the function that is called `NAME\tMODULE`.
    fn number_of(&mut self, name: String) -> u64 {
        if let Some(number) = self.by_name.get(&name) {
            return *number;
        }
        if self.by_name.len() >= MAX_FUNCTIONS {
            return UNKNOWN;
        }
        let number = self.by_name.len() as u64;
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{:016x} t {name}", HOST_FRAMES + number);
        self.by_name.insert(name, number);
        number
    }
}

/// `NAME\tMODULE` for [`FunctionTable`], without the characters that separate words in either.
fn named(function: &str, module: &str) -> String {
    let plain = |text: &str| {
        let character = |character: char| match character {
            '[' | ']' => '_',
            _ if character.is_whitespace() || character.is_control() => '_',
            _ => character,
        };
        text.chars().map(character).collect::<String>()
    };
    format!("{}\t[host:{}]", plain(function), plain(module))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> HostStacks {
        HostStacks::read(std::process::id().cast_signed()).unwrap()
    }

    #[test]
    fn functions_are_numbered_in_order_of_appearance() {
        let stacks = own();
        let first = stacks.functions_after(0).unwrap();
        assert_eq!(first.text.lines().count(), 2, "{}", first.text);
        assert!(stacks.functions_after(first.known).is_none());
        let mut seen = stacks.seen();
        let one = seen.number_at(0x1000, || Some(named("kvm_vcpu_ioctl", "kvm")));
        let same = seen.number_at(0x1010, || Some(named("kvm_vcpu_ioctl", "kvm")));
        let unknown = seen.number_at(0x2000, || None);
        drop(seen);
        assert_eq!((one, same), (HOST_FRAMES + 2, HOST_FRAMES + 2));
        assert_eq!(unknown, HOST_FRAMES + UNKNOWN);
        let next = stacks.functions_after(first.known).unwrap();
        assert_eq!(next.text, "fe00000000000002 t kvm_vcpu_ioctl\t[host:kvm]\n");
    }

    /// The frames of a stack that is a copy of this thread's own.
    #[inline(never)]
    fn own_stack(stacks: &HostStacks, kernel: &[u64], length: usize) -> Vec<u64> {
        let (rip, rsp, rbp): (u64, u64, u64);
        // SAFETY: registers are read, and nothing else is done.
        unsafe {
            std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) rip, out(reg) rsp, out(reg) rbp,
                options(nomem, nostack, preserves_flags));
        }
        let mut copy = vec![0; length];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let read = std::os::unix::fs::FileExt::read_at(&memory, &mut copy, rsp).unwrap();
        let program = Some(([rip, rsp, rbp], &copy[..read]));
        let mut frames = Vec::new();
        stacks.unwind(kernel.iter().copied(), program, &mut frames);
        frames
    }

    fn names(stacks: &HostStacks, frames: &[u64]) -> Vec<String> {
        let text = stacks.functions_after(0).unwrap().text;
        let lines: Vec<&str> = text.lines().collect();
        let name = |frame: &u64| {
            let line = lines[usize::try_from(frame - HOST_FRAMES).unwrap()];
            line.split_once(" t ").unwrap().1.to_owned()
        };
        frames.iter().map(name).collect()
    }

    #[test]
    fn a_copied_stack_unwinds_to_the_start_of_the_thread() {
        let stacks = own();
        let ioctl = stacks.kernel.address_of("__x64_sys_ioctl").unwrap();
        // It was interrupted at its first byte, and called behind another one's last.
        let frames = own_stack(&stacks, &[ioctl, ioctl + 1], 1 << 16);
        let names = names(&stacks, &frames);
        assert_eq!(names[..2], ["__x64_sys_ioctl\t[host:kernel]"; 2]);
        assert!(names[2].contains("own_stack"), "{names:?}");
        assert!(names[3].contains("a_copied_stack_unwinds_to"), "{names:?}");
        assert!(
            !names.contains(&"[cut_short]\t[host]".to_owned()),
            "{names:?}"
        );
    }

    #[test]
    fn truncated_copies_are_marked() {
        let stacks = own();
        let names = names(&stacks, &own_stack(&stacks, &[], 8));
        assert!(names[0].contains("own_stack"), "{names:?}");
        assert_eq!(names.last().unwrap(), "[cut_short]\t[host]");
    }

    /// Samples of exits have the reasons' names without the host's functions.
    #[test]
    fn exits_have_names_without_the_hosts_functions() {
        let stacks = OpenHostStacks::default().read();
        assert!(!stacks.has_functions() && stacks.functions_after(0).is_none());
        let frames = [
            stacks.exit(0x7b, 2),
            stacks.exit(12, 1),
            stacks.exit(0x7b, 2),
        ];
        assert_eq!(frames, [HOST_FRAMES + 2, HOST_FRAMES + 3, HOST_FRAMES + 2]);
        assert_eq!(
            names(&stacks, &frames[..2]),
            ["0x7b\t[host:exit]", "0xc\t[host:exit]"]
        );
    }

    #[test]
    fn names_are_one_word() {
        assert_eq!(named("a b\n", "x [y]"), "a_b_\t[host:x__y_]");
    }

    #[test]
    fn the_number_of_functions_is_bounded() {
        let mut seen = FunctionTable::default();
        for number in 0..MAX_FUNCTIONS + 10 {
            seen.number_of(format!("f{number}\t[host:x]"));
        }
        assert_eq!(seen.by_name.len(), MAX_FUNCTIONS);
        assert_eq!(seen.number_of("g\t[host:x]".to_owned()), UNKNOWN);
    }
}
