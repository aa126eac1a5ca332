//! Kernels of a few functions, given as machine code.

use kvmprof_introspection::Symbols;
use kvmprof_introspection::parts::{Code, CodeRules, FileSymbol, KernelImage, Segment, SymbolKind};
use kvmprof_introspection_fixtures::kernel::TEXT;

/// Functions that recipes read.
pub const FUNCTIONS: [&str; 56] = [
    "__task_pid_nr_ns",
    "get_task_mm",
    "irq_enter_rcu",
    "do_timer",
    "core_kernel_text",
    "panic",
    "show_map_vma",
    "show_vma_header_prefix",
    "vm_stat_account",
    "find_vma",
    "mt_find",
    "mtree_load",
    "__vma_link_list",
    "__mmdrop",
    "pgd_free",
    "split_vma",
    "get_cmdline",
    "file_path",
    "d_path",
    "d_ancestor",
    "truncate_setsize",
    "mutex_spin_on_owner",
    "__x64_sys_setpriority",
    "__x64_sys_getppid",
    "schedule_timeout_interruptible",
    "copy_process",
    "begin_new_exec",
    "do_exit",
    "finish_task_switch",
    "exit_fs",
    "free_fs_struct",
    "path_put",
    "follow_up",
    "mount_subtree",
    "vfs_path_lookup",
    "truncate_pagecache",
    "unmap_mapping_range",
    "page_cache_next_miss",
    "xas_start",
    "xas_load",
    "xas_descend",
    "free_pages",
    "simple_read_folio",
    "simple_write_end",
    "pid_nr_ns",
    "lookup_address",
    "vmalloc_to_page",
    "module_get_kallsym",
    "__module_text_address",
    "unwind_module_init",
    "cgroup_enter_frozen",
    "cgroup_update_frozen",
    "bpf_get_current_cgroup_id",
    "cgroup_path_ns",
    "kernfs_get_parent",
    "kernfs_name",
];

/// A kernel's code: functions, one after the other, each at a multiple of 16 from [`TEXT`] on.
#[derive(Clone, Debug, Default)]
pub struct TestCode {
    text: Vec<u8>,
    functions: Vec<(u64, String)>,
    is_unnamed: bool,
    slide: u64,
}

impl TestCode {
    /// Adds a function, and returns its address.
    pub fn add(&mut self, name: &str, code: &[u8]) -> u64 {
        let address = TEXT + self.text.len() as u64;
        self.functions.push((address, name.to_owned()));
        self.text.extend_from_slice(code);
        self.text.resize(self.text.len().next_multiple_of(16), 0xcc);
        address
    }

    /// The kernel without symbols.
    #[must_use]
    pub fn unnamed(mut self) -> Self {
        self.is_unnamed = true;
        self
    }

    /// The kernel as it runs `slide` bytes above its link-time addresses.
    #[must_use]
    pub fn moved(mut self, slide: u64) -> Self {
        self.slide = slide;
        self
    }

    fn symbols(&self) -> Symbols {
        if self.is_unnamed {
            return Symbols::from_table(std::iter::empty(), Vec::new());
        }
        let end = TEXT + self.text.len() as u64;
        let bounds = [(TEXT, "_stext"), (end, "_etext")];
        let functions = self
            .functions
            .iter()
            .map(|(address, name)| (*address, &**name));
        let named = bounds.into_iter().chain(functions);
        let found = named.map(|(address, name)| FileSymbol {
            address,
            name: name.as_bytes(),
            kind: SymbolKind::Function,
            size: 0,
        });
        Symbols::from_table(found, Vec::new())
    }

    fn image(&self) -> KernelImage<'_> {
        let mut image = KernelImage::from_memory(vec![Segment {
            address: TEXT + self.slide,
            data: &self.text,
            memory_length: self.text.len() as u64,
        }]);
        image.move_down(self.slide);
        image
    }

    /// Everything that the code gives: `structure.member` or the name of a variable, and its offset or address.
    pub fn findings(&self) -> Vec<(String, u64)> {
        let (image, symbols) = (self.image(), self.symbols());
        let findings = Code::new(&image, &symbols).findings();
        let members = findings.members().into_iter();
        let members =
            members.map(|((structure, member), offset)| (format!("{structure}.{member}"), offset));
        let variables = findings.variables();
        let variables = variables.map(|(name, address)| (name.to_owned(), address));
        members.chain(variables).collect()
    }

    /// The rules that the code gives. `None` for code with frame pointers.
    pub fn rules(&self) -> Option<CodeRules> {
        CodeRules::find(&self.image(), &self.symbols())
    }

    /// The distances of the caller's stack pointer from RSP that the code gives, for instructions at each of its
    /// addresses: first by a walk, then from the cache. `None` for code with frame pointers.
    ///
    /// # Panics
    /// If the cache differs from the walk.
    pub fn distances(&self) -> Option<Vec<Option<i16>>> {
        let rules = self.rules()?;
        let addresses = (TEXT..).take(self.text.len());
        let rules = addresses.map(|address| {
            let found = rules.entry(address, true);
            assert_eq!(rules.entry(address, true), found, "{address:#x}");
            found.map(|entry| entry.sp_offset)
        });
        Some(rules.collect())
    }
}
