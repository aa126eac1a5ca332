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
    fn a_guest_listens_that_gets_receive_interrupts_or_polls() {
        type Steps = fn(&mut ListenerState);
        let cases: [(&str, bool, Steps); 6] = [
            ("another interrupt", false, |it| {
                it.modem_controlled(INTERRUPTS_OUT);
                it.interrupts_enabled(0b10);
            }),
            ("a delivered receive interrupt", true, |it| {
                it.modem_controlled(INTERRUPTS_OUT);
                it.interrupts_enabled(0b10);
                it.interrupts_enabled(0b01);
                it.interrupts_enabled(0);
            }),
            ("a probe of the port", false, |it| {
                it.interrupts_enabled(0x0f);
                it.interrupts_enabled(0);
                it.modem_controlled(INTERRUPTS_OUT);
                it.sent();
            }),
            ("a driver without modem control", true, |it| {
                it.interrupts_enabled(1);
                it.sent();
            }),
            ("a guest that only sends", false, |it| {
                for _ in 0..10 * IDLE_POLLS {
                    it.polled();
                    it.sent();
                }
            }),
            ("a guest that polls", true, |it| {
                (0..IDLE_POLLS).for_each(|_| it.polled());
            }),
        ];
        for (what, listens, steps) in cases {
            let mut state = ListenerState::default();
            steps(&mut state);
            assert_eq!(state.listens(), listens, "{what}");
        }
    }
}
