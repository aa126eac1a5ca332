//! The guest's power button, which clients and signals press.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvmprof_introspection::GuestKnowledge;
use kvmprof_machine::{GuestMemory, Machine};

/// The power button of a machine. Clients and signals press it.
pub struct PowerButton {
    machine: Arc<Machine>,
    knowledge: Arc<GuestKnowledge>,
    is_paused: AtomicBool,
    was_pressed: AtomicBool,
}

impl PowerButton {
    /// The power button of `machine`, whose guest `knowledge` describes.
    pub fn new(machine: Arc<Machine>, knowledge: Arc<GuestKnowledge>) -> Self {
        Self {
            machine,
            knowledge,
            is_paused: AtomicBool::new(false),
            was_pressed: AtomicBool::new(false),
        }
    }

    /// Presses the button. False, without any effect, if the guest's kernel has no driver for it, or is paused.
    pub fn press(&self) -> bool {
        let is_heard = !self.is_paused.load(Ordering::Relaxed) && self.is_heard();
        if is_heard {
            self.machine.press_power_button();
        }
        is_heard
    }

    /// Presses the button for a request to end. False, too, if such a request has pressed it before since the guest's start.
    pub fn press_once(&self) -> bool {
        let is_pressed = !self.was_pressed.load(Ordering::Relaxed) && self.press();
        if is_pressed {
            self.was_pressed.store(true, Ordering::Relaxed);
        }
        is_pressed
    }

    /// Whether the guest's kernel listens to the button: it has drivers for the device that raises the interrupt, and for the button.
    pub fn is_heard(&self) -> bool {
        self.machine.hears_power_button() && has_driver(&self.knowledge, &self.machine.memory)
    }

    /// Notes that the guest is paused, or continues.
    pub fn note_pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Notes that the guest has restarted. No request to end has been made since.
    pub fn note_restart(&self) {
        self.was_pressed.store(false, Ordering::Relaxed);
    }
}

/// Whether the guest's kernel may have a driver for the button.
fn has_driver(knowledge: &GuestKnowledge, memory: &GuestMemory) -> bool {
    match knowledge.linux() {
        Some(linux) => linux.hears_power_button(memory),
        // For other guests than Linux, only the use of the interrupt can be seen.
        None => !knowledge.is_pending(),
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;

    #[test]
    fn a_guest_may_hear_the_button_unless_it_can_still_be_linux() {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        assert!(has_driver(&GuestKnowledge::unknown(), &memory));
        assert!(!has_driver(&GuestKnowledge::pending(), &memory));
    }
}
