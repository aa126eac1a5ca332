//! Names of the firmware's code, before a guest's kernel runs: UEFI's images, SeaBIOS, and option ROMs.
//!
//! Firmware has its memory mapped one to one (UEFI specification 2.10, section 2.3.4), or no paging. At a tick a vCPU only notes where
//! its code was, and 8 bytes of it. A thread that may take its time names it later, if the code is still the same. Nothing is guessed: a
//! name is that of an image whose header says that it runs here and covers the code.

mod log;
mod pe;
mod rom;
mod volume;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use kvmprof_paging::AddressSpace;
use vm_memory::GuestAddress;

use super::{NewFunctions, PhysicalMemory, Registers};
use log::FirmwareLog;
use volume::Volumes;

/// The places that are noted between two rounds of naming.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 7;
/// An odd number whose multiples have mixed upper bits (Knuth, The Art of Computer Programming, section 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of code that are noted.
const CODE: usize = 8;
/// A page, in which code is noted once.
const PAGE: u64 = 4096;

/// Code that has a name: its addresses, the end excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedCode {
    begin: u64,
    end: u64,
    name: String,
}

/// What is known of the firmware of a guest.
#[derive(Debug)]
pub struct Firmware {
    slots: Box<[Slot]>,
    known: Mutex<FirmwareState>,
}

#[derive(Debug, Default)]
struct FirmwareState {
    volumes: Volumes,
    log: FirmwareLog,
}

/// Code that a vCPU was in. It is read only if `is_set`, and written only if not.
#[derive(Debug, Default)]
struct Slot {
    /// 0 while the slot is free, 1 while it is written, and 2 once it can be read.
    state: AtomicU64,
    address: AtomicU64,
    code: AtomicU64,
    time: AtomicU64,
}

/// One place that was noted.
#[derive(Clone, Copy, Debug)]
struct Noted {
    address: u64,
    code: [u8; CODE],
    /// When a vCPU was there, in ns of CLOCK_MONOTONIC.
    time: u64,
}

impl Default for Firmware {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            known: Mutex::default(),
        }
    }
}

impl Firmware {
    /// Notes the code of a vCPU that is stopped at `time`, in ns of CLOCK_MONOTONIC, if that may be firmware's. Takes no lock, allocates nothing, and makes two reads at most
    /// besides the walk of the page tables.
    pub fn note<M: PhysicalMemory>(&self, memory: &M, registers: &Registers, time: u64) {
        let address = registers.rip;
        // Kernels in the upper half of all addresses, and programs, aren't firmware.
        if registers.cpl != 0 || address >> 32 != 0 {
            return;
        }
        // Images begin at multiples of more than a page.
        let spread = (address / PAGE).wrapping_mul(SPREAD) >> (u64::BITS - SLOT_BITS);
        let slot = usize::try_from(spread).ok();
        let Some(slot) = slot.and_then(|index| self.slots.get(index)) else {
            return;
        };
        if slot.state.load(Ordering::Relaxed) != 0 {
            return;
        }
        let physical = AddressSpace::new(memory, registers).translate(address);
        if physical != Some(GuestAddress(address)) {
            return;
        }
        let Some(code) = memory.read_array::<CODE>(GuestAddress(address)) else {
            return;
        };
        let claimed = (slot.state).compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        if claimed.is_ok() {
            slot.address.store(address, Ordering::Relaxed);
            slot.code.store(u64::from_le_bytes(code), Ordering::Relaxed);
            slot.time.store(time, Ordering::Relaxed);
            slot.state.store(2, Ordering::Release);
        }
    }

    /// Names the code that was noted, as far as it can be proven. Takes up to some 10 ms.
    pub fn name<M: PhysicalMemory>(&self, memory: &M) {
        let mut noted: Vec<Noted> = self.slots.iter().filter_map(Slot::take).collect();
        noted.sort_by_key(|noted| noted.time);
        if noted.is_empty() {
            return;
        }
        let mut known = self.known();
        let FirmwareState { volumes, log } = &mut *known;
        for noted in noted {
            let now = memory.read_array(GuestAddress(noted.address));
            let is_same = now == Some(noted.code);
            let found = is_same.then(|| find(memory, &noted, volumes)).flatten();
            log.add(&noted, found);
        }
    }

    /// The firmware has ended by `time`: none of its code has a name from then on.
    pub fn end(&self, time: u64) {
        self.known().log.end(time);
    }

    /// The names after the first `known` bytes of them, in the form in which recordings have functions.
    pub fn functions_after(&self, known: u64) -> Option<NewFunctions> {
        self.known().log.after(known)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, FirmwareState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn take(&self) -> Option<Noted> {
        (self.state.load(Ordering::Acquire) == 2).then_some(())?;
        let noted = Noted {
            address: self.address.load(Ordering::Relaxed),
            code: self.code.load(Ordering::Relaxed).to_le_bytes(),
            time: self.time.load(Ordering::Relaxed),
        };
        self.state.store(0, Ordering::Release);
        Some(noted)
    }
}

/// The code around a place, with its name.
fn find<M: PhysicalMemory>(memory: &M, noted: &Noted, volumes: &mut Volumes) -> Option<NamedCode> {
    let address = noted.address;
    if let Some(rom) = rom::find(memory, address) {
        return Some(rom);
    }
    match pe::find(memory, address) {
        Some(image) => {
            let name = image
                .debug_name(memory)
                .or_else(|| volumes.name_of(memory, &image, address))
                .unwrap_or_else(|| "pe_image".to_owned());
            Some(NamedCode {
                begin: image.base,
                end: image.base + u64::from(image.size),
                name,
            })
        }
        None => volumes.executed_in_place(memory, address),
    }
}

/// A name with no other characters than those of one word.
fn word(name: &str) -> Option<String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-.+".contains(letter);
    let is_word = !name.is_empty() && name.len() <= 64 && name.chars().all(is_plain);
    is_word.then(|| name.to_owned())
}

/// `N` bytes at a physical address.
fn bytes<const N: usize, M: PhysicalMemory>(memory: &M, address: u64) -> Option<[u8; N]> {
    memory.read_array(GuestAddress(address))
}

#[cfg(test)]
mod tests;
