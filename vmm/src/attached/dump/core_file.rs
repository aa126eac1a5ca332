//! The form of a dump: an ELF core file, as QEMU's `dump-guest-memory` and the kernel's `/proc/vmcore` have it, by the physical addresses of the guest.
//!
//! The notes precede the memory, since crash(8) looks for them there: of each vCPU its registers as of a thread (`NT_PRSTATUS`, `struct elf_prstatus` of
//! `include/linux/elfcore.h`) and, for what a thread has not, as QEMU's note has it (version 1, `QEMUCPUState`): segments, descriptor tables and control registers.
//! The last one is VMCOREINFO. Numbers are little-endian.

use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_sregs};
use kvmprof_attach::Slots;
use kvmprof_introspection::VMCOREINFO_BYTES;

/// Bytes of a page, at a multiple of which the memory of each segment begins in the file.
pub const PAGE: u64 = 4096;

const FILE_HEADER_BYTES: u16 = 64;
const PROGRAM_HEADER_BYTES: u16 = 56;
/// With more, the number of program headers would be elsewhere (PN_XNUM of elf(5)). KVM has fewer slots.
const MAX_SEGMENTS: usize = 0xffff - 2;
/// Bytes of a note's three numbers.
const NOTE_HEADER_BYTES: usize = 12;
/// The names of notes' owners, with their NUL, to a multiple of 4.
const CORE: &[u8] = b"CORE\0\0\0\0";
const QEMU: &[u8] = b"QEMU\0\0\0\0";
const VMCOREINFO: &[u8] = b"VMCOREINFO\0\0";
/// The types of these notes. QEMU's has none, as VMCOREINFO.
const PRSTATUS: u32 = 1;
const UNTYPED: u32 = 0;
/// Bytes of `struct elf_prstatus`, the place of the thread's id in it, and that of its registers.
const PRSTATUS_BYTES: usize = 336;
const PRSTATUS_PID: usize = 32;
const PRSTATUS_REGISTERS: usize = 112;
/// The version of QEMU's note, and its length in bytes.
const QEMU_VERSION: u32 = 1;
const QEMU_BYTES: usize = 432;

/// A part of the guest's memory without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its guest-physical address.
    pub address: u64,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Its place in the file.
    pub offset: u64,
}

/// A vCPU's registers, from KVM_GET_REGS and KVM_GET_SREGS; `None` if they aren't known.
pub type VcpuRegisters = Option<(kvm_regs, kvm_sregs)>;

/// Where the parts of a dump are in its file.
#[derive(Debug)]
pub struct CoreFile {
    pub segments: Vec<Segment>,
    /// The length of the file.
    pub bytes: u64,
}

impl CoreFile {
    /// The places for memory in these slots, and for the notes of this number of vCPUs; `None` if a file can't have that length, or that number of segments.
    pub fn new(slots: &Slots, vcpus: usize) -> Option<Self> {
        let mut segments: Vec<Segment> = Vec::new();
        for slot in slots.iter() {
            match segments.last_mut() {
                Some(last) if last.address + last.bytes == slot.address.0 => {
                    last.bytes = last.bytes.checked_add(slot.bytes)?;
                }
                _ => segments.push(Segment {
                    address: slot.address.0,
                    bytes: slot.bytes,
                    offset: 0,
                }),
            }
        }
        (segments.len() <= MAX_SEGMENTS).then_some(())?;
        let of_vcpu = note_bytes(CORE, PRSTATUS_BYTES) + note_bytes(QEMU, QEMU_BYTES);
        let notes = vcpus.checked_mul(of_vcpu)?;
        let notes = notes.checked_add(note_bytes(VMCOREINFO, VMCOREINFO_BYTES))?;
        let headers = headers_bytes(segments.len());
        let mut offset = headers.checked_add(notes as u64)?;
        for segment in &mut segments {
            segment.offset = offset.checked_next_multiple_of(PAGE)?;
            offset = segment.offset.checked_add(segment.bytes)?;
        }
        i64::try_from(offset).is_ok().then_some(Self {
            segments,
            bytes: offset,
        })
    }

    /// The headers and notes of the file, which begins with them: with the registers of all vCPUs, in the order of their numbers, and the text of VMCOREINFO, if
    /// there is one.
    pub fn begin(&self, vcpus: &[VcpuRegisters], vmcoreinfo: Option<&[u8]>) -> Vec<u8> {
        let mut notes = Vec::new();
        for (number, registers) in (1..).zip(vcpus) {
            put_note(&mut notes, CORE, PRSTATUS, &prstatus(number, registers));
        }
        for (regs, sregs) in vcpus.iter().flatten() {
            put_note(&mut notes, QEMU, UNTYPED, &qemu_state(regs, sregs));
        }
        if let Some(text) = vmcoreinfo {
            put_note(&mut notes, VMCOREINFO, UNTYPED, text);
        }
        let mut bytes = file_header(self.segments.len());
        let notes_at = headers_bytes(self.segments.len());
        put_program_header(&mut bytes, libc::PT_NOTE, notes_at, 0, notes.len() as u64);
        for segment in &self.segments {
            let Segment {
                address,
                bytes: length,
                offset,
            } = *segment;
            put_program_header(&mut bytes, libc::PT_LOAD, offset, address, length);
        }
        bytes.extend(notes);
        bytes
    }
}

/// Bytes of the headers of a file with so many segments of memory.
fn headers_bytes(segments: usize) -> u64 {
    u64::from(FILE_HEADER_BYTES) + (1 + segments as u64) * u64::from(PROGRAM_HEADER_BYTES)
}

fn note_bytes(name: &[u8], bytes: usize) -> usize {
    NOTE_HEADER_BYTES + name.len() + bytes.next_multiple_of(4)
}

fn put_note(out: &mut Vec<u8>, name: &[u8], kind: u32, content: &[u8]) {
    // The length of a name has its NUL, and not what follows that.
    let name_bytes = name.iter().take_while(|byte| **byte != 0).count() + 1;
    for number in [length(name_bytes), length(content.len()), kind] {
        out.extend(number.to_le_bytes());
    }
    out.extend(name);
    out.extend(content);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// The length of a note's part, which is less than two pages.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn file_header(segments: usize) -> Vec<u8> {
    let mut bytes = b"\x7fELF".to_vec();
    bytes.extend([libc::ELFCLASS64, libc::ELFDATA2LSB, 1]);
    bytes.resize(libc::EI_NIDENT, 0);
    for number in [libc::ET_CORE, libc::EM_X86_64] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(libc::EV_CURRENT.to_le_bytes());
    // No entry point and no sections; the program headers follow.
    for number in [0, u64::from(FILE_HEADER_BYTES), 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(0_u32.to_le_bytes());
    let headers = u16::try_from(1 + segments).unwrap_or(u16::MAX);
    for number in [FILE_HEADER_BYTES, PROGRAM_HEADER_BYTES, headers, 0, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

fn put_program_header(out: &mut Vec<u8>, kind: u32, offset: u64, address: u64, bytes: u64) {
    out.extend(kind.to_le_bytes());
    out.extend(0_u32.to_le_bytes());
    // No virtual address, and no alignment.
    for number in [offset, 0, address, bytes, bytes, 0] {
        out.extend(number.to_le_bytes());
    }
}

/// The registers as of a thread, in the order of `struct user_regs_struct` (`arch/x86/include/asm/user_64.h`); zeros if they aren't known.
fn prstatus(number: u32, registers: &VcpuRegisters) -> [u8; PRSTATUS_BYTES] {
    let mut bytes = [0; PRSTATUS_BYTES];
    put(&mut bytes, PRSTATUS_PID, &number.to_le_bytes());
    let Some((regs, sregs)) = registers else {
        return bytes;
    };
    let selector = |segment: &kvm_segment| u64::from(segment.selector);
    let numbers = [
        regs.r15,
        regs.r14,
        regs.r13,
        regs.r12,
        regs.rbp,
        regs.rbx,
        regs.r11,
        regs.r10,
        regs.r9,
        regs.r8,
        regs.rax,
        regs.rcx,
        regs.rdx,
        regs.rsi,
        regs.rdi,
        // The number of a system call: none is known.
        u64::MAX,
        regs.rip,
        selector(&sregs.cs),
        regs.rflags,
        regs.rsp,
        selector(&sregs.ss),
        sregs.fs.base,
        sregs.gs.base,
        selector(&sregs.ds),
        selector(&sregs.es),
        selector(&sregs.fs),
        selector(&sregs.gs),
    ];
    put_numbers(&mut bytes, PRSTATUS_REGISTERS, &numbers);
    bytes
}

/// The registers as in QEMU's note.
fn qemu_state(regs: &kvm_regs, sregs: &kvm_sregs) -> [u8; QEMU_BYTES] {
    let mut bytes = [0; QEMU_BYTES];
    put(&mut bytes, 0, &QEMU_VERSION.to_le_bytes());
    put(&mut bytes, 4, &length(QEMU_BYTES).to_le_bytes());
    let general = [
        regs.rax,
        regs.rbx,
        regs.rcx,
        regs.rdx,
        regs.rsi,
        regs.rdi,
        regs.rsp,
        regs.rbp,
        regs.r8,
        regs.r9,
        regs.r10,
        regs.r11,
        regs.r12,
        regs.r13,
        regs.r14,
        regs.r15,
        regs.rip,
        regs.rflags,
    ];
    let mut at = put_numbers(&mut bytes, 8, &general);
    let segments = [
        sregs.cs, sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss, sregs.ldt, sregs.tr,
    ];
    let tables = [sregs.gdt, sregs.idt];
    let segments = segments.iter().map(segment_state);
    for state in segments.chain(tables.iter().map(table_state)) {
        at = put(&mut bytes, at, &state);
    }
    // There is no CR1.
    let control = [sregs.cr0, 0, sregs.cr2, sregs.cr3, sregs.cr4];
    put_numbers(&mut bytes, at, &control);
    bytes
}

/// A segment register: its attributes are in the bits of a descriptor's second word (Intel SDM 3A, 3.4.5).
fn segment_state(segment: &kvm_segment) -> [u8; 24] {
    let attributes = [
        (segment.type_, 8),
        (segment.s, 12),
        (segment.dpl, 13),
        (segment.present, 15),
        (segment.avl, 20),
        (segment.l, 21),
        (segment.db, 22),
        (segment.g, 23),
    ];
    let attributes = attributes
        .iter()
        .fold(0, |all, (bits, shift)| all | u32::from(*bits) << shift);
    state(
        segment.selector.into(),
        segment.limit,
        attributes,
        segment.base,
    )
}

fn table_state(table: &kvm_dtable) -> [u8; 24] {
    state(0, table.limit.into(), 0, table.base)
}

fn state(selector: u32, limit: u32, attributes: u32, base: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (index, number) in [selector, limit, attributes].iter().enumerate() {
        put(&mut bytes, 4 * index, &number.to_le_bytes());
    }
    put_numbers(&mut bytes, 16, &[base]);
    bytes
}

/// Writes `new` to `at`, and returns where it ends.
fn put(bytes: &mut [u8], at: usize, new: &[u8]) -> usize {
    let end = at + new.len();
    if let Some(place) = bytes.get_mut(at..end) {
        place.copy_from_slice(new);
    }
    end
}

fn put_numbers(bytes: &mut [u8], at: usize, numbers: &[u64]) -> usize {
    numbers
        .iter()
        .fold(at, |at, number| put(bytes, at, &number.to_le_bytes()))
}

#[cfg(test)]
mod tests;
