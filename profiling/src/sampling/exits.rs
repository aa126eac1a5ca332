//! Exits that the guest causes: their events, and the instructions that have caused them.

use std::sync::atomic::{AtomicU64, Ordering};

use kvm_ioctls::VcpuExit;
use kvmprof_introspection::{AddressSpace, PhysicalMemory, Registers};
use kvmprof_recording::{EventKind, SamplingEvent};

use crate::clock::Jitter;

/// Bytes of the longest instruction (SDM volume 2, 2.3.11).
const MAX_INSTRUCTION: u64 = 15;

/// An exit to kvmprof that an instruction of the guest has caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestExit {
    /// IN, INS.
    PortRead,
    /// OUT, OUTS.
    PortWrite,
    /// A read of an address without memory.
    MmioRead,
    /// A write to an address without memory.
    MmioWrite,
}

impl GuestExit {
    /// The kind of `exit`; `None` for an exit that has another cause: a kick, or a failure.
    pub fn of(exit: &VcpuExit<'_>) -> Option<Self> {
        match exit {
            VcpuExit::IoIn(..) => Some(Self::PortRead),
            VcpuExit::IoOut(..) => Some(Self::PortWrite),
            VcpuExit::MmioRead(..) => Some(Self::MmioRead),
            VcpuExit::MmioWrite(..) => Some(Self::MmioWrite),
            _ => None,
        }
    }

    fn is_of(self, kind: EventKind) -> bool {
        match kind {
            EventKind::Exits => true,
            EventKind::Port => matches!(self, Self::PortRead | Self::PortWrite),
            EventKind::PortRead => self == Self::PortRead,
            EventKind::PortWrite => self == Self::PortWrite,
            EventKind::Mmio => matches!(self, Self::MmioRead | Self::MmioWrite),
            EventKind::MmioRead => self == Self::MmioRead,
            EventKind::MmioWrite => self == Self::MmioWrite,
            // The host's kernel counts the other events (`KernelEvent`).
            _ => false,
        }
    }

    /// The address of the first or the last byte of the instruction that has caused this exit. `registers` are those before
    /// KVM_RUN is entered again.
    ///
    /// Whether the program counter has already advanced depends on the instruction (Linux,
    /// `x86_emulate_instruction` and `kvm_fast_pio` in `arch/x86/kvm/x86.c`): a read waits for its value and stays where
    /// it is; an emulated write has been completed; OUT by VMX and SVM without emulation stays, and is completed later.
    /// A repeated string instruction stays until its last round.
    pub fn instruction<M: PhysicalMemory>(self, registers: &Registers, memory: &M) -> u64 {
        let stays = match self {
            Self::PortRead | Self::MmioRead => true,
            Self::PortWrite => next_opcode(registers, memory).is_some_and(Opcode::is_out),
            Self::MmioWrite => {
                next_opcode(registers, memory).is_some_and(Opcode::is_repeated_store)
            }
        };
        registers.rip.wrapping_sub(u64::from(!stays))
    }
}

/// An instruction's opcode of one byte, and whether it is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opcode {
    byte: u8,
    is_repeated: bool,
}

impl Opcode {
    /// OUT and OUTS (SDM volume 2, chapter 4).
    fn is_out(self) -> bool {
        matches!(self.byte, 0xe6 | 0xe7 | 0xee | 0xef | 0x6e | 0x6f)
    }

    /// REP MOVS, REP STOS and REP INS.
    fn is_repeated_store(self) -> bool {
        self.is_repeated && matches!(self.byte, 0xa4 | 0xa5 | 0xaa | 0xab | 0x6c | 0x6d)
    }
}

/// The opcode at the program counter; `None` if it can't be read.
fn next_opcode<M: PhysicalMemory>(registers: &Registers, memory: &M) -> Option<Opcode> {
    let code = AddressSpace::new(memory, registers);
    let mut is_repeated = false;
    for offset in 0..MAX_INSTRUCTION {
        let mut byte = [0];
        code.read(registers.rip.wrapping_add(offset), &mut byte)?;
        match byte {
            [0xf2 | 0xf3] => is_repeated = true,
            [0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0] => {}
            // REX (SDM volume 2, 2.2.1).
            [0x40..=0x4f] if registers.is_64_bit_code => {}
            [byte] => return Some(Opcode { byte, is_repeated }),
        }
    }
    None
}

/// The number of returns of KVM_RUN, by cause. Only the vCPU's thread counts them.
#[derive(Debug, Default)]
pub struct ExitTotals {
    caused: [AtomicU64; 4],
    interrupted: AtomicU64,
}

impl ExitTotals {
    /// Counts an exit that the guest has caused.
    pub fn count(&self, exit: GuestExit) {
        increment(&self.caused[exit as usize]);
    }

    /// Counts an exit that kvmprof has caused, for a tick or a request.
    pub fn count_interrupted(&self) {
        increment(&self.interrupted);
    }

    /// The number of exits of this kind that the guest has caused.
    pub fn of(&self, exit: GuestExit) -> u64 {
        self.caused[exit as usize].load(Ordering::Relaxed)
    }

    /// The number of exits that kvmprof has caused.
    pub fn interrupted(&self) -> u64 {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// No other thread writes, so this needs no locked instruction.
fn increment(total: &AtomicU64) {
    total.store(total.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Counts exits of a vCPU, and chooses those that make a tick: one of each `period` events, at random. A guest repeats its
/// work: with a fixed distance, some of its exits would make all ticks, and others none.
#[derive(Debug)]
pub struct ExitCounter {
    event: Option<SamplingEvent>,
    // Within the present period: events so far, and the one that makes the tick, from 1.
    counted: u64,
    chosen: u64,
    jitter: Jitter,
}

impl ExitCounter {
    /// A counter that counts nothing at first. `seed` should differ between vCPUs.
    pub fn new(seed: u64) -> Self {
        Self {
            event: None,
            counted: 0,
            chosen: 0,
            jitter: Jitter::new(seed),
        }
    }

    /// The event that makes ticks, including one that the host's kernel counts.
    pub fn event(&self) -> Option<SamplingEvent> {
        self.event
    }

    /// Counts `event` from now on, or nothing.
    pub fn restart(&mut self, event: Option<SamplingEvent>) {
        self.event = event;
        if let Some(event) = event {
            self.begin_period(event);
        }
    }

    /// Counts `exit`, if it belongs to the counted event. True if it makes a tick.
    pub fn count(&mut self, exit: GuestExit) -> bool {
        let Some(event) = self.event.filter(|event| exit.is_of(event.kind())) else {
            return false;
        };
        self.counted += 1;
        let is_tick = self.counted == self.chosen;
        if self.counted >= event.period() {
            self.begin_period(event);
        }
        is_tick
    }

    fn begin_period(&mut self, event: SamplingEvent) {
        self.counted = 0;
        self.chosen = self.jitter.below(event.period()) + 1;
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use kvmprof_machine::GuestMemory;

    use super::*;

    const ALL: [GuestExit; 4] = [
        GuestExit::PortRead,
        GuestExit::PortWrite,
        GuestExit::MmioRead,
        GuestExit::MmioWrite,
    ];

    #[test]
    fn one_exit_of_each_period_makes_a_tick() {
        for (kind, of) in [
            (EventKind::Exits, [true, true, true, true]),
            (EventKind::Port, [true, true, false, false]),
            (EventKind::PortRead, [true, false, false, false]),
            (EventKind::PortWrite, [false, true, false, false]),
            (EventKind::Mmio, [false, false, true, true]),
            (EventKind::MmioRead, [false, false, true, false]),
            (EventKind::MmioWrite, [false, false, false, true]),
        ] {
            for period in [1, 2, 7] {
                let mut counter = ExitCounter::new(period);
                counter.restart(SamplingEvent::new(kind, period));
                let (mut counted, mut ticks) = (0, 0);
                for round in 0..100 {
                    let exit = ALL[round % 4];
                    counted += u64::from(of[round % 4]);
                    ticks += u64::from(counter.count(exit));
                    // The tick of an incomplete period may have occurred already.
                    let whole = counted / period..=counted.div_ceil(period);
                    assert!(
                        whole.contains(&ticks),
                        "{kind:?} {period}: {ticks} of {counted}"
                    );
                }
            }
        }
    }

    #[test]
    fn without_an_event_nothing_is_counted_and_a_new_one_restarts() {
        let mut counter = ExitCounter::new(1);
        assert!(!ALL.into_iter().any(|exit| counter.count(exit)));
        for _ in 0..100 {
            counter.restart(SamplingEvent::new(EventKind::Exits, 9));
            let _ = counter.count(GuestExit::PortRead);
            counter.restart(SamplingEvent::new(EventKind::Exits, 2));
            let [first, second] = [(); 2].map(|()| counter.count(GuestExit::PortRead));
            assert_ne!(first, second);
            counter.restart(SamplingEvent::new(EventKind::Exits, 1));
            assert!(counter.count(GuestExit::PortRead) && counter.count(GuestExit::MmioRead));
        }
        counter.restart(None);
        assert!(!counter.count(GuestExit::PortRead) && counter.event().is_none());
    }

    /// The exits of this guest come in the order of their kinds, in step with the period.
    #[test]
    fn sampling_is_independent_of_an_exits_position() {
        let mut counter = ExitCounter::new(3);
        counter.restart(SamplingEvent::new(EventKind::Exits, 8));
        let mut ticks = [0_u32; 4];
        for round in 0..80_000 {
            ticks[round % 4] += u32::from(counter.count(ALL[round % 4]));
        }
        assert_eq!(ticks.iter().sum::<u32>(), 10_000);
        assert!(
            ticks.iter().all(|count| (2300..2700).contains(count)),
            "{ticks:?}"
        );
    }

    #[test]
    fn the_instruction_is_found_wherever_the_program_counter_stands() {
        const RIP: u64 = 0x1000;
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 0x2000)]).unwrap();
        let registers = Registers {
            rip: RIP,
            is_64_bit_code: true,
            ..Registers::default()
        };
        let at = |exit: GuestExit, code: &[u8]| {
            memory.write_slice(&[0x90; 16], GuestAddress(RIP)).unwrap();
            memory.write_slice(code, GuestAddress(RIP)).unwrap();
            exit.instruction(&registers, &memory)
        };
        use GuestExit::{MmioRead, MmioWrite, PortRead, PortWrite};
        for (exit, code, expected) in [
            // in, mov
            (PortRead, &[0xec][..], RIP),
            (MmioRead, &[0x8b, 0x07], RIP),
            // out %al, %dx; out %ax, %dx; rex outsl; rep outsb
            (PortWrite, &[0xee], RIP),
            (PortWrite, &[0x66, 0xef], RIP),
            (PortWrite, &[0x48, 0x6f], RIP),
            (PortWrite, &[0xf3, 0x6e], RIP),
            // It has advanced, to a nop, an inc.
            (PortWrite, &[0x90], RIP - 1),
            (PortWrite, &[0x48, 0xff, 0xc0], RIP - 1),
            // mov; stos without rep; then rep stosq, and rep movsb with a segment.
            (MmioWrite, &[0x89, 0x07], RIP - 1),
            (MmioWrite, &[0xaa], RIP - 1),
            (MmioWrite, &[0xf3, 0x48, 0xab], RIP),
            (MmioWrite, &[0x65, 0xf3, 0xa4], RIP),
            // Endless prefixes.
            (PortWrite, &[0x66; 16], RIP - 1),
        ] {
            assert_eq!(at(exit, code), expected, "{code:x?}");
        }
        // Unreadable code.
        let elsewhere = Registers {
            rip: u64::MAX,
            ..registers
        };
        let exit = GuestExit::PortWrite;
        assert_eq!(exit.instruction(&elsewhere, &memory), u64::MAX - 1);
    }
}
