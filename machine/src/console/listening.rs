//! Detects when a guest is ready for input. Drivers empty the port when they set it up, so that earlier input
//! would be lost, a script piped into the console for instance. So input is held back until a
//! driver shows that it listens.

/// Enables the receive interrupt, in the interrupt enable register.
const RECEIVE_INTERRUPT: u8 = 1 << 0;
/// OUT2 of the modem control register: lets interrupts out of the port, on a PC.
const INTERRUPTS_OUT: u8 = 1 << 3;
/// After this many reads of the line status with nothing sent in between, the guest polls for input: it can't
/// be waiting for the transmitter, which is always ready here.
const IDLE_POLLS: u32 = 1000;

/// Whether a guest listens to its serial port.
///
/// The receive interrupt alone isn't enough, because Linux enables it for a moment to find out what
/// kind of port this is. It has to reach the interrupt line, or stay enabled while something is sent.
#[derive(Debug, Default)]
pub(super) struct ListenerState {
    listens: bool,
    receive_interrupt: bool,
    interrupts_out: bool,
    idle_polls: u32,
}

impl ListenerState {
    /// True once the guest has listened.
    pub fn listens(&self) -> bool {
        self.listens
    }

    /// Notes that the guest wrote the interrupt enable register.
    pub fn interrupts_enabled(&mut self, bits: u8) {
        self.receive_interrupt = bits & RECEIVE_INTERRUPT != 0;
        self.listens |= self.receive_interrupt && self.interrupts_out;
    }

    /// Notes that the guest wrote the modem control register.
    pub fn modem_controlled(&mut self, bits: u8) {
        self.interrupts_out = bits & INTERRUPTS_OUT != 0;
        self.listens |= self.receive_interrupt && self.interrupts_out;
    }

    /// Notes that the guest read the line status.
    pub fn polled(&mut self) {
        self.idle_polls = self.idle_polls.saturating_add(1);
        self.listens |= self.idle_polls >= IDLE_POLLS;
    }

    /// Notes that the guest sent a byte.
    pub fn sent(&mut self) {
        self.idle_polls = 0;
        self.listens |= self.receive_interrupt;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivered_receive_interrupt_shows_a_listener() {
        let mut listening = ListenerState::default();
        listening.modem_controlled(INTERRUPTS_OUT);
        listening.interrupts_enabled(0b10);
        assert!(!listening.listens());
        listening.interrupts_enabled(0b01);
        listening.interrupts_enabled(0);
        assert!(listening.listens());
    }

    #[test]
    fn probing_the_port_is_not_listening() {
        let mut listening = ListenerState::default();
        listening.interrupts_enabled(0x0f);
        listening.interrupts_enabled(0);
        listening.modem_controlled(INTERRUPTS_OUT);
        listening.sent();
        assert!(!listening.listens());
    }

    #[test]
    fn a_driver_without_modem_control_listens() {
        let mut listening = ListenerState::default();
        listening.interrupts_enabled(1);
        listening.sent();
        assert!(listening.listens());
    }

    #[test]
    fn a_guest_that_only_sends_does_not_listen() {
        let mut listening = ListenerState::default();
        for _ in 0..10 * IDLE_POLLS {
            listening.polled();
            listening.sent();
        }
        assert!(!listening.listens());
    }

    #[test]
    fn a_guest_that_polls_listens() {
        let mut listening = ListenerState::default();
        for _ in 0..IDLE_POLLS {
            listening.polled();
        }
        assert!(listening.listens());
    }
}
