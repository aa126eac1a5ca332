//! The layout of a kernel's data about its modules: addresses from kallsyms, offsets from BTF.

use crate::image::types::Types;
use crate::linux::view::KernelView;

use super::generated::GeneratedLayout;
use super::list::List;
use crate::{PhysicalMemory, Symbols};

/// Values for kernels whose BTF lacks them: `MODULE_STATE_UNFORMED` (`enum module_state`), `MOD_TEXT` and
/// `MOD_INIT_TEXT` (`enum mod_mem_type`), all in `include/linux/module.h`.
const UNFORMED: u32 = 3;
const CORE_TEXT: u32 = 0;
const INIT_TEXT: u32 = 4;
/// Maximum length of a `struct module`, in bytes. It has some 1,300.
const MAX_LENGTH: usize = 4096;
/// Bytes of a module's name, including a NUL (`MODULE_NAME_LEN`).
pub const NAME_LENGTH: usize = 56;
/// Bytes of a build id (`BUILD_ID_SIZE_MAX`).
pub const BUILD_ID_LENGTH: usize = 20;

/// Offsets in bytes from the start of a `struct module`, and link-time addresses.
#[derive(Debug)]
pub struct ModuleLayout {
    /// `modules`, which changes with the sequence of `mod_tree`.
    pub list: List,
    /// The number of bytes of the structure that are read.
    pub length: usize,
    pub state: usize,
    /// The state of a module that is still loading.
    pub unformed: u32,
    pub name: usize,
    pub build_id: Option<usize>,
    /// Its code, and its code for initialization, which the kernel frees afterwards.
    pub texts: [TextOffsets; 2],
    pub symbols: Option<SymbolsOffsets>,
    pub orc: Option<OrcOffsets>,
    /// Where code is that the kernel has made.
    pub generated: GeneratedLayout,
}

/// Offsets of the address and the length of a range of code.
#[derive(Clone, Copy, Debug)]
pub struct TextOffsets {
    pub base: usize,
    /// 32 bits.
    pub length: usize,
}

/// Offsets of a module's symbol table: all but `pointer` from the start of a `struct mod_kallsyms`.
#[derive(Clone, Copy, Debug)]
pub struct SymbolsOffsets {
    /// `module.kallsyms`.
    pub pointer: usize,
    pub table: usize,
    /// 32 bits.
    pub count: usize,
    pub names: usize,
    /// A type letter for each symbol; since 5.2.
    pub letters: Option<usize>,
    /// The number of bytes that are read.
    pub length: usize,
}

/// Offsets of the unwind tables.
#[derive(Clone, Copy, Debug)]
pub struct OrcOffsets {
    pub addresses: usize,
    pub entries: usize,
    /// 32 bits.
    pub count: usize,
}

impl ModuleLayout {
    /// Finds the layout. `None` for a kernel without modules or with too little information.
    pub fn find(symbols: &Symbols, types: &Types<'_>) -> Option<Self> {
        let [head, tree] = symbols.addresses_of(["modules", "mod_tree"]);
        let member = |structure, member| usize::try_from(types.offset_of(structure, member)?).ok();
        let module = |name| member("module", name);
        let (state, list, name) = (module("state")?, module("list")?, module("name")?);
        let (build_id, texts) = (module("build_id"), texts(types)?);
        let (pointer, orc) = (module("kallsyms"), orc(types));
        let ends = [
            Some(state + 4),
            Some(list + 16),
            Some(name + NAME_LENGTH),
            build_id.map(|offset| offset + BUILD_ID_LENGTH),
            pointer.map(|offset| offset + 8),
            texts
                .iter()
                .map(|text| text.base.max(text.length) + 8)
                .max(),
            orc.map(|orc| orc.addresses.max(orc.entries).max(orc.count) + 8),
        ];
        let length = ends.into_iter().flatten().max()?;
        (length <= MAX_LENGTH).then_some(Self {
            list: List {
                head: head?,
                changes: sequence(types).and_then(|offset| tree?.checked_add(offset)),
                entry: list,
            },
            length,
            state,
            unformed: types
                .enumerator("module_state", "MODULE_STATE_UNFORMED")
                .unwrap_or(UNFORMED),
            name,
            build_id,
            texts,
            symbols: pointer.and_then(|pointer| SymbolsOffsets::find(types, pointer)),
            orc,
            generated: GeneratedLayout::find(symbols, types),
        })
    }

    /// Whether the `struct module` at kernel address `module` has this name.
    pub fn is_called<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        module: u64,
        name: &str,
    ) -> bool {
        let found = view.read_array::<NAME_LENGTH>(module.wrapping_add(self.name as u64));
        found.is_some_and(|found| found.split(|byte| *byte == 0).next() == Some(name.as_bytes()))
    }
}

/// The offsets of the code: `mem[]` since 6.4, `core_layout` and `init_layout` before. The kernel's code tells only the
/// places.
fn texts(types: &Types<'_>) -> Option<[TextOffsets; 2]> {
    let offset = |structure, member| usize::try_from(types.offset_of(structure, member)?).ok();
    let told = |path| offset("module", path);
    if let (Some(base), Some(length), Some(init_base), Some(init_length)) = (
        told("text.base"),
        told("text.size"),
        told("init_text.base"),
        told("init_text.size"),
    ) {
        let init = TextOffsets {
            base: init_base,
            length: init_length,
        };
        return Some([TextOffsets { base, length }, init]);
    }
    if let Some(memories) = offset("module", "mem") {
        let stride = usize::try_from(types.size_of("module_memory").ok()?).ok()?;
        let base = offset("module_memory", "base")?;
        let length = offset("module_memory", "size")?;
        let range = |name, otherwise| {
            let kind = types.enumerator("mod_mem_type", name).unwrap_or(otherwise);
            let start = stride.checked_mul(usize::try_from(kind).ok()?)?;
            let start = start.checked_add(memories)?;
            Some(TextOffsets {
                base: start.checked_add(base)?,
                length: start.checked_add(length)?,
            })
        };
        return Some([
            range("MOD_TEXT", CORE_TEXT)?,
            range("MOD_INIT_TEXT", INIT_TEXT)?,
        ]);
    }
    let base = offset("module_layout", "base")?;
    let length = offset("module_layout", "text_size")?;
    let range = |member| {
        let start = offset("module", member)?;
        Some(TextOffsets {
            base: start + base,
            length: start + length,
        })
    };
    Some([range("core_layout")?, range("init_layout")?])
}

/// The offset of the sequence in a `struct mod_tree_root`.
fn sequence(types: &Types<'_>) -> Option<u64> {
    let root = types.offset_of("mod_tree_root", "root")?;
    root.checked_add(types.offset_of("latch_tree_root", "seq")?)
}

fn orc(types: &Types<'_>) -> Option<OrcOffsets> {
    let offset = |path| usize::try_from(types.offset_of("module", path)?).ok();
    Some(OrcOffsets {
        addresses: offset("arch.orc_unwind_ip")?,
        entries: offset("arch.orc_unwind")?,
        count: offset("arch.num_orcs")?,
    })
}

impl SymbolsOffsets {
    fn find(types: &Types<'_>, pointer: usize) -> Option<Self> {
        let offset = |member| usize::try_from(types.offset_of("mod_kallsyms", member)?).ok();
        let (table, count, names) = (offset("symtab")?, offset("num_symtab")?, offset("strtab")?);
        let letters = offset("typetab");
        let length = table.max(count).max(names).max(letters.unwrap_or(0)) + 8;
        (length <= MAX_LENGTH).then_some(Self {
            pointer,
            table,
            count,
            names,
            letters,
            length,
        })
    }
}
