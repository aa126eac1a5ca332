//! The places in guest memory of the running process's identity, for readers that can't look up anything themselves.

use kvmprof_recording::{COMM_LENGTH, Mode, Preemption};
use vm_memory::GuestAddress;

use crate::{Identity, padded};

/// The highest process id plus one (`PID_MAX_LIMIT`, `include/linux/threads.h`).
const PID_LIMIT: i64 = 4 << 20;

/// Guest-virtual addresses that are contiguous in physical memory, and stay so while the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearMap {
    /// The first address.
    pub address: u64,
    /// The physical address of `address`.
    pub physical: GuestAddress,
    /// Maximum number of mapped bytes; guest memory may end before.
    pub bytes: u64,
}

/// The place of the pointer to the running task, and the addresses that it can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPointer {
    /// The place of the pointer, which has 8 bytes.
    pub at: GuestAddress,
    /// The memory of tasks.
    pub maps: Vec<LinearMap>,
    /// Where a task has its own memory; `None` if that isn't known.
    pub memory: Option<TaskMemory>,
}

/// Where a task has its page tables and its stack in the kernel, for readers that know neither CR3 nor the stack pointer. Offsets are in bytes, less than
/// 2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskMemory {
    /// `task_struct.mm`, a pointer to the next offset's structure; 0 in tasks without user memory.
    pub mm: u64,
    /// `mm_struct.pgd`, a pointer to the page tables.
    pub page_tables: u64,
    /// `task_struct.stack`, a pointer to the first byte of the stack; `None` if that isn't known.
    pub stack: Option<u64>,
    /// The address at which physical address 0 is mapped, and from there on all page tables.
    pub direct_map: u64,
}

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueAt {
    /// A fixed physical address.
    Physical(GuestAddress),
    /// This many bytes after the start of the running task; less than 2^31.
    Task(u64),
}

/// The meaning of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// The process's id.
    Pid,
    /// The thread's id.
    Tid,
    /// The id of the process group.
    ProcessGroup,
    /// The name; it has [`COMM_LENGTH`] bytes.
    Comm,
    /// An interrupt is being serviced if one of these bits is set.
    Interrupts(u64),
    /// Linux's `preempt_count`. An interrupt is being serviced if one of the bits in the first mask is set. The
    /// scheduler can't preempt the code if one of the bits in the second mask is set; a second mask of 0 means that
    /// this is unknown.
    PreemptCount(u32, u32),
}

/// One value of the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePlace {
    /// Its meaning.
    pub kind: ValueKind,
    /// Its place.
    pub at: ValueAt,
    /// Its size in bytes: 1, 2, 4 or 8, or [`COMM_LENGTH`] for a name.
    pub width: u8,
}

/// The places of the identity of the process on one vCPU. They are valid while the guest's kernel runs and the vCPU
/// keeps its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessPlaces {
    /// The pointer to the running task, if values are in the task.
    pub task: Option<TaskPointer>,
    /// The values, at most [`ProcessPlaces::MAX`].
    pub values: Vec<ValuePlace>,
    /// The place of a pointer, which has 8 bytes, to the outermost word of Linux's stack for interrupts, or to the end
    /// of the stack, right after that word. The word is the stack pointer of the interrupted code.
    pub interrupt_stack: Option<GuestAddress>,
    /// Whether the guest is Linux: its kernel uses the upper half of all addresses, and thread 0 is idle.
    pub is_linux: bool,
}

impl ProcessPlaces {
    /// Maximum number of values.
    pub const MAX: usize = 6;

    /// The identity of the process on a vCPU at privilege level `cpl`, which is in HLT if `halted`. `value` returns the
    /// bytes of the value with an index as of that moment, or `None` if they couldn't be read.
    pub fn identity(
        &self,
        cpl: u8,
        halted: bool,
        value: impl Fn(usize) -> Option<[u8; COMM_LENGTH]>,
    ) -> Identity {
        let mut identity = Identity::at_level(cpl, halted);
        for (index, place) in self.values.iter().enumerate() {
            let Some(bytes) = value(index) else {
                continue;
            };
            let number = number(bytes, place.width);
            match place.kind {
                ValueKind::Pid => identity.pid = self.id(number),
                ValueKind::Tid => identity.tid = self.id(number),
                ValueKind::ProcessGroup => identity.process_group = self.id(number),
                ValueKind::Comm => identity.comm = padded(bytes),
                ValueKind::Interrupts(bits) => {
                    let is_servicing = number.cast_unsigned() & bits != 0;
                    if identity.mode == Mode::Kernel && is_servicing {
                        identity.mode = Mode::Interrupt;
                    }
                }
                ValueKind::PreemptCount(interrupts, forbids) => {
                    let [a, b, c, d, ..] = bytes;
                    let count = u32::from_le_bytes([a, b, c, d]);
                    if identity.mode == Mode::Kernel && count & interrupts != 0 {
                        identity.mode = Mode::Interrupt;
                    }
                    identity.preemption = preemption(cpl, forbids, Some(count));
                }
            }
        }
        if identity.tid == -1 {
            identity.tid = identity.pid;
        }
        if self.is_linux && identity.mode == Mode::Kernel && identity.tid == 0 {
            identity.mode = Mode::Idle;
        }
        identity
    }

    fn id(&self, number: i64) -> i32 {
        let limit = if self.is_linux { PID_LIMIT } else { i64::MAX };
        let id = Some(number).filter(|id| (0..limit).contains(id));
        id.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1)
    }
}

/// The number in the first `width` bytes, sign-extended.
fn number(bytes: [u8; COMM_LENGTH], width: u8) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = bytes;
    let unused = 64 - 8 * u32::from(width.clamp(1, 8));
    i64::from_le_bytes([a, b, c, d, e, f, g, h]) << unused >> unused
}

/// Whether the scheduler could preempt the code at privilege level `cpl`, with this `preempt_count`. It can't if one of
/// `bits` is set in the count. 0 for `bits` means that the kernel doesn't count everything that disables preemption.
pub fn preemption(cpl: u8, bits: u32, count: Option<u32>) -> Preemption {
    match count {
        _ if bits == 0 => Preemption::Unknown,
        _ if cpl != 0 => Preemption::On,
        Some(count) if count & bits == 0 => Preemption::On,
        Some(_) => Preemption::Off,
        None => Preemption::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(is_linux: bool) -> ProcessPlaces {
        let value = |kind, width| ValuePlace {
            kind,
            at: ValueAt::Task(0),
            width,
        };
        ProcessPlaces {
            task: None,
            values: vec![
                value(ValueKind::Pid, 4),
                value(ValueKind::Tid, 4),
                value(ValueKind::Interrupts(0xff00), 4),
                value(ValueKind::Comm, 16),
                value(ValueKind::PreemptCount(0xff_0000, 0x7fff_ffff), 4),
            ],
            interrupt_stack: None,
            is_linux,
        }
    }

    fn bytes(number: i32) -> [u8; COMM_LENGTH] {
        let mut bytes = [0xee; COMM_LENGTH];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// The result of a pid, a tid, a nesting of interrupts, and a preempt count.
    fn identity(is_linux: bool, cpl: u8, numbers: [i32; 4]) -> Identity {
        places(is_linux).identity(cpl, false, |index| match index {
            3 => Some(*b"spinner\0leftover"),
            4 => Some(bytes(numbers[3])),
            _ => Some(bytes(numbers[index])),
        })
    }

    #[test]
    fn values_give_the_running_task() {
        let found = identity(true, 3, [12, 13, 0, 0]);
        assert_eq!((found.pid, found.tid), (12, 13));
        assert_eq!(found.comm, *b"spinner\0\0\0\0\0\0\0\0\0");
        for (is_linux, cpl, numbers, mode) in [
            (true, 3, [12, 13, 0, 0], Mode::User),
            (true, 0, [12, 13, 0x100, 0], Mode::Interrupt),
            (true, 0, [12, 13, 0xff, 0], Mode::Kernel),
            (true, 3, [12, 13, 0x100, 0], Mode::User),
            (true, 0, [0, 0, 0, 0], Mode::Idle),
            (false, 0, [0, 0, 0, 0], Mode::Kernel),
            (true, 0, [12, 13, 0, 0x1_0000], Mode::Interrupt),
        ] {
            let found = identity(is_linux, cpl, numbers).mode;
            assert_eq!(found, mode, "{is_linux} {cpl} {numbers:?}");
        }
        for (cpl, count, preemption) in [
            (0, i32::MIN, Preemption::On),
            (0, 2, Preemption::Off),
            (0, 0x1_0000, Preemption::Off),
            (3, 1, Preemption::On),
        ] {
            let found = identity(true, cpl, [12, 13, 0, count]).preemption;
            assert_eq!(found, preemption, "{cpl} {count:#x}");
        }
    }

    #[test]
    fn impossible_ids_are_unknown() {
        let found = identity(true, 3, [-5, 4 << 20, 0, 0]);
        assert_eq!((found.pid, found.tid), (-1, -1));
        assert_eq!(identity(false, 3, [4 << 20, -1, 0, 0]).tid, 4 << 20);
        let none = places(true).identity(0, true, |_| None);
        assert_eq!(none, Identity::unknown(Mode::Idle));
    }
}
