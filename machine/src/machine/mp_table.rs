//! The MP table (Intel: MultiProcessor Specification, version 1.4, section 4): processors and interrupts for kernels without ACPI, such as those
//! of microVM products. Kernels with ACPI take them from there and leave this table alone.

use vm_memory::{Bytes, GuestAddress};

use crate::error::{MachineError, write_error};
use crate::layout;
use crate::memory::GuestMemory;

/// Specification 1.4.
const REVISION: u8 = 4;
/// Version of the local APICs, and of the I/O APIC: integrated ones.
const APIC_VERSION: u8 = 0x14;
/// Offsets of the length and of the checksum in the table's header.
const LENGTH: usize = 4;
const CHECKSUM: usize = 7;
/// Number of the I/O APIC's pins.
const PINS: u8 = 24;
/// Number of the only bus.
const BUS: u8 = 0;
/// The local APICs of all processors.
const ALL: u8 = 0xff;

/// Types of entries (section 4.3).
mod entry {
    pub const PROCESSOR: u8 = 0;
    pub const BUS: u8 = 1;
    pub const IO_APIC: u8 = 2;
    pub const INTERRUPT: u8 = 3;
    pub const LOCAL_INTERRUPT: u8 = 4;
}

/// Types of interrupts (table 4-10).
mod interrupt {
    pub const VECTORED: u8 = 0;
    pub const NON_MASKABLE: u8 = 1;
    pub const OF_8259: u8 = 3;
}

/// Writes the table for a machine with this many vCPUs.
///
/// # Errors
/// Guest memory is too small for it. No accepted memory size is that small.
pub(super) fn write(memory: &GuestMemory, cpus: u8) -> Result<(), MachineError> {
    memory
        .write_slice(&build(cpus), GuestAddress(layout::MP_TABLE))
        .map_err(write_error("the MP table"))
}

/// The floating pointer and the table behind it.
fn build(cpus: u8) -> Vec<u8> {
    /// The floating pointer's length, in bytes; its own field counts units of 16.
    const POINTER: u32 = 16;

    let address = layout::MP_TABLE.to_le_bytes();
    let [a, b, c, d, ..] = address;
    let table = u32::from_le_bytes([a, b, c, d]) + POINTER;
    let mut pointer = b"_MP_".to_vec();
    pointer.extend(table.to_le_bytes());
    pointer.extend([1, REVISION, 0, 0, 0, 0, 0, 0]);
    balance(&mut pointer, 10);
    pointer.extend(configuration(cpus));
    pointer
}

/// The configuration table: its header and its entries.
fn configuration(cpus: u8) -> Vec<u8> {
    // The I/O APIC's id comes after those of the processors.
    let io_apic = cpus;
    let mut entries = Vec::new();
    entries.extend((0..cpus).map(processor));
    entries.push([&[entry::BUS, BUS][..], b"ISA   "].concat());
    let mut controller = vec![entry::IO_APIC, io_apic, APIC_VERSION, 1];
    controller.extend(layout::IO_APIC.to_le_bytes());
    entries.push(controller);
    // Each of KVM's interrupts (GSI) is at the pin with its number. All are edge-triggered, as the bus's are.
    let assigned =
        |kind, what, source, target, pin| vec![kind, what, 0, 0, BUS, source, target, pin];
    let vectored = |pin| assigned(entry::INTERRUPT, interrupt::VECTORED, pin, io_apic, pin);
    entries.extend((0..PINS).map(vectored));
    let local = entry::LOCAL_INTERRUPT;
    entries.push(assigned(local, interrupt::OF_8259, 0, 0, 0));
    entries.push(assigned(local, interrupt::NON_MASKABLE, 0, ALL, 1));

    let mut table = b"PCMP\0\0".to_vec();
    table.extend([REVISION, 0]);
    table.extend(b"KVMPROF kvmprof     ");
    // No table of the manufacturer's.
    table.extend([0; 6]);
    table.extend(u16::try_from(entries.len()).unwrap_or(0).to_le_bytes());
    table.extend(layout::LOCAL_APIC.to_le_bytes());
    table.extend([0; 4]);
    table.extend(entries.concat());
    let length = u16::try_from(table.len()).unwrap_or(0).to_le_bytes();
    for (target, byte) in table.iter_mut().skip(LENGTH).zip(length) {
        *target = byte;
    }
    balance(&mut table, CHECKSUM);
    table
}

/// A processor's entry (section 4.3.1).
fn processor(cpu: u8) -> Vec<u8> {
    const ENABLED: u8 = 1 << 0;
    const BOOTS: u8 = 1 << 1;
    /// A floating point unit and a local APIC (CPUID leaf 1, EDX).
    const FEATURES: u16 = 1 << 0 | 1 << 9;

    let flags = if cpu == 0 { ENABLED | BOOTS } else { ENABLED };
    let start = [entry::PROCESSOR, cpu, APIC_VERSION, flags];
    [&start[..], &[0; 4], &FEATURES.to_le_bytes(), &[0; 10]].concat()
}

/// Sets the byte at `place` so that all bytes add up to 0.
fn balance(bytes: &mut [u8], place: usize) {
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(checksum) = bytes.get_mut(place) {
        *checksum = checksum.wrapping_sub(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    /// The entries of the table, whose lengths their types tell.
    fn entries(cpus: u8) -> Vec<Vec<u8>> {
        let all = build(cpus);
        let mut rest = &all[16 + 44..];
        let mut entries = Vec::new();
        while let Some(kind) = rest.first() {
            let length = if *kind == entry::PROCESSOR { 20 } else { 8 };
            entries.push(rest[..length].to_vec());
            rest = &rest[length..];
        }
        entries
    }

    #[test]
    fn the_pointer_leads_to_a_table_of_its_length() {
        for cpus in [1, 3, 64] {
            let all = build(cpus);
            let (pointer, table) = all.split_at(16);
            assert_eq!((&pointer[..4], sum(pointer)), (&b"_MP_"[..], 0));
            assert_eq!(pointer[4..8], 0xf_0010_u32.to_le_bytes());
            assert_eq!((&table[..4], sum(table)), (&b"PCMP"[..], 0));
            let [length, count] =
                [4, 34].map(|at| usize::from(u16::from_le_bytes([table[at], table[at + 1]])));
            assert_eq!(length, table.len());
            assert_eq!(count, entries(cpus).len());
            assert_eq!(table[36..40], 0xfee0_0000_u32.to_le_bytes());
        }
    }

    #[test]
    fn it_has_every_processor_and_every_pin() {
        let entries = entries(64);
        let of = |kind: u8| entries.iter().filter(move |entry| entry[0] == kind);
        let ids: Vec<u8> = of(entry::PROCESSOR).map(|entry| entry[1]).collect();
        assert_eq!(ids, (0..64).collect::<Vec<u8>>());
        let first: Vec<u8> = of(entry::PROCESSOR).map(|entry| entry[3]).collect();
        assert_eq!((first[0], first[1]), (3, 1));
        assert!(of(entry::IO_APIC).all(|entry| entry[1] == 64));
        let pins: Vec<u8> = of(entry::INTERRUPT).map(|entry| entry[7]).collect();
        assert_eq!(pins, (0..24).collect::<Vec<u8>>());
    }

    #[test]
    fn the_largest_table_ends_below_the_reset_vector() {
        let cpus = u8::try_from(layout::CPUS_MAX).unwrap();
        let end = layout::MP_TABLE + build(cpus).len() as u64;
        assert!(end <= layout::RESET_VECTOR);
    }
}
