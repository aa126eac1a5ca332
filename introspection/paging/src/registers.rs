//! The registers of a stopped vCPU.

/// The part of a vCPU's state that introspection needs, from KVM's shared run page (`struct kvm_sync_regs`,
/// `Documentation/virt/kvm/api.rst`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    /// The program counter, a guest virtual address.
    pub rip: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// The frame pointer, in code compiled with frame pointers.
    pub rbp: u64,
    /// RAX. Unwind tables may refer to it and to the next four registers.
    pub rax: u64,
    /// RDX.
    pub rdx: u64,
    /// RDI.
    pub rdi: u64,
    /// R10.
    pub r10: u64,
    /// R13.
    pub r13: u64,
    /// RBX. Code that waits for a lock may have the lock's address in any register. This and the following ones are 0
    /// if unknown.
    pub rbx: u64,
    /// RCX.
    pub rcx: u64,
    /// RSI.
    pub rsi: u64,
    /// R8.
    pub r8: u64,
    /// R9.
    pub r9: u64,
    /// R11.
    pub r11: u64,
    /// R12.
    pub r12: u64,
    /// R14.
    pub r14: u64,
    /// R15.
    pub r15: u64,
    /// The flags.
    pub rflags: u64,
    /// Control register 0: enables paging.
    pub cr0: u64,
    /// Control register 3: the root of the page tables.
    pub cr3: u64,
    /// Control register 4: selects 4 or 5 levels of page tables.
    pub cr4: u64,
    /// Control register 8: the task priority.
    pub cr8: u64,
    /// The extended features: enable long mode.
    pub efer: u64,
    /// The FS base: that of the running thread, also while it is in the kernel; 0 if unknown.
    pub fs_base: u64,
    /// The active GS base: the kernel's or a user's.
    pub gs_base: u64,
    /// The address of the interrupt descriptor table.
    pub idt_base: u64,
    /// Current privilege level, 0 to 3.
    pub cpl: u8,
    /// Whether the code segment is 64-bit (CS.L).
    pub is_64_bit_code: bool,
}

impl Registers {
    /// The general-purpose registers except the stack pointer, in no particular order.
    pub fn general(&self) -> [u64; 15] {
        [
            self.rax, self.rbx, self.rcx, self.rdx, self.rsi, self.rdi, self.rbp, self.r8, self.r9,
            self.r10, self.r11, self.r12, self.r13, self.r14, self.r15,
        ]
    }
}
