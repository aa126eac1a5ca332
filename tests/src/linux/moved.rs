//! A kernel at another address than the one that it was linked to, as its decompressor leaves it with KASLR.

use kvmprof_introspection::Symbols;
use kvmprof_introspection::parts::{
    Code, FileSymbol, KernelImage, Segment, SymbolKind, Vmlinux, kernel_symbols,
};

/// The start of the kernel's mapping (`Documentation/arch/x86/x86_64/mm.rst`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// Bytes of an entry in the lists of relocations.
const ENTRY: usize = 4;

/// What relocation does to the places of a list.
#[derive(Clone, Copy)]
enum Relocation {
    /// Adds the slide to an address of 4 bytes.
    Low,
    /// Subtracts it from a distance of 4 bytes to a per-CPU variable, which doesn't move.
    PerCpu,
    /// Adds it to an address of 8 bytes.
    Whole,
}

/// What the code of the kernel in `elf` gives with names of functions: in the file, and in its memory if it runs `slide`
/// bytes above its link-time addresses. `structure.member` or the name of a variable, and its offset or link-time address.
/// `None` if the file isn't an unpacked kernel with its relocations behind it.
pub fn facts(elf: &[u8], slide: u64) -> Option<[Vec<(String, u64)>; 2]> {
    let image = KernelImage::from_file(Vmlinux::parse(elf).ok()?);
    let all = kernel_symbols(&image);
    let named = all.functions().map(|(address, _, name)| FileSymbol {
        address,
        name: name.as_bytes(),
        kind: SymbolKind::Function,
        size: 0,
    });
    let symbols = Symbols::from_table(named, Vec::new());
    let moved = relocated(elf, &image, &all, slide)?;
    let file = Vmlinux::parse(&moved).ok()?;
    let mut segments: Vec<Segment<'_>> = (file.segments().iter())
        .filter(|segment| segment.address >= KERNEL_MAP)
        .map(|segment| Segment {
            address: segment.address + slide,
            data: segment.data,
            memory_length: segment.memory_length,
        })
        .collect();
    segments.sort_by_key(|segment| segment.address);
    let mut memory = KernelImage::from_memory(segments);
    memory.move_down(slide);
    Some([&image, &memory].map(|image| told(&Code::new(image, &symbols))))
}

fn told(code: &Code<'_>) -> Vec<(String, u64)> {
    let findings = code.findings();
    let members = findings.members().into_iter();
    let members =
        members.map(|((structure, member), offset)| (format!("{structure}.{member}"), offset));
    let variables = findings.variables().map(|(name, at)| (name.to_owned(), at));
    members.chain(variables).collect()
}

/// `elf` with its relocations done (`handle_relocations`, `arch/x86/boot/compressed/misc.c`). They are behind it: lists of
/// addresses, the lower halves of which are stored, each after a 0. The last list comes first.
fn relocated(
    elf: &[u8],
    image: &KernelImage<'_>,
    symbols: &Symbols,
    slide: u64,
) -> Option<Vec<u8>> {
    // Since 6.15 per-CPU variables move with the kernel.
    let moves_variables = symbols.address_of("__per_cpu_start")? >= KERNEL_MAP;
    let lists: &[Relocation] = match moves_variables {
        true => &[Relocation::Low, Relocation::Whole],
        false => &[Relocation::Low, Relocation::PerCpu, Relocation::Whole],
    };
    let mut moved = elf.to_vec();
    let mut end = elf.len();
    for relocation in lists {
        loop {
            let entry = elf.get(end.checked_sub(ENTRY)?..end)?;
            end -= ENTRY;
            let low = i32::from_le_bytes(entry.try_into().ok()?);
            if low == 0 {
                break;
            }
            // The first values of per-CPU variables are elsewhere in the file.
            let Some(code) = image.bytes_from(i64::from(low).cast_unsigned()) else {
                continue;
            };
            let place = (code.as_ptr() as usize).checked_sub(elf.as_ptr() as usize)?;
            relocate(moved.get_mut(place..)?, *relocation, slide)?;
        }
    }
    Some(moved)
}

fn relocate(place: &mut [u8], relocation: Relocation, slide: u64) -> Option<()> {
    let low: [u8; 4] = slide.to_le_bytes()[..4].try_into().ok()?;
    let low = u32::from_le_bytes(low);
    if let Relocation::Whole = relocation {
        let place: &mut [u8; 8] = place.first_chunk_mut()?;
        *place = u64::from_le_bytes(*place).wrapping_add(slide).to_le_bytes();
        return Some(());
    }
    let place: &mut [u8; 4] = place.first_chunk_mut()?;
    let number = u32::from_le_bytes(*place);
    let number = match relocation {
        Relocation::PerCpu => number.wrapping_sub(low),
        Relocation::Low | Relocation::Whole => number.wrapping_add(low),
    };
    *place = number.to_le_bytes();
    Some(())
}
