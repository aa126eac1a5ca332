//! The code of a guest that isn't Linux, from its ELF image: its functions, and their unwind information.
//!
//! A file that is given for a guest may be another program's loader, another build, or a position-independent image, which
//! runs wherever its loader has put it. Its names are used only once a vCPU has been seen in its code.

use std::fmt;
use std::sync::OnceLock;

use kvmprof_abi::note::{GuestNote, Location};
use kvmprof_paging::AddressSpace;

use super::image::Vmlinux;
use super::noted::{PidAt, PidAtError};
use super::unwind::{ImageTables, ImageUnwinder};
use super::{PhysicalMemory, Registers, Symbols};

/// Bytes at the program counter that have to be the image's, at one place only.
const PROOF: usize = 64;
/// The bytes of code that are searched at most.
const MAX_CODE: usize = 16 << 20;
/// An image is moved by whole pages.
const PAGE: u64 = 4096;

/// The code of one image.
pub struct ImageCode {
    symbols: Symbols,
    tables: Option<ImageTables>,
    /// The segments with code, by link-time address. Empty if the image runs at its link-time addresses for sure.
    code: Vec<(u64, Box<[u8]>)>,
    /// The link-time place of the running process's pid, if it is relative to a variable.
    pid: Option<Location>,
    /// Whether it runs only at its link-time addresses.
    is_fixed: bool,
    placed: OnceLock<PlacedCode>,
}

/// Where the code runs.
#[derive(Debug)]
pub struct PlacedCode {
    /// The distance from link-time addresses, wrapping.
    pub slide: u64,
    /// The place of the pid, if it is relative to a variable.
    pub note: Option<GuestNote>,
    pub unwinder: ImageUnwinder,
}

/// What is known of where an image runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The VMM has loaded the image, at its link-time addresses unless it is position-independent.
    Loaded,
    /// Only the guest's memory shows whether it runs the image.
    Unproven,
}

impl fmt::Debug for ImageCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ImageCode")
            .field("is_fixed", &self.is_fixed)
            .field("placed", &self.placed)
            .finish_non_exhaustive()
    }
}

impl ImageCode {
    /// The code of `image`; `None` if that isn't an ELF file, or has no symbols.
    pub fn from_elf(image: &[u8], placement: Placement) -> Option<Self> {
        let file = Vmlinux::parse(image).ok()?;
        let symbols = Symbols::from_table(file.symbols(), file.code_ends());
        (!symbols.is_empty()).then_some(())?;
        let is_fixed = !file.is_position_independent();
        let mut code = Self {
            symbols,
            tables: ImageTables::from_elf(image),
            code: Vec::new(),
            pid: None,
            is_fixed,
            placed: OnceLock::new(),
        };
        if is_fixed && placement == Placement::Loaded {
            code.place(0);
        } else {
            let mut room = MAX_CODE;
            for (address, data) in file.executable() {
                let kept = data.get(..room).unwrap_or(data);
                room -= kept.len();
                code.code.push((address, kept.into()));
            }
        }
        Some(code)
    }

    /// The same code, with the pid at `pid_at`.
    ///
    /// # Errors
    /// The image doesn't have the variable that is its base.
    pub fn with_pid(self, pid_at: &PidAt) -> Result<Self, PidAtError> {
        let pid = Some(pid_at.resolve(&self.symbols)?);
        Ok(Self { pid, ..self })
    }

    /// The image's symbols, at link-time addresses.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Where the code runs, if that is known.
    pub fn placed(&self) -> Option<&PlacedCode> {
        self.placed.get()
    }

    /// Looks where the code runs, unless that is known: whether a vCPU with `registers` is in it.
    pub fn locate<M: PhysicalMemory>(&self, memory: &M, registers: &Registers) {
        if self.placed.get().is_none()
            && let Some(slide) = self.slide(memory, registers)
        {
            self.place(slide);
        }
    }

    fn place(&self, slide: u64) {
        // Another vCPU may have found the same meanwhile.
        let _ = self.placed.get_or_init(|| PlacedCode {
            slide,
            note: (self.pid.as_ref()).map(|pid| GuestNote {
                pid: Some(pid.moved(slide)),
                ..GuestNote::default()
            }),
            unwinder: ImageUnwinder::new(self.tables.as_ref(), slide),
        });
    }

    /// The slide that the bytes at the program counter prove: they are those of the image at one place, and at no other.
    fn slide<M: PhysicalMemory>(&self, memory: &M, registers: &Registers) -> Option<u64> {
        registers.is_64_bit_code.then_some(())?;
        let pc = registers.rip;
        let mut running = [0; PROOF];
        AddressSpace::new(memory, registers).read(pc, &mut running)?;
        let mut found = None;
        for (address, code) in &self.code {
            // The first byte of the segment at which the program counter can be, and the others.
            let (first, step) = match self.is_fixed {
                true => (pc.wrapping_sub(*address), usize::MAX),
                false => (pc.wrapping_sub(*address) % PAGE, 4096),
            };
            let first = usize::try_from(first).unwrap_or(usize::MAX);
            for offset in (first..code.len()).step_by(step) {
                if code
                    .get(offset..)
                    .is_some_and(|code| code.starts_with(&running))
                {
                    let slide = pc.wrapping_sub(address.wrapping_add(offset as u64));
                    if found.replace(slide).is_some() {
                        return None;
                    }
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_demo_guest::ELF;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::BuildFiles;
    use crate::GuestKnowledge;
    use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};

    /// Where the guest has the image's code, by another address than it was linked to.
    const MOVED: u64 = 0x1234_5000;

    /// The demo guest's image, as a position-independent one without a note.
    fn movable() -> Vec<u8> {
        let mut image = ELF.to_vec();
        image[16] = 3;
        let owner = image.windows(8).position(|it| it == b"kvmprof\0").unwrap();
        image[owner] = b'x';
        image
    }

    /// A guest whose code at its `place` is that of the image, `slide` bytes from where it was linked. Also returns registers in it, and the code's link-time address.
    fn running(image: &[u8], slide: u64) -> (Memory, Registers, u64) {
        let file = Vmlinux::parse(image).unwrap();
        let (address, code) = file
            .executable()
            .max_by_key(|(_, code)| code.len())
            .unwrap();
        let memory = Memory::from_ranges(&[(GuestAddress(0), 16 << 20)]).unwrap();
        let mut tables = Tables::new(memory.clone(), 0x1000, 4);
        let first = address & !0xfff;
        let pages = (code.len() as u64).div_ceil(0x1000) + 1;
        for page in (0..pages).map(|page| page * 0x1000) {
            tables.map(first.wrapping_add(slide) + page, (8 << 20) + page, 1);
        }
        let place = GuestAddress((8 << 20) + address % 0x1000);
        memory.write_slice(code, place).unwrap();
        let registers = Registers {
            rip: address.wrapping_add(slide),
            is_64_bit_code: true,
            ..long_mode(0x1000, false)
        };
        (memory, registers, address)
    }

    #[test]
    fn a_moved_image_has_names_once_a_vcpu_is_in_its_code() {
        let image = movable();
        let (_, code) = Vmlinux::parse(&image).unwrap().executable().next().unwrap();
        assert!(code.len() > PROOF);
        let (memory, registers, address) = running(&image, 0);
        let slide = MOVED.wrapping_sub(address & !0xfff);
        let (moved_memory, moved, _) = running(&image, slide);
        let knowledge = GuestKnowledge::from_running_image(&image, &BuildFiles::default()).unwrap();
        assert!(knowledge.is_unlocated() && knowledge.kallsyms().is_none());
        assert!(knowledge.describe().contains("no vCPU was seen"));
        // Code that isn't the image's, and memory that isn't there.
        for rip in [registers.rip, 0x10] {
            knowledge.locate_image(&moved_memory, &Registers { rip, ..moved });
            assert!(knowledge.is_unlocated());
        }
        knowledge.locate_image(&moved_memory, &moved);
        let names = knowledge.kallsyms().unwrap();
        let loaded = GuestKnowledge::from_image(&image).unwrap();
        loaded.locate_image(&memory, &registers);
        let first = |text: &str| u64::from_str_radix(&text[..16], 16).unwrap();
        let linked = loaded.kallsyms().unwrap();
        assert_eq!(first(&names), first(&linked).wrapping_add(slide));
        assert_eq!(names.lines().count(), linked.lines().count());
    }

    #[test]
    fn a_fixed_image_runs_where_it_was_linked_or_not_at_all() {
        let (moved_memory, moved, _) = running(ELF, 0x10_0000);
        let (memory, registers, _) = running(ELF, 0);
        let code = ImageCode::from_elf(ELF, Placement::Unproven).unwrap();
        code.locate(&moved_memory, &moved);
        assert!(code.placed().is_none());
        code.locate(&memory, &registers);
        assert_eq!(code.placed().map(|placed| placed.slide), Some(0));
        let loaded = ImageCode::from_elf(ELF, Placement::Loaded).unwrap();
        assert_eq!(loaded.placed().map(|placed| placed.slide), Some(0));
    }

    #[test]
    fn bytes_that_are_in_the_image_twice_prove_nothing() {
        let page = [0x90; 4096];
        let code = ImageCode {
            symbols: Symbols::from_table(std::iter::empty(), Vec::new()),
            tables: None,
            code: vec![(0x1000, [page, page].concat().into())],
            pid: None,
            is_fixed: false,
            placed: OnceLock::new(),
        };
        let (memory, registers, _) = running(ELF, 0);
        let place = AddressSpace::new(&memory, &registers).translate(registers.rip);
        memory.write_slice(&page[..PROOF], place.unwrap()).unwrap();
        code.locate(&memory, &registers);
        assert!(code.placed().is_none());
    }

    /// `--pid-at VARIABLE:0:4`.
    #[test]
    fn a_variable_of_the_image_is_found_where_the_image_runs() {
        let image = movable();
        let (_, _, address) = running(&image, 0);
        let slide = MOVED.wrapping_sub(address & !0xfff);
        let (memory, registers, _) = running(&image, slide);
        let file = Vmlinux::parse(&image).unwrap();
        let variable = file.symbols().find(|it| it.address == address).unwrap();
        let (_, code) = file.executable().find(|(it, _)| *it == address).unwrap();
        let offset = code
            .iter()
            .position(|byte| (1..128).contains(byte))
            .unwrap();
        let value = format!("{}:{offset}:1", String::from_utf8_lossy(variable.name));
        let known = |value: &str, image: &[u8]| {
            GuestKnowledge::from_pid_at(value).and_then(|it| it.with_image(image))
        };
        let knowledge = known(&value, &image).unwrap();
        let mut introspector = crate::VcpuIntrospector::new(knowledge.into(), 0);
        let found = introspector.identify(&memory, &registers, false, false);
        assert_eq!(found.pid, i32::from(code[offset]));
        for (value, image) in [("nothing:0:4", &image[..]), (&value, b"")] {
            let error = known(value, image).unwrap_err().to_string();
            assert!(error.contains("nor the name of a variable"), "{error}");
        }
        assert!(
            GuestKnowledge::unknown()
                .with_image(&image)
                .unwrap()
                .kallsyms()
                .is_none()
        );
    }
}
