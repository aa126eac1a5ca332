//! Builds modules in the memory of a running kernel.

use vm_memory::Bytes;

use super::kernel::{TEXT, module, offsets};
use super::linux_guest::{IMAGE, LinuxGuest, MODULES, SLIDE, TABLES};
use super::page_tables::Tables;
use crate::memory::PAGE;

/// The address of the first module; others follow.
pub const START: u64 = 0xffff_ffff_c040_0000;
/// Distance between modules, in bytes.
pub const STRIDE: u64 = 0x2_0000;
/// The offset of a module's initialization code.
pub const INIT: u64 = 0x4000;
/// The offset of a module's `struct module`.
pub const STRUCTURE: u64 = 0x5000;
/// The offsets of a module's `struct mod_kallsyms`, symbols, letters, names and unwind tables.
pub const KALLSYMS: u64 = 0x5800;
const SYMBOLS: u64 = 0x6000;
const LETTERS: u64 = 0xe000;
const NAMES: u64 = 0xf000;
const ORC_ADDRESSES: u64 = 0x1_8000;
const ORC_ENTRIES: u64 = 0x1_c000;
/// Bytes of code. A module that is still initializing has as many bytes again at [`INIT`].
pub const CODE: u64 = 0x2000;
/// The physical address of the page tables for modules.
const PAGE_TABLES: u64 = 0x6_0000;
/// The list's head as a kernel address.
pub const HEAD: u64 = TEXT + SLIDE + offsets::MODULES;

/// A module.
#[derive(Clone, Debug)]
pub struct TestModule {
    /// Its name.
    pub name: String,
    /// Its functions: their offsets in the module, and names.
    pub functions: Vec<(u64, String)>,
    /// The sizes of its first functions; those of others are 0.
    pub sizes: Vec<u64>,
    /// `module.state`.
    pub state: u32,
    /// Whether it still has code at [`INIT`].
    pub initialises: bool,
}

impl TestModule {
    /// A live module with functions `NAME_0`, `NAME_1` and so on.
    pub fn new(name: &str, functions: u64) -> Self {
        let spacing = CODE / functions;
        Self {
            name: name.to_owned(),
            functions: (0..functions)
                .map(|index| (index * spacing, format!("{name}_{index}")))
                .collect(),
            sizes: Vec::new(),
            state: 0,
            initialises: false,
        }
    }
}

impl LinuxGuest {
    /// Replaces the guest's modules by `modules`, from [`START`] on. The first one is the newest.
    pub fn load(&self, modules: &[TestModule]) {
        let mut tables = Tables::new(self.memory.clone(), TABLES, self.levels());
        tables.skip_to(PAGE_TABLES);
        let place = |index: usize| START + index as u64 * STRIDE;
        let link = |index: usize| match index.checked_rem(modules.len()) {
            Some(within) if within == index => place(index) + STRUCTURE + module::LIST,
            _ => HEAD,
        };
        for (index, loaded) in modules.iter().enumerate() {
            let physical = MODULES + index as u64 * STRIDE;
            for page in (0..STRIDE).step_by(usize::try_from(PAGE).unwrap()) {
                tables.map(place(index) + page, physical + page, 1);
            }
            self.write(physical, &loaded.bytes(self, place(index)));
            let previous = index.checked_sub(1).map_or(HEAD, link);
            self.words(
                physical + STRUCTURE + module::LIST,
                &[link(index + 1), previous],
            );
        }
        let last = modules.len().checked_sub(1).map_or(HEAD, link);
        self.words(IMAGE + offsets::MODULES, &[link(0), last]);
        let changes = vm_memory::GuestAddress(IMAGE + offsets::MODULE_TREE);
        let before: u32 = self.memory.read_obj(changes).unwrap();
        self.memory.write_obj(before + 2, changes).unwrap();
    }

    /// Reads the list at once, which is otherwise the work of another thread.
    pub fn read_modules(&self) {
        let linux = self.knowledge.linux().unwrap();
        linux.modules().read(linux, &self.memory);
    }

    /// Writes `words` to physical address `physical`.
    pub fn words(&self, physical: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(physical, &bytes);
    }
}

impl TestModule {
    /// The contents of the module's memory.
    fn bytes(&self, guest: &LinuxGuest, start: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(STRIDE).unwrap()];
        let mut put = |offset: u64, part: &[u8]| {
            let offset = usize::try_from(offset).unwrap();
            bytes[offset..offset + part.len()].copy_from_slice(part);
        };
        let count = |count: usize| u64::try_from(count).unwrap().to_le_bytes();
        put(STRUCTURE + module::STATE, &self.state.to_le_bytes());
        put(STRUCTURE + module::NAME, self.name.as_bytes());
        put(STRUCTURE + module::BUILD_ID, &[7; 20]);
        put(
            STRUCTURE + module::KALLSYMS,
            &(start + KALLSYMS).to_le_bytes(),
        );
        let code = if guest.kernel_kind().has_module_memories() {
            (4 * module::MEMORY_LENGTH, module::MEMORY_SIZE)
        } else {
            (module::INIT_LAYOUT - module::TEXT, module::TEXT_SIZE)
        };
        put(STRUCTURE + module::TEXT, &start.to_le_bytes());
        put(STRUCTURE + module::TEXT + code.1, &CODE.to_le_bytes()[..4]);
        if self.initialises {
            let place = STRUCTURE + module::TEXT + code.0;
            put(place, &(start + INIT).to_le_bytes());
            put(place + code.1, &CODE.to_le_bytes()[..4]);
        }
        // The first symbol of a table is empty.
        let mut names = vec![0];
        for (index, (offset, name)) in (1..).zip(&self.functions) {
            let mut symbol = u32::try_from(names.len()).unwrap().to_le_bytes().to_vec();
            // A local function in section 1.
            symbol.extend([2, 0, 1, 0]);
            symbol.extend((start + offset).to_le_bytes());
            let size = self.sizes.get(usize::try_from(index).unwrap() - 1);
            symbol.extend(size.copied().unwrap_or(0).to_le_bytes());
            put(SYMBOLS + index * 24, &symbol);
            put(LETTERS + index, b"t");
            names.extend(name.as_bytes());
            names.push(0);
        }
        put(NAMES, &names);
        put(KALLSYMS, &(start + SYMBOLS).to_le_bytes());
        put(KALLSYMS + 8, &count(self.functions.len() + 1)[..4]);
        put(KALLSYMS + 16, &(start + NAMES).to_le_bytes());
        put(KALLSYMS + 24, &(start + LETTERS).to_le_bytes());
        // Each function keeps 16 bytes on the stack.
        for (index, (offset, _)) in (0..).zip(&self.functions) {
            let place = ORC_ADDRESSES + index * 4;
            let distance = i32::try_from(offset.cast_signed() - place.cast_signed()).unwrap();
            put(place, &distance.to_le_bytes());
            put(ORC_ENTRIES + index * 6, &[24, 0, 0, 0, 5, 2]);
        }
        put(STRUCTURE + module::ORC, &count(self.functions.len())[..4]);
        put(
            STRUCTURE + module::ORC + 8,
            &(start + ORC_ADDRESSES).to_le_bytes(),
        );
        put(
            STRUCTURE + module::ORC + 16,
            &(start + ORC_ENTRIES).to_le_bytes(),
        );
        bytes
    }
}
