//! The guest's power button, between those who press it and the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::machine::Machine;
use kvmprof_introspection::GuestKnowledge;

/// The power button of a machine. Clients and signals press it.
pub struct PowerButton {
    machine: Arc<Machine>,
    knowledge: Arc<GuestKnowledge>,
    is_paused: AtomicBool,
    was_pressed: AtomicBool,
}

impl PowerButton {
    /// That of `machine`, of whose guest `knowledge` is known.
    pub fn new(machine: Arc<Machine>, knowledge: Arc<GuestKnowledge>) -> Self {
        Self {
            machine,
            knowledge,
            is_paused: AtomicBool::new(false),
            was_pressed: AtomicBool::new(false),
        }
    }

    /// Presses it. False if the guest's kernel has no driver that would hear of it, or can't run one: nothing happens then.
    pub fn press(&self) -> bool {
        let is_heard = !self.is_paused.load(Ordering::Relaxed) && self.is_heard();
        if is_heard {
            self.machine.press_power_button();
        }
        is_heard
    }

    /// The same for a request to end; false, too, if there was one before since the guest has started.
    pub fn press_once(&self) -> bool {
        let is_pressed = !self.was_pressed.load(Ordering::Relaxed) && self.press();
        if is_pressed {
            self.was_pressed.store(true, Ordering::Relaxed);
        }
        is_pressed
    }

    /// Whether the guest's kernel would hear of it: it has drivers for the device whose interrupt it is, and for the button.
    pub fn is_heard(&self) -> bool {
        let has_driver = || self.knowledge.hears_power_button(&self.machine.memory);
        // Of other guests than Linux the interrupt is all that can be seen.
        self.machine.hears_power_button() && has_driver().unwrap_or(true)
    }

    /// The guest is paused, or goes on.
    pub fn note_pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// The guest has started anew: nobody has asked that one to end.
    pub fn note_restart(&self) {
        self.was_pressed.store(false, Ordering::Relaxed);
    }
}
