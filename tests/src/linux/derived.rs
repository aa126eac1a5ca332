//! Facts from a kernel's code, beside those from its BTF and its complete symbol table.

use std::collections::BTreeMap;

use iced_x86::{FlowControl, Mnemonic};
use kvmprof_introspection::parts::{
    Base, Code, CodeRules, FileSymbol, KernelImage, Kind, SymbolKind, Vmlinux, kernel_orc,
    kernel_release, kernel_symbols,
};
use kvmprof_introspection::{Btf, Symbols};

/// A value that the code gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// `structure.member`, or the name of a variable.
    pub name: String,
    /// The offset in bytes or the link-time address from the code; `None` if it doesn't give it.
    pub told: Option<u64>,
    /// The value from BTF or the symbol table, if they have it.
    pub described: Option<u64>,
}

/// The members that are compared although a kernel's code may not give them: all that any recipe finds, by structure.
const MEMBERS: [(&str, &str); 32] = [
    (
        "task_struct",
        "pid tgid comm cred thread_pid signal mm thread.sp tasks thread_node real_parent group_leader __state exit_state on_cpu thread_info.cpu start_time nvcsw nivcsw self_exec_id",
    ),
    ("signal_struct", "pids thread_head live"),
    ("pid", "numbers"),
    ("cred", "uid"),
    ("mm_struct", "mm_mt.ma_root mmap"),
    ("vm_area_struct", "vm_next"),
    (
        "mm_struct",
        "pgd map_count total_vm exec_vm start_code arg_start saved_auxv",
    ),
    ("maple_range_64", "pivot slot"),
    ("maple_arange_64", "pivot slot"),
    (
        "vm_area_struct",
        "vm_start vm_end vm_flags vm_pgoff vm_file",
    ),
    ("file", "f_inode f_path.mnt f_path.dentry"),
    ("dentry", "d_parent d_name.name d_name.len"),
    ("inode", "i_sb i_ino i_size"),
    ("super_block", "s_dev"),
    ("mutex", "owner"),
    ("task_struct", "fs"),
    ("fs_struct", "root.mnt root.dentry"),
    ("pid", "level"),
    ("upid", "SIZE"),
    ("vfsmount", "mnt_root"),
    ("mount", "mnt mnt_parent mnt_mountpoint"),
    ("inode", "i_mapping"),
    ("address_space", "i_pages.xa_head"),
    ("xa_node", "shift slots SIZE"),
    ("page", "flags SIZE"),
    ("pageflags", "PG_uptodate"),
    (
        "module",
        "state list name kallsyms text.base text.size init_text.base init_text.size arch.orc_unwind_ip arch.orc_unwind arch.num_orcs",
    ),
    ("mod_kallsyms", "symtab num_symtab strtab typetab"),
    ("task_struct", "cgroups"),
    ("css_set", "dfl_cgrp"),
    ("cgroup", "kn"),
    ("kernfs_node", "name parent"),
];

/// Variables, and where they are in `struct pcpu_hot` in kernels that have that.
const VARIABLES: [(&str, &str); 11] = [
    ("current_task", "current_task"),
    ("__preempt_count", "preempt_count"),
    ("__per_cpu_offset", ""),
    ("jiffies_64", ""),
    ("system_state", ""),
    ("panic_cpu", ""),
    ("init_task", ""),
    ("page_offset_base", ""),
    ("vmemmap_base", ""),
    ("init_top_pgt", ""),
    ("modules", ""),
];

/// What stands for a structure's size in place of a member.
const SIZE: &str = "SIZE";

/// What BTF says of a member, or of what recipes give beside members.
fn described(btf: &Btf<'_>, structure: &str, member: &str) -> Option<u64> {
    let structures = btf.structures(structure);
    match (structure, member.split_once('.')) {
        (_, _) if member == SIZE => structures.size(),
        ("pageflags", _) => btf.enumerator(structure, member).map(u64::from),
        ("module", Some((text, place))) if text.ends_with("text") => {
            text_of_modules(btf, text == "init_text", place)
        }
        (_, Some((outer, inner))) => structures.offset_within(outer, inner),
        (_, None) => structures.offset_of(member),
    }
}

/// Where a module's code is: in an array since 6.4 (`enum mod_mem_type`, `include/linux/module.h`), before that in two members.
fn text_of_modules(btf: &Btf<'_>, is_init: bool, place: &str) -> Option<u64> {
    let module = btf.structures("module");
    let Some(memories) = module.offset_of("mem") else {
        let layout = if is_init {
            "init_layout"
        } else {
            "core_layout"
        };
        return module.offset_within(layout, if place == "size" { "text_size" } else { place });
    };
    let memory = btf.structures("module_memory");
    let kind = if is_init { "MOD_INIT_TEXT" } else { "MOD_TEXT" };
    let kind = btf.enumerator("mod_mem_type", kind)?;
    Some(memories + u64::from(kind) * memory.size()? + memory.offset_of(place)?)
}

/// What the code of the kernel in `elf`, an unpacked kernel with BTF, gives with names of functions only, or without any
/// symbol, and what its BTF and all its symbols give. `None` if it has no BTF or no symbols.
pub fn compare(elf: &[u8], with_functions: bool) -> Option<Vec<Derived>> {
    let image = KernelImage::from_file(Vmlinux::parse(elf).ok()?);
    let all = kernel_symbols(&image);
    let (_, section) = image.part(".BTF", &all, ["__start_BTF", "__stop_BTF"])?;
    let btf = Btf::parse(section).ok()?;
    let functions = all.functions().filter(|_| with_functions);
    let functions = functions.map(|(address, _, name)| FileSymbol {
        address,
        name: name.as_bytes(),
        kind: SymbolKind::Function,
        size: 0,
    });
    let symbols = Symbols::from_table(functions, Vec::new());
    let findings = Code::new(&image, &symbols).findings();
    let variables: BTreeMap<&str, u64> = findings.variables().collect();
    let mut derived = Vec::new();
    for (structure, members) in MEMBERS {
        derived.extend(members.split(' ').map(|member| Derived {
            name: format!("{structure}.{member}"),
            told: findings.member(structure, if member == SIZE { "" } else { member }),
            described: described(&btf, structure, member),
        }));
    }
    for (name, hot) in VARIABLES {
        let in_hot = btf.offset_of("pcpu_hot", hot).filter(|_| !hot.is_empty());
        let in_hot = in_hot.zip(all.address_of("pcpu_hot"));
        derived.push(Derived {
            name: name.to_owned(),
            told: variables.get(name).copied(),
            described: match in_hot {
                Some((offset, address)) => Some(address + offset),
                None => all.address_of(name),
            },
        });
    }
    Some(derived)
}

/// Counts of single steps, by whether the rules from code agree with ORC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Both lead to the same caller.
    pub right: usize,
    /// They lead to different callers.
    pub wrong: usize,
    /// The code gives no rule.
    pub unknown: usize,
    /// One is relative to RBP and the other one to RSP, which can't be compared without a stack.
    pub not_comparable: usize,
    /// The address of a step that is wrong; 0 if there is none.
    pub example: u64,
}

/// Compares steps at `count` instructions of the kernel in `elf`, chosen evenly, with its ORC table. `None` if it has
/// none, or no symbols.
pub fn compare_unwinding(elf: &[u8], count: usize) -> Option<Steps> {
    let image = KernelImage::from_file(Vmlinux::parse(elf).ok()?);
    let symbols = kernel_symbols(&image);
    let release = kernel_release(&image)?;
    let orc = kernel_orc(&image, &symbols, &release)?;
    let rules = CodeRules::find(&image, &symbols)?;
    let code = Code::new(&image, &symbols);
    let (start, text) = code.text()?;
    let functions: Vec<u64> = symbols.functions().map(|(address, ..)| address).collect();
    let inside = |address: &u64| (start..start + text.len() as u64).contains(address);
    let functions: Vec<u64> = functions.into_iter().filter(inside).collect();
    let mut steps = Steps::default();
    // A multiplicative sequence visits the functions in no order, and the same ones each time.
    let mut place = 1_usize;
    let mut taken = 0;
    while taken < count {
        place = place
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let function = *functions.get((place >> 33) % functions.len())?;
        let around = code.function_around(function)?;
        let instructions: Vec<_> = code.instructions(around).take(300).collect();
        let Some(chosen) = instructions.get((place >> 17) % instructions.len().max(1)) else {
            continue;
        };
        // A call is looked up by its last byte.
        let is_exact = chosen.flow_control() != FlowControl::Call;
        let address = if is_exact {
            chosen.ip()
        } else {
            chosen.next_ip()
        };
        let Some(truth) = orc.find(address - u64::from(!is_exact)) else {
            continue;
        };
        if chosen.mnemonic() == Mnemonic::Nop
            || truth.kind != Kind::Call
            || !matches!(truth.sp, Base::Sp | Base::Bp)
        {
            continue;
        }
        taken += 1;
        match rules.entry(address, is_exact) {
            None => steps.unknown += 1,
            Some(found) if found.sp != truth.sp => steps.not_comparable += 1,
            Some(found)
                if (found.sp_offset, found.bp, found.bp_offset)
                    == (truth.sp_offset, truth.bp, truth.bp_offset) =>
            {
                steps.right += 1
            }
            Some(found) => {
                steps.wrong += 1;
                steps.example = address;
                println!(
                    "{address:x} {:?} {found:?} {truth:?}",
                    code.function_around(address)
                );
            }
        }
    }
    Some(steps)
}
