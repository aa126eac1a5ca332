//! Where a kernel keeps what it knows of its modules: addresses out of kallsyms, offsets out of BTF.

use crate::Symbols;
use crate::image::btf::Btf;

/// Where BTF doesn't tell: `MODULE_STATE_UNFORMED` (`enum module_state`), `MOD_TEXT` and `MOD_INIT_TEXT`
/// (`enum mod_mem_type`), all in `include/linux/module.h`.
const UNFORMED: u32 = 3;
const CORE_TEXT: u32 = 0;
const INIT_TEXT: u32 = 4;
/// Longest `struct module` that is read, in bytes: it has some 1,300.
const MAX_LENGTH: usize = 4096;
/// Bytes of a module's name, a NUL included (`MODULE_NAME_LEN`).
pub const NAME_LENGTH: usize = 56;
/// Bytes of a build id (`BUILD_ID_SIZE_MAX`).
pub const BUILD_ID_LENGTH: usize = 20;

/// Where things are: offsets are in bytes from the start of a `struct module`, addresses are link-time ones.
#[derive(Debug)]
pub struct ModuleLayout {
    /// The list's head, `modules`.
    pub head: u64,
    /// A number that changes with every module that comes or goes: the sequence of `mod_tree`.
    pub changes: Option<u64>,
    /// The kernel's own page tables, `init_top_pgt`, which have all modules.
    pub page_tables: u64,
    /// How much of the structure has to be read.
    pub length: usize,
    pub state: usize,
    /// The state of a module that has only been announced.
    pub unformed: u32,
    pub list: usize,
    pub name: usize,
    pub build_id: Option<usize>,
    /// Its code, and that which goes after it was initialised.
    pub texts: [TextPlace; 2],
    pub symbols: Option<SymbolsPlace>,
    pub orc: Option<OrcPlace>,
}

/// Where the address and the length of a stretch of code are.
#[derive(Clone, Copy, Debug)]
pub struct TextPlace {
    pub base: usize,
    /// 32 bits.
    pub length: usize,
}

/// Where a module's symbol table is: all but `pointer` are offsets from the start of a `struct mod_kallsyms`.
#[derive(Clone, Copy, Debug)]
pub struct SymbolsPlace {
    /// `module.kallsyms`.
    pub pointer: usize,
    pub table: usize,
    /// 32 bits.
    pub count: usize,
    pub names: usize,
    /// A letter for each symbol; from 5.2 on.
    pub letters: Option<usize>,
    /// How much has to be read.
    pub length: usize,
}

/// Where the tables for unwinding are.
#[derive(Clone, Copy, Debug)]
pub struct OrcPlace {
    pub addresses: usize,
    pub entries: usize,
    /// 32 bits.
    pub count: usize,
}

impl ModuleLayout {
    /// Looks it up. `None` for a kernel that doesn't say enough, or was built without modules.
    pub fn find(symbols: &Symbols, btf: &Btf<'_>) -> Option<Self> {
        let [head, tree, page_tables] =
            symbols.addresses_of(["modules", "mod_tree", "init_top_pgt"]);
        let member = |structure, member| usize::try_from(btf.offset_of(structure, member)?).ok();
        let module = |name| member("module", name);
        let (state, list, name) = (module("state")?, module("list")?, module("name")?);
        let (build_id, texts) = (module("build_id"), texts(btf)?);
        let (pointer, orc) = (module("kallsyms"), orc(btf));
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
            head: head?,
            changes: sequence(btf).and_then(|offset| tree?.checked_add(offset)),
            page_tables: page_tables?,
            length,
            state,
            unformed: btf
                .enumerator("module_state", "MODULE_STATE_UNFORMED")
                .unwrap_or(UNFORMED),
            list,
            name,
            build_id,
            texts,
            symbols: pointer.and_then(|pointer| SymbolsPlace::find(btf, pointer)),
            orc,
        })
    }
}

/// Where the code is: `mem[]` from 6.4 on, `core_layout` and `init_layout` before.
fn texts(btf: &Btf<'_>) -> Option<[TextPlace; 2]> {
    let offset = |structure, member| usize::try_from(btf.offset_of(structure, member)?).ok();
    if let Some(memories) = offset("module", "mem") {
        let stride = usize::try_from(btf.size_of("module_memory")?).ok()?;
        let base = offset("module_memory", "base")?;
        let length = offset("module_memory", "size")?;
        let place = |name, otherwise| {
            let kind = btf.enumerator("mod_mem_type", name).unwrap_or(otherwise);
            let start = stride.checked_mul(usize::try_from(kind).ok()?)?;
            let start = start.checked_add(memories)?;
            Some(TextPlace {
                base: start.checked_add(base)?,
                length: start.checked_add(length)?,
            })
        };
        return Some([
            place("MOD_TEXT", CORE_TEXT)?,
            place("MOD_INIT_TEXT", INIT_TEXT)?,
        ]);
    }
    let base = offset("module_layout", "base")?;
    let length = offset("module_layout", "text_size")?;
    let place = |member| {
        let start = offset("module", member)?;
        Some(TextPlace {
            base: start + base,
            length: start + length,
        })
    };
    Some([place("core_layout")?, place("init_layout")?])
}

/// Where the sequence is in a `struct mod_tree_root`.
fn sequence(btf: &Btf<'_>) -> Option<u64> {
    let root = btf.offset_of("mod_tree_root", "root")?;
    root.checked_add(btf.offset_of("latch_tree_root", "seq")?)
}

fn orc(btf: &Btf<'_>) -> Option<OrcPlace> {
    let start = btf.offset_of("module", "arch")?;
    let place = |member| {
        let offset = start.checked_add(btf.offset_of("mod_arch_specific", member)?)?;
        usize::try_from(offset).ok()
    };
    Some(OrcPlace {
        addresses: place("orc_unwind_ip")?,
        entries: place("orc_unwind")?,
        count: place("num_orcs")?,
    })
}

impl SymbolsPlace {
    fn find(btf: &Btf<'_>, pointer: usize) -> Option<Self> {
        let place = |member| usize::try_from(btf.offset_of("mod_kallsyms", member)?).ok();
        let (table, count, names) = (place("symtab")?, place("num_symtab")?, place("strtab")?);
        let letters = place("typetab");
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
