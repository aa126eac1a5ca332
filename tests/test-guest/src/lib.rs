//! The bare-metal guest of the tests and benchmarks. It has the demo guest's kernel, and workloads for one purpose each: a way to run, to use ports
//! and memory, to end, or to attack the host.
//!
//! [`ELF`] is the image, built from `image/` and the kernel when this crate is. It expects of a VMM what the demo guest
//! does (see [`kvmprof_demo_guest`]), and ACPI's hardware-reduced sleep control at port 0x600 and reset at port 0x602.
//!
//! # Command line
//!
//! `workload=NAME` chooses what the guest does ([`WORKLOADS`]). `duty=PERCENT` stands for `workload=duty` too. The
//! address of the virtio console is in `virtio_mmio.device=`, in Linux's form. Other words are passed over.

mod attacks;
mod counters;
mod disks;
mod network;
mod ports;

pub use attacks::{AttackResult, AttackResults, Victim, attack_results_area};
pub use counters::{Counter, Exits, counters, counters_area};
pub use disks::{DISK_BLOCK, DiskResults, DiskStep, block_of_write, disk_results_area};
pub use network::{NetworkAttack, NetworkResults, network_results_area};
pub use ports::{Outcome, PortResults, Stage, Step, allow_stage, port_results_area};

use kvmprof_demo_guest::{Image, PageAligned};
use object::{Object, ObjectSegment};

/// The names that `workload=` knows.
///
/// | Name | What it does |
/// |---|---|
/// | `duty` | user mode for a part of each period, halted for the rest; `duty=PERCENT` (default 50), `period=MICROSECONDS` (default 10000) |
/// | `spin` | user mode without an interrupt; counts |
/// | `gaps` | user mode, watching the TSC for the time that exits take from it; counts |
/// | `pio` | user mode, port I/O ([`UNCLAIMED_PORT`]); counts |
/// | `kernel-pio` | the same in the kernel; counts |
/// | `mmio` | reads and writes of several sizes at [`UNCLAIMED_MMIO`], checked; counts, halts on an error |
/// | `string-io` | `rep insb` and `rep outsb` at [`UNCLAIMED_PORT`], checked; counts, halts on an error |
/// | `exits` | a known number of exits of each kind, on behalf of a process each ([`Exits`]); counts, then halts |
/// | `endless-exits` | the same without an end |
/// | `halts` | [`HALT_ROUNDS`] times [`TURNS`] halts on behalf of processes 101, 102 and 103, in `halt_once`; counts, then halts for good |
/// | `touches` | [`TOUCH_ROUNDS`] times [`TURNS`] first touches of memory on behalf of the same, in `touch_memory`; for one vCPU; counts, then halts |
/// | `nested` | calls nested as deep as `depth=N` says, at most 100, in the kernel; counts |
/// | `irqoff` | the kernel with interrupts off; counts |
/// | `halt` | halted but for a timer interrupt a second; counts those |
/// | `hostile` | circular and damaged page tables, wild pointers where the note leads, absurd counts; counts |
/// | `port` | profiles itself by the framed protocol on a port of the virtio console ([`PortResults`]) |
/// | `clock-flood` | opens and closes pcs on a port without an end, counting in [`PortResults::buffers`], while the other vCPUs read the device's status register |
/// | `profil` | has process 101 profiled by profil and 102 by pcsample, in their private memory, by the framed protocol on a port, and runs them ([`PortResults`]) |
/// | `hostile-queues` | attacks the virtio console at the level of its queues ([`AttackResults`]); `attack=N` tries only that one |
/// | `disk` | every kind of request to the first disk, then requests and chains that no driver should send ([`DiskResults`]) |
/// | `disk-writes` | numbered blocks to the first disk without an end; says `flushed NUMBER` on the serial port ([`block_of_write`]) |
/// | `disk-load` | reads blocks of 4 KiB of the first disk without an end, `depth=N` at a time (default 1, at most 8); counts them, and its notifications as `mmio_writes` |
/// | `network` | sends an announcement whenever the network device's link is up, and each frame back that comes; asks for random bytes first ([`NetworkResults`]) |
/// | `hostile-network` | attacks the network device and the entropy device at the level of their queues; whoever is at the other end has to send each frame back ([`NetworkResults`]); `attack=N` tries only that one |
/// | `vsock` | says hello to port 1234 of the host by the socket device, and sends back what comes on connections to its own ports; counts packets, and connections that it has no credit for |
/// | `folder` | starts the device of the first shared folder, and again whenever that needs a reset; says `started TIMES` on the serial port |
/// | `poweroff`, `reboot`, `triple-fault` | end the machine that way after the greeting |
/// | `bad-instruction` | runs an instruction that a KVM which interprets kernel mode lacks; powers off where it works |
///
/// With any other name, or none, the guest prints that it doesn't know it, and powers off. A row that never ends, as in most counting workloads,
/// never gets into the truth's cycles; [`kvmprof_demo_guest::VcpuTruth::running`] names it.
pub const WORKLOADS: &[&str] = &[
    "duty",
    "spin",
    "gaps",
    "pio",
    "kernel-pio",
    "mmio",
    "string-io",
    "exits",
    "endless-exits",
    "halts",
    "touches",
    "nested",
    "irqoff",
    "halt",
    "hostile",
    "port",
    "clock-flood",
    "profil",
    "hostile-queues",
    "disk",
    "disk-writes",
    "disk-load",
    "network",
    "hostile-network",
    "vsock",
    "folder",
    "poweroff",
    "reboot",
    "triple-fault",
    "bad-instruction",
];

/// The port that `pio`, `kernel-pio` and `string-io` use: nothing may claim it, reads have to give all-ones.
pub const UNCLAIMED_PORT: u16 = 0x510;

/// Number of rounds that `exits` counts before it halts, as in `image/workloads/exits.c`.
pub const EXIT_ROUNDS: u64 = 300;

/// How often processes 101, 102 and 103 halt, or touch memory, in a round of `halts` or `touches`, as in
/// `image/workloads/events.c`.
pub const TURNS: [u64; 3] = [3, 2, 1];

/// Number of rounds that `halts` counts before it ends.
pub const HALT_ROUNDS: u64 = 100;

/// Number of rounds that `touches` counts before it ends.
pub const TOUCH_ROUNDS: u64 = 3;

/// The guest-physical address that `mmio` and `hostile` use: nothing may claim it, reads have to give all-ones.
pub const UNCLAIMED_MMIO: u64 = 0xe000_0000;

static BYTES: &PageAligned<[u8]> =
    &PageAligned(*include_bytes!(concat!(env!("OUT_DIR"), "/test.elf")));

/// The test guest's image: a static ELF64 executable, its physical addresses those it is linked at; page-aligned.
pub static ELF: &[u8] = &BYTES.0;

/// The same image with its symbols.
pub static IMAGE: Image = Image::new(&BYTES.0);

/// The image's bytes from a guest address on, to the end of its segment; `None` outside the image.
fn bytes_at(address: u64) -> Option<&'static [u8]> {
    let file = object::File::parse(ELF).ok()?;
    file.segments().find_map(|segment| {
        let offset = usize::try_from(address.checked_sub(segment.address())?).ok()?;
        segment.data().ok()?.get(offset..)
    })
}

/// The NUL-terminated text at a guest address, as it is in the image.
fn text_at(address: u64) -> Option<&'static str> {
    let text = bytes_at(address)?.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_the_workloads_that_are_named_here() {
        let table = IMAGE.symbol("workloads").unwrap();
        let size = usize::try_from(table.size).unwrap();
        let entries = bytes_at(table.address).unwrap()[..size].chunks_exact(16);
        let names: Vec<_> = entries
            .map(|entry| {
                let pointer = u64::from_le_bytes(*entry.first_chunk().unwrap());
                text_at(pointer).unwrap()
            })
            .collect();
        assert_eq!(names, WORKLOADS);
    }

    /// So the tests of the demo guest's image apply to this one.
    #[test]
    fn the_image_has_the_demo_guests_kernel() {
        for name in ["start", "kernel_main", "kvmprof_truth", "resume_user"] {
            let (own, demo) = (IMAGE.symbol(name), kvmprof_demo_guest::symbol(name));
            let size = demo.unwrap().size;
            assert_eq!(own.unwrap().size, size, "{name}");
        }
    }
}
