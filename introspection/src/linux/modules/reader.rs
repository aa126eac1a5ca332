//! Reads the kernel's memory with a limit, because lengths that the guest gives aren't trusted.

use crate::PhysicalMemory;

use super::super::view::KernelView;
use kvmprof_paging::PAGE;

/// The cost of a read in addition to its bytes, for the walk of the page tables.
const COST: usize = 64;
/// Maximum length of a string, in bytes (`KSYM_NAME_LEN`).
const MAX_STRING: usize = 512;

/// A view of the kernel's memory that can be read a limited number of times.
pub struct BoundedReader<'a, M> {
    view: &'a KernelView<'a, M>,
    left: usize,
    /// The page of the last string.
    page: Option<(u64, Vec<u8>)>,
}

impl<'a, M: PhysicalMemory> BoundedReader<'a, M> {
    /// A reader of at most `limit` bytes.
    pub fn new(view: &'a KernelView<'a, M>, limit: usize) -> Self {
        Self {
            view,
            left: limit,
            page: None,
        }
    }

    /// The `length` bytes at kernel address `address`. `None` if some are unreadable or beyond the limit.
    pub fn bytes(&mut self, address: u64, length: usize) -> Option<Vec<u8>> {
        if address >> 63 == 0 {
            return None;
        }
        self.left = self.left.checked_sub(length.checked_add(COST)?)?;
        let mut bytes = vec![0; length];
        self.view.read(address, &mut bytes)?;
        Some(bytes)
    }

    /// The string at kernel address `address`. `None` if it has blanks or is unreadable.
    pub fn word(&mut self, mut address: u64) -> Option<String> {
        let mut word = String::new();
        loop {
            let within = usize::try_from(address % PAGE).ok()?;
            let rest = self.page(address - address % PAGE)?.get(within..)?;
            let part = rest.split(|byte| *byte == 0).next()?;
            let (length, is_last) = (part.len(), part.len() < rest.len());
            if !part.iter().all(u8::is_ascii_graphic) || word.len() + length > MAX_STRING {
                return None;
            }
            word.push_str(std::str::from_utf8(part).ok()?);
            self.left = self.left.checked_sub(length + 1)?;
            if is_last {
                return (!word.is_empty()).then_some(word);
            }
            address = address.checked_add(length as u64)?;
        }
    }

    fn page(&mut self, address: u64) -> Option<&[u8]> {
        if !matches!(&self.page, Some((known, _)) if *known == address) {
            let bytes = self.bytes(address, usize::try_from(PAGE).ok()?)?;
            self.page = Some((address, bytes));
        }
        Some(&self.page.as_ref()?.1)
    }
}
