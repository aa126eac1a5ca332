//! Offsets within the image, in bytes from [`TEXT`](super::kernel::TEXT).

/// `linux_banner`.
pub const BANNER: u64 = 0x1000;
/// The notes, one of which has the build id.
pub const NOTES: u64 = 0x1100;
/// `asm_exc_divide_error`.
pub const DIVIDE_ERROR: u64 = 0x2000;
/// `asm_exc_page_fault`.
pub const PAGE_FAULT: u64 = 0x2010;
/// `early_idt_handler_array`.
pub const EARLY_HANDLERS: u64 = 0x3000;
/// `__per_cpu_offset`, 8 bytes for each CPU.
pub const PER_CPU_OFFSET: u64 = 0x4000;
/// `system_state`, 4 bytes.
pub const SYSTEM_STATE: u64 = 0x4100;
/// `panic_cpu`, 4 bytes.
pub const PANIC_CPU: u64 = 0x4104;
/// `page_offset_base`, 8 bytes.
pub const PAGE_OFFSET_BASE: u64 = 0x4108;
/// `vmemmap_base`, 8 bytes.
pub const VMEMMAP_BASE: u64 = 0x4110;
/// `jiffies_64`, 8 bytes.
pub const JIFFIES: u64 = 0x4128;
/// `init_task`.
pub const INIT_TASK: u64 = 0x4200;
/// `vdso_image_64`, 16 bytes.
pub const VDSO_IMAGE: u64 = 0x4118;
/// The per-CPU variables in the image, which the kernel uses until the areas are set up.
pub const PER_CPU_LOAD: u64 = 0x5000;
/// The type information.
pub const BTF: u64 = 0x6000;
/// The symbol table.
pub const SYMBOLS: u64 = 0x8000;
/// `modules`, the head of their list.
pub const MODULES: u64 = 0x4180;
/// `mod_tree`, which starts with its sequence.
pub const MODULE_TREE: u64 = 0x4190;
/// Kernel code that keeps 16 bytes on the stack.
pub const FRAMED: u64 = 0x2200;
/// The end of the scheduler's code, which begins at [`FRAMED`].
pub const SCHEDULER_END: u64 = 0x2280;
/// `mutex_spin_on_owner`, `rwsem_spin_on_owner`, and the end of the latter: `preempt_schedule`.
pub const OWNER_LOOPS: [u64; 3] = [0x2400, 0x2440, 0x2480];
/// `native_queued_spin_lock_slowpath`, `queued_read_lock_slowpath`, `queued_write_lock_slowpath`, and the end of
/// the latter: `schedule_idle`.
pub const SPIN_LOOPS: [u64; 4] = [0x24c0, 0x2500, 0x2540, 0x2580];
/// Kernel code whose stack pointer points to the registers that an interrupt or a system call saved.
pub const ENTRY: u64 = 0x2700;
/// Kernel code where stacks end.
pub const STACK_END: u64 = 0x2800;
/// The unwind table: addresses, 12 bytes, and entries, 18 bytes.
pub const ORC: [u64; 2] = [0x41a0, 0x41b0];
/// `do_one_initcall`, which keeps 16 bytes on the stack, as [`FRAMED`] does.
pub const DO_ONE_INITCALL: u64 = 0x2680;
/// Two initcalls, and a function that isn't an initcall. They keep 16 bytes on the stack.
pub const INITCALLS: [u64; 3] = [0x26a0, 0x26b0, 0x26c0];
/// The table of the two initcalls, 8 bytes.
pub const INITCALL_TABLE: u64 = 0x41d0;
/// `init_top_pgt`, the kernel's own page tables.
pub const PAGE_TABLES: u64 = 0x1_e000;
/// The image's end.
pub const END: u64 = 0x2_0000;
