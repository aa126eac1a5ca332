//! COM1: a 16550 whose output goes to a [`ConsoleOutput`], and whose input comes from the event
//! thread.

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use vm_superio::Trigger;
use vm_superio::serial::{Serial, SerialEvents};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::listening::ListenerState;
use super::output::ConsoleOutput;
use super::panic_watch::PanicWatch;
use super::room::{InputTarget, RoomForInput};
use crate::lock::lock;

// Registers of a 16550.
const DATA: u8 = 0;
const INTERRUPT_ENABLE: u8 = 1;
const INTERRUPT_IDENTIFICATION: u8 = 2;
const LINE_CONTROL: u8 = 3;
/// Turns loopback on and off.
const MODEM_CONTROL: u8 = 4;
const LINE_STATUS: u8 = 5;
/// Line control: the first two registers are the baud rate now.
const DIVISOR_LATCH: u8 = 1 << 7;
/// Interrupt enable: interrupts when there is input.
const ENABLE_RECEIVED_DATA: u8 = 1 << 0;
/// Line status: there is input.
const DATA_READY: u8 = 1 << 0;
/// Interrupt identification: no interrupt is pending.
const NO_INTERRUPT: u8 = 1 << 0;
/// Interrupt identification: there is input.
const RECEIVED_DATA: u8 = 1 << 2;

/// The interrupt line: an eventfd that KVM watches.
struct InterruptLine(EventFd);

impl Trigger for InterruptLine {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

impl SerialEvents for RoomForInput {
    fn buffer_read(&self) {}
    fn out_byte(&self) {}
    fn tx_lost_byte(&self) {}
    fn in_buffer_empty(&self) {
        self.announce();
    }
}

/// The port itself.
///
/// The received-data interrupt is this model's own. In vm-superio 0.8, every read of the data register and of
/// the interrupt identification clears that register's received-data bit, although more input waits; only
/// further input raises the interrupt again, and a full FIFO takes none. A driver that reads a part of the
/// input and waits for the next interrupt, as Linux's does after 256 characters, then waits forever. On a 16550
/// the condition holds until the FIFO is empty.
struct Port {
    serial: Serial<InterruptLine, RoomForInput, Vec<u8>>,
    listening: ListenerState,
    /// The guest has enabled interrupts for input.
    received_data_enabled: bool,
}

impl Port {
    fn new(line: InterruptLine, room: RoomForInput) -> Self {
        Self {
            serial: Serial::with_events(line, room, Vec::new()),
            listening: ListenerState::default(),
            received_data_enabled: false,
        }
    }

    fn read(&mut self, register: u8) -> u8 {
        if register == LINE_STATUS {
            self.listening.polled();
        }
        let is_data = register == DATA && !self.is_latched();
        let value = self.serial.read(register);
        if !self.received_data_pending() {
            return value;
        }
        if is_data {
            self.raise_received_data();
        }
        match register {
            INTERRUPT_IDENTIFICATION => (value & !NO_INTERRUPT) | RECEIVED_DATA,
            _ => value,
        }
    }

    fn is_latched(&mut self) -> bool {
        self.serial.read(LINE_CONTROL) & DIVISOR_LATCH != 0
    }

    /// True while the received-data interrupt is due.
    fn received_data_pending(&mut self) -> bool {
        self.received_data_enabled && self.serial.read(LINE_STATUS) & DATA_READY != 0
    }

    /// Raises the interrupt for the input that is left after a read. KVM takes it as an edge: while the guest
    /// handles the one before, any number of them is one more.
    fn raise_received_data(&self) {
        if let Err(error) = self.serial.interrupt_evt().trigger() {
            log::warn!("Serial port: cannot raise its interrupt: {error}");
        }
    }

    fn write(&mut self, register: u8, value: u8) {
        let latched = self.is_latched();
        match register {
            DATA if !latched => self.listening.sent(),
            INTERRUPT_ENABLE if !latched => {
                self.listening.interrupts_enabled(value);
                self.received_data_enabled = value & ENABLE_RECEIVED_DATA != 0;
            }
            MODEM_CONTROL => self.listening.modem_controlled(value),
            _ => {}
        }
        if let Err(error) = self.serial.write(register, value) {
            log::warn!("Serial port: {error}");
        }
    }

    /// Takes input, if there is room for it, the guest listens, and the port isn't looped back.
    fn enqueue(&mut self, input: &[u8]) -> usize {
        if !self.listening.listens() {
            return 0;
        }
        // A full FIFO is an error to the model.
        self.serial.enqueue_raw_bytes(input).unwrap_or(0)
    }
}

/// The output of the port.
struct PortOutput {
    output: ConsoleOutput,
    panic_watch: PanicWatch,
}

/// A serial port, usable from any thread.
///
/// Two locks, never held together: a vCPU that waits for a stalled reader holds only the output,
/// so that the event thread can still touch the port.
pub struct SerialConsole {
    port: Mutex<Port>,
    out: Mutex<PortOutput>,
    closing: Arc<AtomicBool>,
    interrupt: EventFd,
    room: RoomForInput,
}

impl SerialConsole {
    /// A serial port that writes to `output`.
    ///
    /// # Errors
    /// If there are no more file descriptors.
    pub fn new(output: ConsoleOutput) -> io::Result<Self> {
        let interrupt = EventFd::new(EFD_NONBLOCK)?;
        let room = RoomForInput::new()?;
        let line = InterruptLine(interrupt.try_clone()?);
        Ok(Self {
            port: Mutex::new(Port::new(line, room.clone())),
            closing: output.closing(),
            out: Mutex::new(PortOutput {
                output,
                panic_watch: PanicWatch::default(),
            }),
            interrupt,
            room,
        })
    }

    /// Resets the port to its state after power-on. Its output stays connected.
    pub fn reset(&self) {
        let Ok(line) = self.interrupt.try_clone() else {
            log::warn!("Serial port: not reset, for there are no more file descriptors");
            return;
        };
        *self.port() = Port::new(InterruptLine(line), self.room.clone());
    }

    /// Becomes readable with every interrupt of the port: to be registered with KVM.
    #[must_use]
    pub fn interrupt(&self) -> &EventFd {
        &self.interrupt
    }

    /// Reads a register (0 to 7), once for each byte of `data`.
    pub fn read(&self, register: u8, data: &mut [u8]) {
        let mut port = self.port();
        let listened = port.listening.listens();
        for byte in data {
            *byte = port.read(register);
        }
        if port.listening.listens() != listened {
            self.room.announce();
        }
    }

    /// Writes a register (0 to 7), once for each byte of `data`. Blocks while the console's
    /// reader is stalled.
    pub fn write(&self, register: u8, data: &[u8]) {
        let output = {
            let mut port = self.port();
            for byte in data {
                port.write(register, *byte);
            }
            // This write may have ended the reason why input waits.
            if matches!(register, DATA | INTERRUPT_ENABLE | MODEM_CONTROL) {
                self.room.announce();
            }
            std::mem::take(port.serial.writer_mut())
        };
        if !output.is_empty() {
            let mut out = lock(&self.out);
            let PortOutput {
                output: target,
                panic_watch,
            } = &mut *out;
            panic_watch.watch(&output);
            target.write(&output);
        }
    }

    /// The guest kernel's panic message, if there was one on this console.
    #[must_use]
    pub fn panic_message(&self) -> Option<String> {
        lock(&self.out).panic_watch.message().map(str::to_owned)
    }

    /// Throws output away from now on, so that no vCPU waits for a stalled reader any more.
    pub fn close_output(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    fn port(&self) -> MutexGuard<'_, Port> {
        lock(&self.port)
    }
}

impl InputTarget for SerialConsole {
    fn input_room(&self) -> usize {
        self.port().serial.fifo_capacity()
    }

    fn enqueue(&self, input: &[u8], more: bool) -> usize {
        let mut port = self.port();
        let taken = port.enqueue(input);
        if taken < input.len() || more {
            self.room.want();
        }
        taken
    }

    fn room_event(&self) -> &EventFd {
        self.room.event()
    }
}

impl Deref for InterruptLine {
    type Target = EventFd;

    fn deref(&self) -> &EventFd {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPTS_OUT: u8 = 1 << 3;
    const LOOPBACK: u8 = 1 << 4;
    const FIFO: usize = 64;

    /// A console whose guest listens.
    fn console() -> SerialConsole {
        let console = SerialConsole::new(ConsoleOutput::discard()).unwrap();
        console.write(MODEM_CONTROL, &[INTERRUPTS_OUT]);
        console.write(INTERRUPT_ENABLE, &[1]);
        console
    }

    fn read(console: &SerialConsole, register: u8) -> u8 {
        let mut data = [0];
        console.read(register, &mut data);
        data[0]
    }

    /// Why the port interrupts.
    fn cause(console: &SerialConsole) -> u8 {
        read(console, INTERRUPT_IDENTIFICATION) & 0x0f
    }

    #[test]
    fn the_guest_reads_what_was_typed_and_gets_an_interrupt() {
        let console = console();
        assert_eq!(console.enqueue(b"hi", false), 2);
        assert_eq!(console.interrupt().read().unwrap(), 1);
        assert_eq!(read(&console, LINE_STATUS) & 1, 1);
        assert_eq!(read(&console, DATA), b'h');
        assert_eq!(read(&console, DATA), b'i');
        assert_eq!(read(&console, LINE_STATUS) & 1, 0);
    }

    #[test]
    fn a_full_fifo_takes_no_more_and_announces_room_once() {
        let console = console();
        console.enqueue(b"a", false);
        read(&console, DATA);
        assert!(console.room_event().read().is_err(), "it wasn't full");
        assert_eq!(console.enqueue(&[b'a'; FIFO + 3], false), FIFO);
        assert_eq!(console.input_room(), 0);
        assert_eq!(console.enqueue(b"b", false), 0);
        let mut all = [0; FIFO];
        console.read(DATA, &mut all);
        assert_eq!(console.room_event().read().unwrap(), 1);
        assert_eq!(console.input_room(), FIFO);
    }

    /// The device's user when there is room: passes it as much of the input as it takes.
    fn fill(console: &SerialConsole, input: &mut &[u8]) {
        let taken = console.enqueue(input, false);
        *input = &input[taken..];
    }

    /// Reads at most 256 characters at an interrupt, as Linux's driver does (`serial8250_rx_chars`),
    /// then waits for the next one. `identifies` says whether it looks for further interrupts first.
    fn receive(console: &SerialConsole, mut input: &[u8], identifies: bool) -> Vec<u8> {
        let mut received = Vec::new();
        fill(console, &mut input);
        while console.interrupt().read().is_ok() {
            loop {
                if identifies && read(console, INTERRUPT_IDENTIFICATION) & NO_INTERRUPT != 0 {
                    break;
                }
                let mut at_once = 256;
                while at_once > 0 && read(console, LINE_STATUS) & DATA_READY != 0 {
                    received.push(read(console, DATA));
                    at_once -= 1;
                    if console.room_event().read().is_ok() {
                        fill(console, &mut input);
                    }
                }
                if !identifies {
                    break;
                }
            }
        }
        received
    }

    #[test]
    fn a_driver_that_reads_256_characters_at_an_interrupt_gets_all_input() {
        let input: Vec<u8> = (0..250).cycle().take(2000).collect();
        for identifies in [false, true] {
            let received = receive(&console(), &input, identifies);
            assert!(received == input, "{} of 2000 bytes", received.len());
        }
    }

    #[test]
    fn interrupts_end_with_the_input() {
        let console = console();
        console.enqueue(b"ab", false);
        assert_eq!([(); 2].map(|()| cause(&console)), [RECEIVED_DATA; 2]);
        assert_eq!(read(&console, DATA), b'a');
        assert!(console.interrupt().read().is_ok());
        assert_eq!(read(&console, DATA), b'b');
        assert_eq!(cause(&console), NO_INTERRUPT);
        assert!(console.interrupt().read().is_err());
    }

    #[test]
    fn a_guest_that_polls_gets_no_interrupts() {
        let console = console();
        console.write(INTERRUPT_ENABLE, &[0]);
        console.enqueue(b"abc", false);
        assert_eq!(read(&console, DATA), b'a');
        assert_eq!(cause(&console), NO_INTERRUPT);
        // The baud rate is no input.
        console.write(LINE_CONTROL, &[DIVISOR_LATCH]);
        console.write(INTERRUPT_ENABLE, &[1]);
        console.write(LINE_CONTROL, &[0]);
        assert_eq!(read(&console, DATA), b'b');
        assert!(console.interrupt().read().is_err());
    }

    #[test]
    fn input_waits_for_the_end_of_loopback() {
        let console = console();
        console.write(MODEM_CONTROL, &[LOOPBACK]);
        assert_eq!(console.enqueue(b"a", false), 0);
        console.write(MODEM_CONTROL, &[0]);
        assert_eq!(console.room_event().read().unwrap(), 1);
        assert_eq!(console.enqueue(b"a", false), 1);
    }

    #[test]
    fn input_waits_until_the_guest_listens() {
        let console = SerialConsole::new(ConsoleOutput::discard()).unwrap();
        assert_eq!(console.enqueue(b"a", false), 0);
        console.write(MODEM_CONTROL, &[INTERRUPTS_OUT]);
        console.write(LINE_CONTROL, &[DIVISOR_LATCH]);
        console.write(INTERRUPT_ENABLE, &[1]);
        assert_eq!(console.enqueue(b"a", false), 0);
        console.write(LINE_CONTROL, &[0]);
        console.write(INTERRUPT_ENABLE, &[1]);
        assert!(console.room_event().read().is_ok());
        assert_eq!(console.enqueue(b"a", false), 1);
    }

    #[test]
    fn output_reaches_its_file_and_panics_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let console = SerialConsole::new(ConsoleOutput::file(&path).unwrap()).unwrap();
        let words = "Kernel panic - not syncing: test";
        console.write(DATA, format!("{words}\n").as_bytes());
        let written = std::fs::read_to_string(path).unwrap();
        assert_eq!(written, format!("{words}\n"));
        assert_eq!(console.panic_message().unwrap(), words);
    }
}
