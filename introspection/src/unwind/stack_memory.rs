//! Access to the memory of stacks.

use kvmprof_recording::StackParts;
use vm_memory::GuestAddress;

use crate::PhysicalMemory;

use super::language::{BareFrame, Executed};
use crate::bytes::u64_at;
use kvmprof_paging::{PAGE, read_paged};

/// Part of a stack, copied while the vCPU stood still.
#[derive(Clone, Copy, Debug)]
pub struct StackCopy<'a> {
    /// The guest-virtual address of the part.
    pub address: u64,
    /// Its contents.
    pub bytes: &'a [u8],
}

/// The source of a stack.
#[derive(Clone, Copy, Debug)]
pub struct StackSource<'c> {
    /// The requested parts.
    pub parts: StackParts,
    /// Copies of the stack of a vCPU that runs again; `None` for the stack in guest memory.
    pub copies: Option<&'c [StackCopy<'c>]>,
}

impl StackCopy<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address)?;
        u64_at(self.bytes, usize::try_from(offset).ok()?)
    }
}

/// Reads a stopped guest's virtual memory.
pub trait StackMemory {
    /// The 64-bit number at stack address `address`.
    fn word(&mut self, address: u64) -> Option<u64>;

    /// The 8 bytes of code that end right before `address`.
    fn code_before(&mut self, address: u64) -> Option<[u8; 8]>;

    /// The address that a function returns to, if the kernel has put `back` in its place on the stack; else `None`.
    fn true_return(&self, _back: u64, _place: u64) -> Option<u64> {
        None
    }

    /// What a language's runtime knows about `frame`.
    fn executed(&mut self, _frame: BareFrame) -> Executed {
        Executed::Unknown
    }

    /// Whether the stack's code may use `address`. User code has the lower half of all addresses.
    fn may_use(&self, address: u64) -> bool {
        address >> 63 == 0
    }
}

/// A copy of one stack, and access to the code of the program whose stack it is.
pub struct CopiedMemory<'a, C> {
    pub copy: StackCopy<'a>,
    /// Reads the 8 bytes of code that end right before an address.
    pub code_before: C,
    /// Whether a word outside the copy was requested.
    pub has_left_copy: bool,
}

impl<C: FnMut(u64) -> Option<[u8; 8]>> StackMemory for CopiedMemory<'_, C> {
    fn word(&mut self, address: u64) -> Option<u64> {
        // The words of a stack are aligned.
        address.is_multiple_of(8).then_some(())?;
        let word = self.copy.word(address);
        self.has_left_copy |= word.is_none();
        word
    }

    fn code_before(&mut self, address: u64) -> Option<[u8; 8]> {
        (self.code_before)(address)
    }
}

/// The address that a function returns to, by the return address on the stack and the place of that; `None` if the kernel hasn't replaced it.
pub(crate) type TrueReturn<'a> = dyn Fn(u64, u64) -> Option<u64> + 'a;

/// What a language's runtime knows about a frame.
pub(crate) type Runtime<'a> = dyn FnMut(BareFrame) -> Executed + 'a;

/// Guest memory, read through `translate`, which turns a virtual address into a physical one. The words of a stack are
/// close together, so the last word's page is cached. If the vCPU already runs again, words come only from copies of
/// its stacks, while its code is unchanged.
pub struct PagedMemory<'a, M, T> {
    memory: &'a M,
    translate: T,
    // The virtual address of a page, and its physical address.
    page: Option<(u64, GuestAddress)>,
    copies: Option<&'a [StackCopy<'a>]>,
    has_left_copies: bool,
    true_return: Option<&'a TrueReturn<'a>>,
    runtime: Option<&'a mut Runtime<'a>>,
    // Kernels may have their code and stacks in either half.
    has_both_halves: bool,
}

impl<'a, M: PhysicalMemory, T: Fn(u64) -> Option<GuestAddress>> PagedMemory<'a, M, T> {
    /// Reads `memory` through `translate`.
    pub fn new(memory: &'a M, translate: T) -> Self {
        Self {
            memory,
            translate,
            page: None,
            copies: None,
            has_left_copies: false,
            true_return: None,
            runtime: None,
            has_both_halves: false,
        }
    }

    /// Lets the stack's code use all addresses, or only those of user code, which is the default.
    pub fn allow_both_halves(&mut self, allow: bool) {
        self.has_both_halves = allow;
    }

    /// Takes the words of stacks only from `copies`, if there are any.
    #[must_use]
    pub fn with_copies(mut self, copies: Option<&'a [StackCopy<'a>]>) -> Self {
        self.copies = copies;
        self
    }

    /// Has `true_return` say which return addresses the kernel has replaced.
    #[must_use]
    pub(crate) fn with_true_return(mut self, true_return: &'a TrueReturn<'a>) -> Self {
        self.true_return = Some(true_return);
        self
    }

    /// Has `runtime` say what frames of a language's runtime execute.
    #[must_use]
    pub(crate) fn with_runtime(mut self, runtime: &'a mut Runtime<'a>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Whether a word outside the copies was requested since the last call.
    pub fn take_left_copies(&mut self) -> bool {
        std::mem::take(&mut self.has_left_copies)
    }

    fn copied(&mut self, copies: &[StackCopy<'_>], address: u64) -> Option<u64> {
        let word = copies.iter().find_map(|copy| copy.word(address));
        self.has_left_copies |= word.is_none();
        word
    }

    fn page(&mut self, page: u64) -> Option<GuestAddress> {
        match self.page {
            Some((known, physical)) if known == page => Some(physical),
            _ => {
                let physical = (self.translate)(page)?;
                self.page = Some((page, physical));
                Some(physical)
            }
        }
    }
}

impl<M: PhysicalMemory, T: Fn(u64) -> Option<GuestAddress>> StackMemory for PagedMemory<'_, M, T> {
    fn word(&mut self, address: u64) -> Option<u64> {
        // The words of a stack are aligned.
        if !address.is_multiple_of(8) {
            return None;
        }
        if let Some(copies) = self.copies {
            return self.copied(copies, address);
        }
        let within = address % PAGE;
        let page = self.page(address - within)?;
        let physical = GuestAddress(page.0.checked_add(within)?);
        self.memory.read_array(physical).map(u64::from_le_bytes)
    }

    fn code_before(&mut self, address: u64) -> Option<[u8; 8]> {
        let mut bytes = [0; 8];
        let start = address.checked_sub(8)?;
        read_paged(self.memory, start, &mut bytes, &self.translate)?;
        Some(bytes)
    }

    fn true_return(&self, back: u64, place: u64) -> Option<u64> {
        self.true_return?(back, place)
    }

    fn executed(&mut self, frame: BareFrame) -> Executed {
        (self.runtime.as_mut()).map_or(Executed::Unknown, |runtime| runtime(frame))
    }

    fn may_use(&self, address: u64) -> bool {
        self.has_both_halves || address >> 63 == 0
    }
}
