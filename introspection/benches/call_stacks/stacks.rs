//! Stacks in a kernel of the size of distribution kernels, for benchmarks.

use vm_memory::{Bytes, GuestAddress};

use kvmprof_introspection::parts::{
    CodeRules, FileSymbol, KernelImage, KernelUnwinder, OrcFormat, PagedMemory, Segment,
    SymbolKind, UserRegisters,
};
use kvmprof_introspection::{
    AddressSpace, OrcTable, Registers, Stack, Symbols, UnwindCache, UnwindTable, UserUnwinder,
};
use kvmprof_introspection_fixtures::eh_frame::eh_frame;
use kvmprof_introspection_fixtures::kernel::TEXT;
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};
use kvmprof_introspection_fixtures::processes::PAGE;

/// Bytes of the kernel's code.
const CODE: u64 = 16 << 20;
/// Bytes between two entries of its unwind table: some 400,000 entries.
const SPACING: u64 = 40;
/// The address of the table.
const TABLE: u64 = TEXT + (32 << 20);
/// Bytes of each of the kernel's frames.
const FRAME: u64 = 48;
/// The distance between consecutive return addresses, which are far apart.
const STRIDE: u64 = 7_368_787;
const KERNEL_STACK: u64 = 0xffff_c900_0001_0000;
const USER_STACK: u64 = 0x7fff_f000_0000;
const USER_CODE: u64 = 0x40_0000;
/// Pages of the user code. Each frame is in another page.
const USER_PAGES: u64 = 64;
/// Functions of the file with the user code.
const USER_FUNCTIONS: u64 = 20_000;
const STACK_PAGES: u64 = 4;
/// The offset of the stack without frame pointers from the other one.
const FRAMELESS: u64 = 0x2000;
/// Physical addresses.
const TABLES: u64 = 0x1_0000;
const KERNEL_STACK_PAGES: u64 = 0x10_0000;
const USER_STACK_PAGES: u64 = 0x11_0000;
const USER_CODE_PAGES: u64 = 0x12_0000;

/// A vCPU in the kernel and two in user mode, one of them in code without frame pointers. All stacks have the same
/// number of frames.
#[derive(Debug)]
pub struct DeepStacks {
    orc: OrcTable,
    rules: CodeRules,
    memory: Memory,
    kernel: Registers,
    user: Registers,
    frameless: Registers,
    unwinder: UserUnwinder,
    cache: UnwindCache,
}

impl DeepStacks {
    /// Stacks of `frames` frames, 2 to 64.
    pub fn new(frames: u64) -> Self {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
        let mut tables = Tables::new(memory, TABLES, 4);
        for page in (0..STACK_PAGES).map(|page| page * PAGE) {
            tables.map(KERNEL_STACK + page, KERNEL_STACK_PAGES + page, 1);
            tables.map(USER_STACK + page, USER_STACK_PAGES + page, 1);
        }
        for page in (0..USER_PAGES).map(|page| page * PAGE) {
            tables.map(USER_CODE + page, USER_CODE_PAGES + page, 1);
        }
        let registers = long_mode(TABLES, false);
        let user = Registers {
            rip: USER_CODE,
            rsp: USER_STACK,
            rbp: USER_STACK + 0x20,
            cpl: 3,
            is_64_bit_code: true,
            ..registers
        };
        let stacks = Self {
            orc: table(),
            rules: rules(),
            memory: tables.memory,
            kernel: Registers {
                rip: TEXT + 100,
                rsp: KERNEL_STACK,
                ..registers
            },
            user,
            frameless: Registers {
                rsp: USER_STACK + FRAMELESS,
                // A value that isn't a frame pointer.
                rbp: 1,
                ..user
            },
            unwinder: unwinder(),
            cache: UnwindCache::default(),
        };
        stacks.fill(frames);
        stacks
    }

    fn fill(&self, frames: u64) {
        let write = |physical: u64, word: u64| {
            self.memory.write_obj(word, GuestAddress(physical)).unwrap();
        };
        // Every eight bytes of user code end with a call's first byte and its operand.
        for place in (0..USER_PAGES * PAGE).step_by(8) {
            write(USER_CODE_PAGES + place, u64::from_le_bytes([0xe8; 8]));
        }
        for index in 1..frames {
            // The last return address is at the table's entry for the stack's end.
            let code = if index == frames - 1 {
                CODE - 8
            } else {
                index * STRIDE % (CODE - 2 * SPACING) / SPACING * SPACING
            };
            write(KERNEL_STACK_PAGES + index * FRAME - 8, TEXT + code + 1);
            let frame = USER_STACK_PAGES + index * 0x20;
            let caller = if index == frames - 1 {
                0
            } else {
                USER_STACK + (index + 1) * 0x20
            };
            write(frame, caller);
            write(frame + 8, USER_CODE + index % USER_PAGES * PAGE + 0x100);
            // The last frame's function is marked as the outermost.
            let page = if index == frames - 1 {
                USER_PAGES - 1
            } else {
                index % (USER_PAGES - 1)
            };
            let place = USER_STACK_PAGES + FRAMELESS + index * FRAME - 8;
            write(place, USER_CODE + page * PAGE + 0x108);
        }
    }

    /// Unwinds the kernel stack by the table.
    pub fn unwind_kernel(&self, stack: &mut Stack) {
        self.unwind(Some(&self.orc), None, stack);
    }

    /// Unwinds the kernel stack by the rules that the code gives.
    pub fn unwind_by_code(&self, stack: &mut Stack) {
        self.unwind(None, Some(&self.rules), stack);
    }

    fn unwind(&self, orc: Option<&OrcTable>, rules: Option<&CodeRules>, stack: &mut Stack) {
        stack.clear();
        let space = AddressSpace::new(&self.memory, &self.kernel);
        let mut memory = PagedMemory::new(&self.memory, |address| space.translate(address));
        let unwinder = KernelUnwinder {
            orc,
            rules,
            modules: None,
            initcalls: None,
            slide: 0,
            image: TEXT..TEXT + CODE,
            hooks: None,
        };
        unwinder.walk(&self.kernel, &mut memory, stack);
    }

    /// Unwinds the user stack.
    pub fn unwind_user(&self, stack: &mut Stack) {
        stack.clear();
        let space = AddressSpace::new(&self.memory, &self.user);
        let mut memory = PagedMemory::new(&self.memory, |address| space.translate(address));
        stack.walk_user(&UserRegisters::new(&self.user), None, &mut memory);
    }

    /// Unwinds the user stack without frame pointers.
    pub fn unwind_frameless(&mut self, stack: &mut Stack) {
        stack.clear();
        let space = AddressSpace::new(&self.memory, &self.frameless);
        let mut memory = PagedMemory::new(&self.memory, |address| space.translate(address));
        let start = UserRegisters::new(&self.frameless);
        let tables = Some((&self.unwinder, &mut self.cache));
        stack.walk_user(&start, tables, &mut memory);
    }
}

/// The unwind information of the user code, in a file with as many functions as a large library.
fn unwinder() -> UserUnwinder {
    let frame = [0x0e, u8::try_from(FRAME).unwrap()];
    let last = USER_CODE + (USER_PAGES - 1) * PAGE;
    let functions: Vec<(u64, &[u8])> = (USER_CODE..USER_CODE + USER_FUNCTIONS * 0x100)
        .step_by(0x100)
        .map(|address| {
            let is_last = address & !(PAGE - 1) == last;
            (address, if is_last { &[0x07, 16] } else { &frame[..] })
        })
        .collect();
    let section = USER_CODE + USER_FUNCTIONS * 0x100;
    let segments = vec![(0, USER_CODE, USER_FUNCTIONS * 0x100)];
    let table = UnwindTable::new(&eh_frame(section, &functions), section, 0, segments);
    let table = table.unwrap().into();
    UserUnwinder::new([(USER_CODE, section, 0, table)])
}

/// The rules of functions that do the same: they end with what gives their frame back. The last one ends the stack.
fn rules() -> CodeRules {
    /// `add $40, %rsp; ret`.
    const END: [u8; 5] = [0x48, 0x83, 0xc4, 0x28, 0xc3];
    const NOP: u8 = 0x90;
    let spacing = usize::try_from(SPACING).unwrap();
    let mut code = vec![NOP; usize::try_from(CODE).unwrap()];
    for function in code.chunks_exact_mut(spacing) {
        function[spacing - END.len()..].copy_from_slice(&END);
    }
    let function = |address, name| FileSymbol {
        address,
        name,
        kind: SymbolKind::Function,
        size: 0,
    };
    let functions = (TEXT..TEXT + CODE - 8).step_by(spacing);
    let named = [
        function(TEXT, b"_stext".as_slice()),
        function(TEXT + CODE - 8, b"secondary_startup_64"),
        function(TEXT + CODE, b"_etext"),
    ];
    let symbols = functions.map(|address| function(address, b"function".as_slice()));
    let symbols = Symbols::from_table(symbols.chain(named), Vec::new());
    let image = KernelImage::from_memory(vec![Segment {
        address: TEXT,
        data: &code,
        memory_length: CODE,
    }]);
    CodeRules::find(&image, &symbols).unwrap()
}

/// A table of equal entries, except the last, which ends the stack.
fn table() -> OrcTable {
    let (mut addresses, mut entries) = (Vec::new(), Vec::new());
    let offsets = (0..CODE)
        .step_by(usize::try_from(SPACING).unwrap())
        .chain([CODE - 8]);
    for (offset, place) in offsets.zip((TABLE..).step_by(4)) {
        let distance = (TEXT + offset).wrapping_sub(place).cast_signed();
        addresses.extend(i32::try_from(distance).unwrap().to_le_bytes());
        // The stack pointer and a call, or the end.
        let [base, kind] = if offset == CODE - 8 { [0, 1] } else { [5, 2] };
        entries.extend(i16::try_from(FRAME).unwrap().to_le_bytes());
        entries.extend([0, 0, base, kind]);
    }
    let format = OrcFormat::from_kernel("6.12.0", &entries).unwrap();
    OrcTable::parse(TABLE, &addresses, &entries, format).unwrap()
}
