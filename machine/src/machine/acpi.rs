//! ACPI tables: RSDP, XSDT, a hardware-reduced FADT, MADT and DSDT (ACPI specification 6.5,
//! chapter 5).
//!
//! ACPI is hardware-reduced, because the machine has no fixed hardware: no PM timer, no SCI, no legacy
//! interrupts. So the tables have to describe everything else: the I/O APIC, the serial port.

use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};
use kvmprof_devices::legacy::power;
use vm_memory::{Bytes, GuestAddress};

use crate::error::{MachineError, write_error};
use crate::layout;
use crate::memory::GuestMemory;
use crate::virtio::VirtioSlot;

const OEM_ID: [u8; 6] = *b"KVMPRF";
const OEM_TABLE_ID: [u8; 8] = *b"KVMPROF ";
const OEM_REVISION: u32 = 1;

/// The tables of a machine, as one block for the address [`layout::ACPI_TABLES`].
struct Tables {
    bytes: Vec<u8>,
}

impl Tables {
    fn new() -> Self {
        Self {
            // The RSDP comes first, but it can only be written when the rest is known.
            bytes: vec![0; Rsdp::len()],
        }
    }

    /// Appends a table and returns its guest-physical address.
    fn push(&mut self, table: &dyn Aml) -> u64 {
        // Tables are read with aligned accesses by some kernels.
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        let address = layout::ACPI_TABLES + self.bytes.len() as u64;
        table.to_aml_bytes(&mut self.bytes);
        address
    }
}

/// Writes all tables and returns the address of the RSDP.
///
/// # Errors
/// Guest memory is too small for them. No accepted memory size is that small.
pub(super) fn write(
    memory: &GuestMemory,
    cpus: u8,
    virtio: &[VirtioSlot],
) -> Result<u64, MachineError> {
    memory
        .write_slice(&build(cpus, virtio), GuestAddress(layout::ACPI_TABLES))
        .map_err(write_error("the ACPI tables"))?;
    Ok(layout::ACPI_TABLES)
}

fn build(cpus: u8, virtio: &[VirtioSlot]) -> Vec<u8> {
    let mut tables = Tables::new();
    let dsdt = tables.push(&RawTable(dsdt(virtio)));
    let fadt = tables.push(&fadt(dsdt));
    let madt = tables.push(&madt(cpus));
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = tables.push(&xsdt);

    let mut rsdp = Vec::new();
    Rsdp::new(OEM_ID, xsdt).to_aml_bytes(&mut rsdp);
    tables.bytes.splice(..rsdp.len(), rsdp);
    tables.bytes
}

/// A table whose bytes are complete.
struct RawTable(Sdt);

impl Aml for RawTable {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        sink.vec(self.0.as_slice());
    }
}

fn fadt(dsdt: u64) -> impl Aml {
    // IAPC_BOOT_ARCH (ACPI 6.5, table 5.11): bit 2 "VGA not present", bit 5 "CMOS RTC not
    // present". Without the latter Linux waits for an RTC that isn't there.
    const VGA_NOT_PRESENT: u16 = 1 << 2;
    const CMOS_RTC_NOT_PRESENT: u16 = 1 << 5;

    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .preferred_pm_profile(PmProfile::Unspecified)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Headless);
    fadt.iapc_boot_arch = (VGA_NOT_PRESENT | CMOS_RTC_NOT_PRESENT).into();
    fadt.sleep_control_reg = io_register(power::SLEEP_CONTROL_PORT);
    fadt.sleep_status_reg = io_register(power::SLEEP_STATUS_PORT);
    fadt.reset_reg = io_register(power::RESET_PORT);
    fadt.reset_value = power::RESET_VALUE;
    fadt.finalize()
}

/// An 8-bit register in I/O port space.
fn io_register(port: u16) -> GAS {
    GAS::new(
        AddressSpace::SystemIo,
        8,
        0,
        AccessSize::ByteAccess,
        u64::from(port),
    )
}

fn madt(cpus: u8) -> MADT {
    let mut madt = MADT::new(
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
        LocalInterruptController::Address(layout::LOCAL_APIC),
    );
    for cpu in 0..cpus {
        madt.add_structure(ProcessorLocalApic::new(cpu, cpu, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, layout::IO_APIC, 0));
    madt
}

fn dsdt(virtio: &[VirtioSlot]) -> Sdt {
    const DSDT_REVISION: u8 = 2;
    const HEADER_SIZE: u32 = 36;

    let mut body = Vec::new();
    com1(&mut body);
    power_button(&mut body);
    for (index, device) in (0u32..).zip(virtio) {
        virtio_mmio(&mut body, index, device);
    }
    // Only the first element matters: what to write into the sleep control register's SLP_TYP.
    named("_S5_", &aml::Package::new(vec![&power::SLEEP_TYPE_S5])).to_aml_bytes(&mut body);

    let mut dsdt = Sdt::new(
        *b"DSDT",
        HEADER_SIZE,
        DSDT_REVISION,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    );
    dsdt.append_slice(&body);
    dsdt
}

/// The object called `name` of a device.
fn named(name: &str, value: &dyn Aml) -> aml::Name {
    aml::Name::new(aml::Path::new(name), value)
}

fn com1(sink: &mut Vec<u8>) {
    const PORTS: u8 = 8;
    aml::Device::new(
        aml::Path::new("_SB_.COM1"),
        vec![
            &named(
                "_HID",
                // "16550A-compatible COM port".
                &aml::EISAName::new("PNP0501"),
            ),
            &named("_UID", &aml::ZERO),
            &named(
                "_CRS",
                &aml::ResourceTemplate::new(vec![
                    &aml::Interrupt::new(true, true, false, false, layout::COM1_IRQ),
                    &aml::IO::new(layout::COM1, layout::COM1, 1, PORTS),
                ]),
            ),
        ],
    )
    .to_aml_bytes(sink);
}

/// The power button of hardware-reduced ACPI: a control method button (ACPI 6.5, section 4.8.2.2.1.2), and a Generic Event Device
/// (section 5.6.9), whose interrupt informs the guest's kernel that the button was pressed.
fn power_button(sink: &mut Vec<u8>) {
    /// "S0 power button pressed" (table 5.165).
    const PRESSED: u8 = 0x80;

    let id = named("_HID", &aml::EISAName::new("PNP0C0C"));
    let number = named("_UID", &aml::ZERO);
    aml::Device::new(aml::Path::new("_SB_.PWRB"), vec![&id, &number]).to_aml_bytes(sink);
    let interrupt = aml::Interrupt::new(true, true, false, false, layout::POWER_BUTTON_GSI);
    let button = aml::Path::new("\\_SB_.PWRB");
    aml::Device::new(
        aml::Path::new("_SB_.GED_"),
        vec![
            &named("_HID", &"ACPI0013"),
            &named("_UID", &aml::ZERO),
            &named("_CRS", &aml::ResourceTemplate::new(vec![&interrupt])),
            &aml::Method::new(
                aml::Path::new("_EVT"),
                1,
                true,
                vec![&aml::Notify::new(&button, &PRESSED)],
            ),
        ],
    )
    .to_aml_bytes(sink);
}

fn virtio_mmio(sink: &mut Vec<u8>, index: u32, device: &VirtioSlot) {
    aml::Device::new(
        aml::Path::new(&format!("_SB_.VR{index:02}")),
        vec![
            // The ID by which Linux's virtio_mmio driver finds its devices.
            &named("_HID", &"LNRO0005"),
            &named("_UID", &index),
            &named("_CCA", &aml::ONE),
            &named(
                "_CRS",
                &aml::ResourceTemplate::new(vec![
                    &aml::Memory32Fixed::new(true, device.address, device.size),
                    &aml::Interrupt::new(true, true, false, device.shared, device.gsi),
                ]),
            ),
        ],
    )
    .to_aml_bytes(sink);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::slots;

    /// Where the table is whose address is at this offset.
    fn address_at(tables: &[u8], offset: usize) -> usize {
        let address = u64::from_le_bytes(*tables[offset..].first_chunk().unwrap());
        usize::try_from(address - layout::ACPI_TABLES).unwrap()
    }

    /// The table at an offset, its checksum verified.
    fn table(tables: &[u8], offset: usize) -> &[u8] {
        let length = u32::from_le_bytes(*tables[offset + 4..].first_chunk().unwrap());
        let table = &tables[offset..offset + usize::try_from(length).unwrap()];
        assert_eq!(sum(table), 0, "checksum of {:?}", &table[..4]);
        table
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    fn signatures(tables: &[u8]) -> Vec<Vec<u8>> {
        let xsdt = table(tables, address_at(tables, 24));
        let mut found = Vec::new();
        for entry in xsdt[36..].chunks(8) {
            let offset = address_at(entry, 0);
            let table = table(tables, offset);
            found.push(table[..4].to_vec());
            if &table[..4] == b"FACP" {
                found.push(self::table(tables, address_at(tables, offset + 140))[..4].to_vec());
            }
        }
        found
    }

    #[test]
    fn the_root_pointer_is_valid_in_both_revisions() {
        let tables = build(1, &[]);
        assert_eq!(&tables[..8], b"RSD PTR ");
        assert_eq!(sum(&tables[..20]), 0);
        assert_eq!(sum(&tables[..36]), 0);
    }

    #[test]
    fn every_table_is_reachable_and_its_checksum_right() {
        let tables = build(3, &slots(1).unwrap());
        assert_eq!(signatures(&tables), [b"FACP", b"DSDT", b"APIC"]);
    }

    #[test]
    fn the_madt_names_every_vcpu_and_the_io_apic() {
        let tables = build(64, &[]);
        let place = tables.windows(4).position(|window| window == b"APIC");
        let madt = table(&tables, place.unwrap());
        assert_eq!(madt.len(), 44 + 64 * 8 + 12);
        assert_eq!(&madt[44 + 63 * 8..][..4], [0, 8, 63, 63]);
        assert_eq!(madt[44 + 64 * 8], 1);
    }

    #[test]
    fn the_largest_tables_fit_into_their_area() {
        let devices = slots(layout::VIRTIO_DEVICES_MAX).unwrap();
        let end = layout::ACPI_TABLES + build(64, &devices).len() as u64;
        assert!(end <= layout::MP_TABLE);
    }

    #[test]
    fn every_machine_has_a_power_button() {
        let tables = build(1, &[]);
        let has = |name: &[u8]| tables.windows(name.len()).any(|window| window == name);
        assert!(has(b"PWRB") && has(b"ACPI0013") && has(b"_EVT"));
    }

    #[test]
    fn only_machines_with_virtio_devices_announce_them() {
        for count in [0, 1, 3] {
            let tables = build(1, &slots(count).unwrap());
            let ids = tables.windows(8).filter(|window| window == b"LNRO0005");
            assert_eq!(ids.count(), count);
        }
    }
}
