//! The programs that count for how long the host's interrupts and softirqs have the processor of a vCPU's thread. They run at tracepoints of the host's kernel, while
//! the thread is the current one.
//!
//! An interrupt may come within a softirq, whose time is without that of the interrupt. Those that come while the same processor runs another program of eBPF pass no
//! program.

use kvmprof_recording::exits::InterruptKind;

use super::program::{Counter, DURATION, ENTRY, KEY, Plan, STORE_32, THREAD};
use super::record::{COUNT, INTERRUPT, INTERRUPTED, LOST_INTERRUPTS, SOFTIRQ, TOTAL};
use super::{ExitCounter, ExitsError};
use crate::kernel_memory::bpf::Instruction;
use crate::kernel_memory::program::{LOAD_64, MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64};
use crate::sampling::assembly::{
    ADD_REGISTER, HELPER_KTIME_GET_NS, JUMP_IF_NOT_BELOW, JUMP_IF_ZERO, STACK, STORE_IMMEDIATE_64,
    SUBTRACT_REGISTER,
};
use crate::tracepoint::{Member, Tracepoint, TracepointError};

/// The tracepoints where something begins and ends, and the member that numbers it.
struct Interrupt {
    kind: InterruptKind,
    group: &'static str,
    begin: &'static str,
    end: &'static str,
    number: Option<&'static str>,
}

/// The tracepoints (`include/trace/events/irq.h`, `arch/x86/include/asm/trace/irq_vectors.h`).
const INTERRUPTS: [Interrupt; 6] = [
    Interrupt {
        kind: InterruptKind::Device,
        group: "irq",
        begin: "irq_handler_entry",
        end: "irq_handler_exit",
        number: Some("irq"),
    },
    Interrupt {
        kind: InterruptKind::Softirq,
        group: "irq",
        begin: "softirq_entry",
        end: "softirq_exit",
        number: Some("vec"),
    },
    Interrupt {
        kind: InterruptKind::Timer,
        group: "irq_vectors",
        begin: "local_timer_entry",
        end: "local_timer_exit",
        number: None,
    },
    Interrupt {
        kind: InterruptKind::Reschedule,
        group: "irq_vectors",
        begin: "reschedule_entry",
        end: "reschedule_exit",
        number: None,
    },
    Interrupt {
        kind: InterruptKind::Call,
        group: "irq_vectors",
        begin: "call_function_entry",
        end: "call_function_exit",
        number: None,
    },
    Interrupt {
        kind: InterruptKind::SingleCall,
        group: "irq_vectors",
        begin: "call_function_single_entry",
        end: "call_function_single_exit",
        number: None,
    },
];
/// What introduces the names of softirqs in the description of their tracepoints.
const SOFTIRQ_NAMES: &str = "__print_symbolic(REC->vec,";

impl ExitCounter {
    /// Loads the programs at tracepoints of interrupts.
    pub(super) fn load_interrupts(&mut self, plan: Plan) -> Result<(), ExitsError> {
        for interrupt in INTERRUPTS {
            let [begin, end] = [interrupt.begin, interrupt.end]
                .map(|name| Tracepoint::of_host(interrupt.group, name));
            if let (InterruptKind::Softirq, Some(begin)) = (interrupt.kind, &begin) {
                self.softirqs = begin.names(SOFTIRQ_NAMES);
            }
            self.load_optional(interrupt.begin, Ok(begin), |_| {
                Ok(at_begin(plan, interrupt.kind))
            })?;
            self.load_optional(interrupt.end, Ok(end), |end| interrupt.at_end(plan, end))?;
        }
        Ok(())
    }
}

impl Interrupt {
    fn at_end(&self, plan: Plan, end: &Tracepoint) -> Result<Vec<Instruction>, TracepointError> {
        let number = self.number.map(|name| end.member(name)).transpose()?;
        Ok(at_end(plan, self.kind, number))
    }
}

/// The member of a thread's entry that has the time since which it is interrupted so.
fn since(kind: InterruptKind) -> i16 {
    match kind {
        InterruptKind::Softirq => SOFTIRQ,
        _ => INTERRUPT,
    }
}

impl Counter {
    /// Finds the entry of the calling thread, and ends if it is no vCPU's.
    fn find_thread(&mut self) {
        self.look_up(self.plan.threads);
        self.program.registers(MOVE_REGISTER, THREAD, 0);
        self.end_if_zero(THREAD);
    }

    /// Adds the time of an interrupt to that by which a softirq is interrupted, if it is.
    fn note_interrupted(&mut self) {
        let p = &mut self.program;
        p.add(LOAD_64, 1, THREAD, SOFTIRQ, 0);
        let none = p.jump(JUMP_IF_ZERO, 1, 0, 0);
        p.add(LOAD_64, 1, THREAD, INTERRUPTED, 0);
        p.registers(ADD_REGISTER, 1, DURATION);
        p.add(STORE_64, THREAD, 1, INTERRUPTED, 0);
        p.land(none);
    }

    /// Takes the time by which a softirq was interrupted from its own.
    fn leave_out_interrupted(&mut self) {
        let p = &mut self.program;
        p.add(LOAD_64, 1, THREAD, INTERRUPTED, 0);
        let is_longer = p.jump(JUMP_IF_NOT_BELOW, DURATION, 1, 0);
        p.registers(MOVE_REGISTER, 1, DURATION);
        p.land(is_longer);
        p.registers(SUBTRACT_REGISTER, DURATION, 1);
    }
}

/// The program where something of this kind begins.
pub fn at_begin(plan: Plan, kind: InterruptKind) -> Vec<Instruction> {
    let mut counter = Counter::new(plan);
    counter.find_thread();
    counter.program.call(HELPER_KTIME_GET_NS);
    counter.program.add(STORE_64, THREAD, 0, since(kind), 0);
    if kind == InterruptKind::Softirq {
        (counter.program).add(STORE_IMMEDIATE_64, THREAD, 0, INTERRUPTED, 0);
    }
    counter.end()
}

/// The program where it ends. Its record has the `number`, if there is more than one of the kind.
pub fn at_end(plan: Plan, kind: InterruptKind, number: Option<Member>) -> Vec<Instruction> {
    let mut counter = Counter::new(plan);
    counter.find_thread();
    counter.take_time(since(kind));
    match kind {
        InterruptKind::Softirq => counter.leave_out_interrupted(),
        _ => counter.note_interrupted(),
    }
    // The key begins with the thread's id already.
    let p = &mut counter.program;
    p.immediate(MOVE_IMMEDIATE, 1, kind as i32);
    p.add(STORE_32, STACK, 1, KEY + 4, 0);
    p.immediate(MOVE_IMMEDIATE, 1, 0);
    if let Some(number) = number {
        p.load_member(1, number);
    }
    p.add(STORE_64, STACK, 1, KEY + 8, 0);
    let full = counter.find_or_make(ENTRY, plan.interrupts, LOST_INTERRUPTS);
    counter.count(COUNT, TOTAL);
    counter.ends.push(full);
    counter.end()
}
