//! Kernels put together for tests: their ELF file, with symbols in any layout that kernels have had.

use super::btf;

/// Where the images are linked to, as kernels are.
pub const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Tokens that stand for several characters.
const LONG_TOKENS: [(u8, &str); 4] = [
    (1, "filler_"),
    (2, "Tfil"),
    (200, "__per_cpu"),
    (255, "_task"),
];

/// How a kernel carries its symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// 4.6 to 4.20: 64-bit count and markers.
    Relative46,
    /// 5.0 to 6.1.
    Relative50,
    /// 6.2 and 6.3: with `kallsyms_seqs_of_names`.
    Relative62,
    /// 6.4 to 6.14: offsets after the names.
    Relative64,
    /// 6.15 on: no address stands for itself.
    Relative615,
    /// 7.0 on: each offset counts from itself.
    Relative70,
    /// Up to 6.3 with CONFIG_KALLSYMS_BASE_RELATIVE off.
    Absolute,
    /// 6.4 to 6.10 with CONFIG_KALLSYMS_BASE_RELATIVE off.
    Absolute64,
}

impl Layout {
    pub const ALL: [Self; 8] = [
        Self::Relative46,
        Self::Relative50,
        Self::Relative62,
        Self::Relative64,
        Self::Relative615,
        Self::Relative70,
        Self::Absolute,
        Self::Absolute64,
    ];

    fn alignment(self) -> usize {
        if self == Self::Relative70 { 4 } else { 8 }
    }
}

/// Bytes in the making.
#[derive(Default)]
struct Bytes {
    bytes: Vec<u8>,
    alignment: usize,
}

impl Bytes {
    fn align(&mut self) -> usize {
        let length = self.bytes.len().next_multiple_of(self.alignment);
        self.bytes.resize(length, 0);
        length
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
}

fn token(byte: u8) -> String {
    if let Some((_, long)) = LONG_TOKENS.iter().find(|(number, _)| *number == byte) {
        return (*long).to_owned();
    }
    match byte {
        b'$' | b'.' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
            char::from(byte).to_string()
        }
        _ => String::new(),
    }
}

fn compress(mut name: &str) -> Vec<u8> {
    let mut compressed = Vec::new();
    while let Some(first) = name.bytes().next() {
        match LONG_TOKENS.iter().find(|(_, long)| name.starts_with(long)) {
            Some((number, long)) => {
                compressed.push(*number);
                name = &name[long.len()..];
            }
            None => {
                compressed.push(first);
                name = &name[1..];
            }
        }
    }
    compressed
}

/// A symbol table of `symbols` (address, type, name), to lie at `address`.
pub fn kallsyms(layout: Layout, symbols: &[(u64, char, &str)], address: u64) -> Vec<u8> {
    let mut symbols = symbols.to_vec();
    symbols.sort_by_key(|symbol| symbol.0);
    let mut table = Bytes {
        alignment: layout.alignment(),
        ..Bytes::default()
    };
    table.bytes.extend_from_slice(b"something else before it");
    table.align();
    if matches!(
        layout,
        Layout::Relative46 | Layout::Relative50 | Layout::Relative62 | Layout::Absolute
    ) {
        addresses(&mut table, layout, &symbols, address);
    }
    let count = u32::try_from(symbols.len()).unwrap();
    table.u32(count);
    table.align();
    let start = table.bytes.len();
    let mut markers = Vec::new();
    for (index, (_, kind, name)) in symbols.iter().enumerate() {
        if index % 256 == 0 {
            markers.push(table.bytes.len() - start);
        }
        let compressed = compress(&format!("{kind}{name}"));
        let length = compressed.len();
        if length < 0x80 {
            table.bytes.push(u8::try_from(length).unwrap());
        } else {
            table
                .bytes
                .push(u8::try_from(length & 0x7f | 0x80).unwrap());
            table.bytes.push(u8::try_from(length >> 7).unwrap());
        }
        table.bytes.extend_from_slice(&compressed);
    }
    table.align();
    for marker in markers {
        match layout {
            Layout::Relative46 => table.u64(marker as u64),
            _ => table.u32(u32::try_from(marker).unwrap()),
        }
    }
    table.align();
    if layout == Layout::Relative62 {
        sequences(&mut table, count);
    }
    let mut index = Vec::new();
    let start = table.bytes.len();
    for byte in 0..=255 {
        index.push(u16::try_from(table.bytes.len() - start).unwrap());
        table.bytes.extend_from_slice(token(byte).as_bytes());
        table.bytes.push(0);
    }
    table.align();
    for entry in index {
        table.bytes.extend_from_slice(&entry.to_le_bytes());
    }
    table.align();
    if matches!(
        layout,
        Layout::Relative64 | Layout::Relative615 | Layout::Relative70 | Layout::Absolute64
    ) {
        addresses(&mut table, layout, &symbols, address);
        sequences(&mut table, count);
    }
    table.bytes
}

fn sequences(table: &mut Bytes, count: u32) {
    for number in (0..count).rev() {
        table.bytes.extend_from_slice(&number.to_be_bytes()[1..]);
    }
    table.align();
}

fn addresses(table: &mut Bytes, layout: Layout, symbols: &[(u64, char, &str)], address: u64) {
    let base = symbols
        .iter()
        .map(|symbol| symbol.0)
        .find(|address| *address >= TEXT)
        .unwrap();
    for (symbol, ..) in symbols {
        match layout {
            Layout::Absolute | Layout::Absolute64 => table.u64(*symbol),
            Layout::Relative70 => {
                let place = address + table.bytes.len() as u64;
                let offset = i32::try_from(symbol.wrapping_sub(place).cast_signed()).unwrap();
                table.u32(offset.cast_unsigned());
            }
            Layout::Relative615 => table.u32(u32::try_from(symbol - base).unwrap()),
            _ if *symbol < base => table.u32(u32::try_from(*symbol).unwrap()),
            _ => {
                let distance = i32::try_from(symbol - base).unwrap();
                table.u32((-1 - distance).cast_unsigned());
            }
        }
    }
    table.align();
    if !matches!(
        layout,
        Layout::Absolute | Layout::Absolute64 | Layout::Relative70
    ) {
        table.u64(base);
    }
}

/// A kernel for tests.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// How it carries its symbols.
    pub layout: Layout,
    /// Whether it has `pcpu_hot`.
    pub hot: bool,
    /// Whether it has BTF.
    pub btf: bool,
    /// Whether its `preempt_count` also counts how often interrupts were disabled.
    pub counts_disabled: bool,
}

/// Where things are within the image, in bytes from [`TEXT`].
pub mod offsets {
    pub const BANNER: u64 = 0x1000;
    pub const DIVIDE_ERROR: u64 = 0x2000;
    pub const PAGE_FAULT: u64 = 0x2010;
    pub const EARLY_HANDLERS: u64 = 0x3000;
    pub const PER_CPU_OFFSET: u64 = 0x4000;
    pub const SYSTEM_STATE: u64 = 0x4100;
    pub const PANIC_CPU: u64 = 0x4104;
    pub const PAGE_OFFSET_BASE: u64 = 0x4108;
    pub const PER_CPU_LOAD: u64 = 0x5000;
    pub const BTF: u64 = 0x6000;
    pub const SYMBOLS: u64 = 0x8000;
    pub const END: u64 = 0x2_0000;
}

/// Where things are in the per-CPU area.
pub mod per_cpu {
    pub const CURRENT: u64 = 0x100;
    pub const PREEMPT_COUNT: u64 = 0x108;
    pub const DISABLE_STATE: u64 = 0x110;
}

/// Where things are in a task and what hangs off it.
pub mod task {
    pub const PID: u64 = 0x40;
    pub const TGID: u64 = 0x44;
    pub const SIGNAL: u64 = 0x48;
    pub const COMM: u64 = 0x50;
    pub const GROUP: u64 = 0x20 + 16;
    pub const NUMBER: u64 = 0x18 + 4;
}

impl Kernel {
    /// Whether per-CPU symbols are ordinary addresses.
    pub fn per_cpu_is_linked(self) -> bool {
        matches!(self.layout, Layout::Relative615 | Layout::Relative70)
    }

    /// Where per-CPU symbols count from.
    pub fn per_cpu_start(self) -> u64 {
        if self.per_cpu_is_linked() {
            TEXT + offsets::PER_CPU_LOAD
        } else {
            0
        }
    }

    fn btf_section(self) -> Vec<u8> {
        let bits = |bytes: u64| u32::try_from(bytes * 8).unwrap();
        let mut builder = btf::tests::Builder::new();
        builder.enumeration(
            "system_states",
            &[("SYSTEM_BOOTING", 0), ("SYSTEM_SCHEDULING", 1)],
        );
        builder.structure(
            "task_struct",
            &[
                ("pid", 1, bits(task::PID)),
                ("tgid", 1, bits(task::TGID)),
                ("signal", 1, bits(task::SIGNAL)),
                ("comm", 1, bits(task::COMM)),
            ],
        );
        builder.structure("signal_struct", &[("pids", 1, bits(0x20))]);
        builder.structure("pid", &[("numbers", 1, bits(0x18))]);
        builder.structure("upid", &[("nr", 1, bits(4))]);
        let hot = builder.structure("", &[("current_task", 1, 0), ("preempt_count", 1, 64)]);
        builder.structure("pcpu_hot", &[("", hot, 0)]);
        builder.section()
    }

    fn symbols(self, btf_length: u64) -> Vec<(u64, char, String)> {
        let mut symbols: Vec<(u64, char, String)> = [
            (0, 'T', "_text"),
            (offsets::BANNER, 'D', "linux_banner"),
            (offsets::DIVIDE_ERROR, 'T', "asm_exc_divide_error"),
            (offsets::PAGE_FAULT, 'T', "asm_exc_page_fault"),
            (offsets::EARLY_HANDLERS, 'T', "early_idt_handler_array"),
            (offsets::PER_CPU_OFFSET, 'R', "__per_cpu_offset"),
            (offsets::PER_CPU_OFFSET + 16, 'R', "after_per_cpu_offset"),
            (offsets::SYSTEM_STATE, 'D', "system_state"),
            (offsets::PANIC_CPU, 'D', "panic_cpu"),
            (offsets::PAGE_OFFSET_BASE, 'R', "page_offset_base"),
            (offsets::BTF, 'R', "__start_BTF"),
            (offsets::BTF + btf_length, 'R', "__stop_BTF"),
        ]
        .into_iter()
        .map(|(offset, kind, name)| (TEXT + offset, kind, name.to_owned()))
        .collect();
        let mut names = match (self.hot, self.btf) {
            (true, _) => vec![(per_cpu::CURRENT, "pcpu_hot")],
            (false, _) => vec![
                (per_cpu::CURRENT, "current_task"),
                (per_cpu::PREEMPT_COUNT, "__preempt_count"),
            ],
        };
        let kind = if self.per_cpu_is_linked() { 'D' } else { 'A' };
        if self.counts_disabled {
            names.push((per_cpu::DISABLE_STATE, "local_interrupt_disable_state"));
        }
        for (offset, name) in names {
            symbols.push((self.per_cpu_start() + offset, kind, name.to_owned()));
        }
        for number in 0..700 {
            symbols.push((TEXT + 0x2100 + number * 2, 't', format!("filler_{number}")));
        }
        // Longer than one byte can say, in tokens.
        symbols.push((TEXT + 0x2f00, 't', format!("filler_{}", "x".repeat(300))));
        symbols
    }

    /// What is loaded at [`TEXT`].
    pub fn image(self) -> Vec<u8> {
        let mut image = vec![0; usize::try_from(offsets::END).unwrap()];
        let mut put = |offset: u64, bytes: &[u8]| {
            let offset = usize::try_from(offset).unwrap();
            image[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        put(
            offsets::BANNER,
            b"Linux version 6.99.0-test (nobody) #1 SMP\n\0",
        );
        let boot = if self.per_cpu_is_linked() {
            0
        } else {
            TEXT + offsets::PER_CPU_LOAD
        };
        for cpu in 0..2 {
            put(offsets::PER_CPU_OFFSET + cpu * 8, &boot.to_le_bytes());
        }
        put(offsets::PANIC_CPU, &(-1_i32).to_le_bytes());
        put(
            offsets::PAGE_OFFSET_BASE,
            &0xffff_8880_0000_0000_u64.to_le_bytes(),
        );
        let section = if self.btf {
            self.btf_section()
        } else {
            Vec::new()
        };
        put(offsets::BTF, &section);
        let symbols = self.symbols(section.len() as u64);
        let symbols: Vec<_> = symbols
            .iter()
            .filter(|(_, _, name)| self.btf || !name.ends_with("_BTF"))
            .map(|(address, kind, name)| (*address, *kind, name.as_str()))
            .collect();
        put(
            offsets::SYMBOLS,
            &kallsyms(self.layout, &symbols, TEXT + offsets::SYMBOLS),
        );
        image
    }

    /// The kernel's file: an ELF header, one loadable segment.
    pub fn file(self) -> Vec<u8> {
        let image = self.image();
        let length = image.len() as u64;
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        let mut words = |words: &[(u64, usize)]| {
            for (word, width) in words {
                file.extend_from_slice(&word.to_le_bytes()[..*width]);
            }
        };
        // Elf64_Ehdr from e_type on.
        words(&[
            (2, 2),
            (62, 2),
            (1, 4),
            (TEXT, 8),
            (64, 8),
            (0, 8),
            (0, 4),
            (64, 2),
            (56, 2),
        ]);
        words(&[(1, 2), (64, 2), (0, 2), (0, 2)]);
        // Elf64_Phdr: PT_LOAD.
        words(&[
            (1, 4),
            (5, 4),
            (4096, 8),
            (TEXT, 8),
            (0, 8),
            (length, 8),
            (length, 8),
            (4096, 8),
        ]);
        file.resize(4096, 0);
        file.extend_from_slice(&image);
        file
    }
}
