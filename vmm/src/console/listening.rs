//! When a guest is ready for input. Drivers empty the port when they set it up; what came before
//! would be lost, a script piped into the console for instance. So input is held back until a
//! driver shows that it listens.

/// Enables the receive interrupt, in the interrupt enable register.
const RECEIVE_INTERRUPT: u8 = 1 << 0;
/// So many looks at the line status with nothing sent in between are no waiting for the
/// transmitter, which is always ready here: the guest polls for input.
const IDLE_POLLS: u32 = 1000;

/// Whether a guest listens to its serial port.
#[derive(Debug, Default)]
pub(super) struct Listening {
    listens: bool,
    idle_polls: u32,
}

impl Listening {
    /// True from when the guest first listened on.
    pub fn listens(&self) -> bool {
        self.listens
    }

    /// The guest wrote the interrupt enable register.
    pub fn interrupts_enabled(&mut self, bits: u8) {
        self.listens |= bits & RECEIVE_INTERRUPT != 0;
    }

    /// The guest read the line status.
    pub fn polled(&mut self) {
        self.idle_polls = self.idle_polls.saturating_add(1);
        self.listens |= self.idle_polls >= IDLE_POLLS;
    }

    /// The guest sent something.
    pub fn sent(&mut self) {
        self.idle_polls = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receive_interrupt_shows_a_listener_for_good() {
        let mut listening = Listening::default();
        listening.interrupts_enabled(0b10);
        assert!(!listening.listens());
        listening.interrupts_enabled(0b01);
        listening.interrupts_enabled(0);
        assert!(listening.listens());
    }

    #[test]
    fn a_guest_that_only_sends_does_not_listen() {
        let mut listening = Listening::default();
        for _ in 0..10 * IDLE_POLLS {
            listening.polled();
            listening.sent();
        }
        assert!(!listening.listens());
    }

    #[test]
    fn a_guest_that_polls_listens() {
        let mut listening = Listening::default();
        for _ in 0..IDLE_POLLS {
            listening.polled();
        }
        assert!(listening.listens());
    }
}
