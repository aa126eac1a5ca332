//! Offsets in a `struct module`, in bytes.

/// `module.state`, 4 bytes.
pub const STATE: u64 = 0;
/// `module.list`.
pub const LIST: u64 = 8;
/// `module.name`, 56 bytes.
pub const NAME: u64 = 0x18;
/// `module.build_id`, 20 bytes.
pub const BUILD_ID: u64 = 0x50;
/// `module.kallsyms`, a pointer.
pub const KALLSYMS: u64 = 0x70;
/// `mod_arch_specific.num_orcs`, 4 bytes; then `orc_unwind_ip` and `orc_unwind`, pointers.
pub const ORC: u64 = 0x80;
/// `module.mem`, or `core_layout`.
pub const TEXT: u64 = 0x100;
/// Bytes of a `module_memory`, which starts with its base.
pub const MEMORY_LENGTH: u64 = 0x48;
/// `module_memory.size`, 4 bytes.
pub const MEMORY_SIZE: u64 = 8;
/// `module.init_layout`.
pub const INIT_LAYOUT: u64 = 0x180;
/// `module_layout.text_size`, 4 bytes after the base and the total size.
pub const TEXT_SIZE: u64 = 12;
