//! The list of modules, and where their code, their symbols and their unwind tables are: `struct module`
//! (`include/linux/module.h`).

use super::super::flow::{Flow, Node, Use, Value};
use super::super::{Code, Findings};

const MODULE: &str = "module";
const SYMBOLS: &str = "mod_kallsyms";

/// Finds them.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    if let Some(flow) = code.flow("module_get_kallsym") {
        symbols(&flow, findings);
    }
    if let Some(flow) = code.flow("__module_text_address") {
        texts(&flow, findings);
    }
    if let Some(flow) = code.flow("unwind_module_init") {
        unwind_tables(&flow, findings);
    }
}

/// `module_get_kallsym(number, ...)` (`kernel/module/kallsyms.c`) reads the list's first element from `modules.next`. The
/// module begins before that element. Then it skips modules that aren't formed yet, reads one symbol of the module's
/// table, and copies the module's name.
fn symbols(flow: &Flow, findings: &mut Findings) {
    let elements = flow.values().filter_map(|(element, node)| match node {
        Node::Read(base, head, 8) if flow.node(base) == Node::Constant(0) => {
            Some((element, head.cast_unsigned()))
        }
        _ => None,
    });
    for (element, head) in elements {
        let before = flow.values().find_map(|(_, node)| match node {
            Node::Sum(base, distance) if base == element && distance <= 0 => Some(distance),
            _ => None,
        });
        let Some(list) = before.map(i64::unsigned_abs) else {
            continue;
        };
        let from_start = |offset: i64| offset.checked_add_unsigned(list).map(i64::cast_unsigned);
        let state = flow.accesses.iter().find(|access| {
            let is_number = access.width == 4 && access.kind == Use::Read;
            is_number && access.place.base == element && access.instruction.try_immediate(1).is_ok()
        });
        let tables = flow.values().find_map(|(value, node)| match node {
            Node::Read(base, offset, 8) if base == element => Some((offset, table(flow, value)?)),
            _ => None,
        });
        let (Some(state), Some((tables, table))) = (state, tables) else {
            continue;
        };
        let (Some(state), Some(tables)) = (from_start(state.place.offset), from_start(tables))
        else {
            continue;
        };
        findings.add_variable("modules", head);
        findings.add_member(MODULE, "list", list);
        findings.add_member(MODULE, "state", state);
        findings.add_member(MODULE, "kallsyms", tables);
        for (member, offset) in table {
            findings.add_member(SYMBOLS, member, offset);
        }
        // Copies of names have the module's name as an argument.
        let named = flow.calls.iter().flat_map(|call| &call.arguments[..2]);
        for argument in named {
            if let Node::Sum(base, offset) = flow.node(*argument)
                && base == element
                && offset > 0
                && let Some(name) = from_start(offset)
            {
                findings.add_member(MODULE, "name", name);
            }
        }
    }
}

/// The members of the `struct mod_kallsyms` at `tables`: the number of symbols is compared; a symbol's name is 4 bytes in the
/// table, its letter is a byte in another one; and names are in what remains.
fn table(flow: &Flow, tables: Value) -> Option<[(&'static str, u64); 4]> {
    let count = flow.reads_of(tables, 4).next()?;
    let indexed = |width: u8| {
        flow.accesses.iter().find_map(|access| {
            let is_it = access.width == width && access.place.scale != 0;
            let (base, offset) = flow.read_from(access.place.base, 8).filter(|_| is_it)?;
            (base == tables).then_some(offset)
        })
    };
    let (symbols, letters) = (indexed(4)?, indexed(1)?);
    let mut words = flow.reads_of(tables, 8);
    let names = words.find(|offset| *offset != symbols && *offset != letters)?;
    Some([
        ("symtab", symbols),
        ("num_symtab", count),
        ("strtab", names),
        ("typetab", letters),
    ])
}

/// `__module_text_address(address)` (`kernel/module/main.c`) compares an address with the module's code, and with its code for
/// initialization, which is behind that in the structure. For each it reads the first address and the number of bytes.
fn texts(flow: &Flow, findings: &mut Findings) {
    let reads = |width: u8| {
        let of_found = flow.accesses.iter().filter_map(|access| {
            let is_it = access.width == width && access.kind != Use::Write;
            let is_result = matches!(flow.node(access.place.base), Node::Result(_, 0));
            (is_it && is_result).then(|| u64::try_from(access.place.offset).ok())?
        });
        let mut offsets: Vec<u64> = of_found.collect();
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    };
    if let ([base, init_base], [size, init_size]) = (reads(8).as_slice(), reads(4).as_slice())
        && base < size
        && size < init_base
        && init_base < init_size
    {
        for (member, offset) in [
            ("text.base", base),
            ("text.size", size),
            ("init_text.base", init_base),
            ("init_text.size", init_size),
        ] {
            findings.add_member(MODULE, member, *offset);
        }
    }
}

/// `unwind_module_init(module, addresses, size, entries, size)` (`arch/x86/kernel/unwind_orc.c`) writes the tables into the module,
/// and their number of entries.
fn unwind_tables(flow: &Flow, findings: &mut Findings) {
    let Some(module) = flow.argument(0) else {
        return;
    };
    for (argument, member) in [(1, "arch.orc_unwind_ip"), (3, "arch.orc_unwind")] {
        let table = flow.argument(argument);
        let mut words = flow.words_of(module, 8);
        let written = words
            .find(|(_, access)| access.kind == Use::Write && access.value == table)
            .filter(|_| table.is_some());
        if let Some((offset, _)) = written {
            findings.add_member(MODULE, member, offset);
        }
    }
    let mut numbers = flow.words_of(module, 4);
    if let Some((count, _)) = numbers.find(|(_, access)| access.kind == Use::Write) {
        findings.add_member(MODULE, "arch.num_orcs", count);
    }
}
