//! VMCOREINFO: what a Linux kernel says of itself for programs that read dumps of its memory (`kernel/crash_core.c`, or `vmcore_info.c` from 6.9 on), in a page of
//! its own: lines such as `OSRELEASE=6.1.0`. Without it these programs know neither where KASLR has put the kernel nor which build it is.
//!
//! The page is found by its first bytes. Anybody in the guest can write such a page, and one of an earlier boot may be left. So it is only believed if the kernel
//! that runs has what it names at the address that it names.

use kvmprof_paging::{AddressSpace, PhysicalMemory, Registers};
use memchr::memmem::find;

/// Bytes of the page (`VMCOREINFO_BYTES`, `include/linux/vmcore_info.h`).
pub const VMCOREINFO_BYTES: usize = 4096;
/// What it begins with: the first line that `crash_save_vmcoreinfo_init` writes.
const BEGIN: &[u8] = b"OSRELEASE=";
/// The line with the address of the kernel's own names, among which its release is (`struct uts_namespace`).
const NAMES: &[u8] = b"SYMBOL(init_uts_ns)=";
/// Bytes of these names: six strings of 65 bytes (`struct new_utsname`), behind a count of references in older kernels.
const NAMES_BYTES: usize = 8 + 6 * 65;
/// Maximum length of a release, in bytes (`__NEW_UTS_LEN`).
const MAX_RELEASE: usize = 64;

/// Maximum number of pages that begin so and are looked at: a guest can fill its memory with them, and each takes some reads.
const MAX_CANDIDATES: u32 = 4096;

/// The search for VMCOREINFO in a guest's memory.
#[derive(Debug, Default)]
pub struct VmcoreinfoSearch {
    /// Number of pages that began as it does.
    candidates: u32,
    found: Option<Vec<u8>>,
}

impl VmcoreinfoSearch {
    /// Looks whether `page`, [`VMCOREINFO_BYTES`] bytes of guest memory, is the VMCOREINFO of the kernel that one of the vCPUs with these `registers` runs, by its
    /// page tables in `memory`. The first such page is kept.
    pub fn look<M: PhysicalMemory>(&mut self, page: &[u8], memory: &M, registers: &[Registers]) {
        if self.found.is_some() || !page.starts_with(BEGIN) || self.candidates == MAX_CANDIDATES {
            return;
        }
        self.candidates += 1;
        let mut texts = registers.iter();
        let text = texts.find_map(|registers| vmcoreinfo(page, memory, registers));
        self.found = text.map(<[u8]>::to_vec);
    }

    /// Its text.
    pub fn found(&self) -> Option<&[u8]> {
        self.found.as_deref()
    }
}

/// The text of VMCOREINFO in `page`, if it is that of the kernel that a vCPU with these registers runs.
fn vmcoreinfo<'a, M: PhysicalMemory>(
    page: &'a [u8],
    memory: &M,
    registers: &Registers,
) -> Option<&'a [u8]> {
    let page = page.get(..VMCOREINFO_BYTES)?;
    let end = page.iter().position(|byte| *byte == 0);
    let text = page.get(..end.unwrap_or(VMCOREINFO_BYTES))?;
    let release = value(text, BEGIN).filter(|it| (1..=MAX_RELEASE).contains(&it.len()))?;
    let names = u64::from_str_radix(str::from_utf8(value(text, NAMES)?).ok()?, 16).ok()?;
    let space = AddressSpace::new(memory, registers);
    let release = [b"\0", release, b"\0"].concat();
    let has_release = |space: AddressSpace<'_, M>| {
        let mut found = [0; NAMES_BYTES];
        let is_read = space.is_long_mode() && space.read(names, &mut found).is_some();
        is_read && find(&found, &release).is_some()
    };
    let mut spaces = [Some(space), space.kernel_half()].into_iter().flatten();
    spaces.any(has_release).then_some(text)
}

/// The rest of the line that begins with `name`.
fn value<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    text.split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    const ROOT: u64 = 0x10_0000;
    const NAMES_AT: u64 = 0xffff_ffff_9160_0040;
    const PHYSICAL: u64 = 0x3000;
    const TEXT: &str = "OSRELEASE=6.1.0-48\nPAGESIZE=4096\nSYMBOL(init_uts_ns)=ffffffff91600040\nKERNELOFFSET=f000000\n";

    /// A kernel whose page tables map its names, with the release at an offset.
    fn kernel(release: &str, offset: u64) -> Memory {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
        let mut tables = Tables::new(memory, ROOT, 4);
        tables.map(NAMES_AT & !0xfff, PHYSICAL, 1);
        let memory = tables.memory;
        let place = GuestAddress(PHYSICAL + 0x40 + offset);
        memory.write_slice(release.as_bytes(), place).unwrap();
        memory
    }

    fn page(text: &str) -> Vec<u8> {
        let mut page = text.as_bytes().to_vec();
        page.resize(VMCOREINFO_BYTES, 0);
        page
    }

    #[test]
    fn the_running_kernels_own_page_is_believed() {
        let registers = long_mode(ROOT, false);
        for offset in [130, 134] {
            let memory = kernel("6.1.0-48", offset);
            let page = page(TEXT);
            let found = vmcoreinfo(&page, &memory, &registers);
            assert_eq!(found, Some(TEXT.as_bytes()), "{offset}");
        }
        // The user half of a pair of page tables: its kernel half is the page before.
        let user = long_mode(ROOT | 0x1000, false);
        let memory = kernel("6.1.0-48", 130);
        assert!(vmcoreinfo(&page(TEXT), &memory, &user).is_some());
    }

    #[test]
    fn a_page_that_the_kernel_contradicts_is_not_believed() {
        let memory = kernel("6.1.0-48", 130);
        let registers = long_mode(ROOT, false);
        for (from, to) in [
            // Another kernel's, or an earlier boot's.
            ("6.1.0-48", "6.1.0-4"),
            ("6.1.0-48", ""),
            ("ffffffff91600040", "ffffffff91800040"),
            ("ffffffff91600040", "ffffffffffffffff"),
            ("ffffffff91600040", "1ffffffff91600040"),
            ("ffffffff91600040", "\u{0}"),
            ("SYMBOL(init_uts_ns)", "SYMBOL(other)"),
            ("OSRELEASE", "RELEASE"),
        ] {
            let page = page(&TEXT.replacen(from, to, 1));
            let found = vmcoreinfo(&page, &memory, &registers);
            assert_eq!(found, None, "{to}");
        }
        // A page that is cut off, and a vCPU that has no page tables yet.
        assert_eq!(vmcoreinfo(TEXT.as_bytes(), &memory, &registers), None);
        let start = Registers::default();
        assert_eq!(vmcoreinfo(&page(TEXT), &memory, &start), None);
    }

    /// Memory full of pages that begin as it does takes a bounded number of looks.
    #[test]
    fn the_first_page_that_is_right_is_kept_and_wrong_ones_are_counted() {
        let memory = kernel("6.1.0-48", 130);
        let registers = [Registers::default(), long_mode(ROOT, false)];
        let (right, wrong) = (page(TEXT), page(&TEXT.replacen("6.1", "6.2", 1)));
        for (count, is_found) in [(MAX_CANDIDATES - 1, true), (MAX_CANDIDATES, false)] {
            let mut search = VmcoreinfoSearch::default();
            for _ in 0..count {
                search.look(&wrong, &memory, &registers);
                search.look(&[0; VMCOREINFO_BYTES], &memory, &registers);
            }
            assert_eq!(search.found(), None);
            search.look(&right, &memory, &registers);
            search.look(
                &page(&TEXT.replacen("4096", "8192", 1)),
                &memory,
                &registers,
            );
            assert_eq!(search.found(), is_found.then_some(TEXT.as_bytes()));
        }
    }

    #[test]
    fn text_that_fills_its_page_ends_there() {
        let memory = kernel("6.1.0-48", 130);
        let mut page = page(TEXT);
        page[TEXT.len()..].fill(b'x');
        page.push(b'y');
        let found = vmcoreinfo(&page, &memory, &long_mode(ROOT, false));
        assert_eq!(found.map(<[u8]>::len), Some(VMCOREINFO_BYTES));
    }
}
