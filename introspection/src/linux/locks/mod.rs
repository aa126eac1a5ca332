//! The lock that a vCPU waits for in a loop, and its owner.

mod owned;
mod words;

use std::ops::Range;

use kvmprof_recording::LockWait;
use owned::OwnedLoop;
use words::WordLoop;

use super::LinuxKnowledge;
use crate::image::Symbols;
use crate::image::types::Types;
use crate::{PhysicalMemory, Registers};

/// The kernel's code that waits in a loop for a lock.
#[derive(Debug)]
pub struct LockLoops {
    owned: Vec<OwnedLoop>,
    words: Vec<WordLoop>,
}

impl LockLoops {
    /// Finds the code.
    pub fn find(symbols: &Symbols, types: &Types<'_>) -> Self {
        Self {
            owned: OwnedLoop::find(symbols, types),
            words: WordLoop::find(symbols),
        }
    }
}

/// The link-time addresses of the function `name` and of its variants, whose names have a suffix from the compiler.
fn forms_of<'a>(symbols: &'a Symbols, name: &'a str) -> impl Iterator<Item = Range<u64>> + 'a {
    let is_form = move |found: &str| match found.strip_prefix(name) {
        Some(rest) => rest.is_empty() || rest.starts_with('.') && !rest.contains("cold"),
        None => false,
    };
    let forms = symbols
        .functions()
        .filter(move |(_, _, name)| is_form(name));
    forms.filter_map(|(address, ..)| Some(address..symbols.address_after(address)?))
}

impl LinuxKnowledge {
    /// The lock that a vCPU, stopped with `registers`, waits for in a loop. `None` if it doesn't wait, or that is unknown.
    ///
    /// Takes no lock and allocates nothing. Reads at most one word for each of the 15 registers, the two ids of the
    /// word's owner if that fits, and then the ids, the name and the CPU of one task.
    pub(super) fn lock_wait<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
    ) -> Option<LockWait> {
        let linked = registers.rip.wrapping_sub(self.slide()?);
        if let Some(waits) = (self.locks.owned.iter()).find(|it| it.code.contains(&linked)) {
            return self.owned_lock(waits, memory, registers);
        }
        let waits = (self.locks.words.iter()).find(|it| it.code.contains(&linked))?;
        self.lock_by_word(waits, memory, registers)
    }
}

/// The lock that CPU 0 of `guest` waits for with the registers that `change` has changed.
#[cfg(test)]
fn lock_wait(
    guest: &crate::test_guest::LinuxGuest,
    mut registers: Registers,
    change: impl Fn(&mut Registers),
) -> Option<LockWait> {
    change(&mut registers);
    let mut vcpu = guest.introspector(0);
    vcpu.identify(&guest.memory, &registers, false, false);
    vcpu.lock_wait(&guest.memory, &registers)
}
