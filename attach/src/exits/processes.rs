//! The guest's running process, which a program reads out of guest memory once a vCPU has left the guest: by the places that samples have it from, too.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use kvmprof_introspection::{ProcessPlaces, ValueKind};

use super::MAX_THREADS;
use super::program::{Counter, DURATION, ENTRY, KEY, THREAD};
use super::record::{COUNT, LOST_PROCESSES, NAME, NAME_AT, NAME_BYTES, PID, REASON, TOTAL};
use crate::Slots;
use crate::kernel_memory::bpf;
use crate::kernel_memory::program::{LOAD_64, MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64};
use crate::sampling::assembly::{
    ADD_IMMEDIATE, HELPER_PROBE_READ_USER, JUMP_IF_NOT, JUMP_IF_ZERO, Range, STACK,
    STORE_IMMEDIATE_64,
};
use crate::sampling::program::{Read, Source};
use crate::sampling::{pointer, reads};
use crate::tracepoint::Member;

/// A vCPU's entry: the VMM's addresses of the pointer to the running task, of the process's id and of its name; 0 if the vCPU has none.
const POINTER_AT: i16 = 0;
const PID_AT: i16 = 8;
const NAME_PLACE: i16 = 16;
const VCPU_BYTES: usize = 24;
/// The id of a process that couldn't be read.
const UNKNOWN: i32 = -1;
/// Where the stack has what was read.
const SLOT: i16 = KEY - 8;

/// Where programs find the running process of each vCPU.
#[derive(Debug)]
pub struct ProcessReads {
    /// The entries of vCPUs, by the vCPUs' numbers.
    vcpus: OwnedFd,
    /// The memory that the pointers can point to.
    ranges: Vec<Range>,
    pid: Read,
    name: Option<Read>,
}

impl ProcessReads {
    /// Those of vCPUs with these numbers, in guest memory at `slots`. `None` if no process can be found by `places`.
    pub fn new(slots: &Slots, places: &[(u32, ProcessPlaces)]) -> io::Result<Option<Self>> {
        let numbers = places.iter().map(|(vcpu, _)| vcpu.saturating_add(1));
        let entries = numbers.max().unwrap_or(1).min(MAX_THREADS);
        let vcpus = bpf::create_array(VCPU_BYTES, entries)?;
        let mut form = None;
        for (vcpu, places) in places.iter().filter(|(vcpu, _)| *vcpu < entries) {
            let reads = reads(places, slots);
            let find = |kind| {
                let is_such = |read: &&Read| {
                    let value = places.values.get(read.index);
                    value.is_some_and(|value| value.kind == kind)
                };
                reads.iter().find(is_such).copied()
            };
            let Some(pid) = find(ValueKind::Pid) else {
                continue;
            };
            let name = find(ValueKind::Comm);
            let pointer = pointer(places, slots);
            let at = pointer.as_ref().map_or(0, |pointer| pointer.at);
            let addresses = [at, fixed(Some(pid)), fixed(name)];
            let entry: Vec<u8> = addresses.iter().flat_map(|it| it.to_ne_bytes()).collect();
            bpf::set_value(&vcpus, *vcpu, &entry)?;
            // All vCPUs run the same kernel.
            let ranges = pointer.map_or_else(Vec::new, |pointer| pointer.ranges);
            form.get_or_insert((ranges, pid, name));
        }
        Ok(form.map(|(ranges, pid, name)| Self {
            vcpus,
            ranges,
            pid,
            name,
        }))
    }

    fn has_pointer(&self) -> bool {
        let reads = [Some(self.pid), self.name].into_iter().flatten();
        let mut sources = reads.map(|read| read.source);
        sources.any(|source| matches!(source, Source::Pointer(_)))
    }
}

/// The VMM's address of a value; 0 if it is behind the pointer.
fn fixed(read: Option<Read>) -> u64 {
    match read.map(|read| read.source) {
        Some(Source::Host(address)) => address,
        _ => 0,
    }
}

impl Counter {
    /// Notes in the thread's entry which process runs on the vCPU, and where its name is.
    pub fn note_process(&mut self, reads: Option<&ProcessReads>, vcpu: Member) {
        let p = &mut self.program;
        p.add(STORE_IMMEDIATE_64, THREAD, 0, PID, UNKNOWN);
        p.add(STORE_IMMEDIATE_64, THREAD, 0, NAME_AT, 0);
        let Some(reads) = reads else {
            return;
        };
        self.load_member(1, vcpu);
        self.program.add(STORE_64, STACK, 1, KEY, 0);
        self.look_up(reads.vcpus.as_raw_fd());
        self.program.registers(MOVE_REGISTER, ENTRY, 0);
        let mut unknown = vec![self.program.jump(JUMP_IF_ZERO, ENTRY, 0, 0)];
        // What the pointer points to is where durations are later.
        if reads.has_pointer() {
            self.program.add(LOAD_64, 3, ENTRY, POINTER_AT, 0);
            unknown.push(self.read_to_slot(8));
            self.program.add(LOAD_64, 1, STACK, SLOT, 0);
            self.program.find(1, &reads.ranges);
            self.program.registers(MOVE_REGISTER, DURATION, 3);
            unknown.push(self.program.jump(JUMP_IF_ZERO, DURATION, 0, 0));
        }
        self.point_to_value(reads.pid, PID_AT);
        self.program.add(STORE_IMMEDIATE_64, STACK, 0, SLOT, 0);
        unknown.push(self.read_to_slot(reads.pid.bytes.min(8)));
        self.program.add(LOAD_64, 1, STACK, SLOT, 0);
        self.program.add(STORE_64, THREAD, 1, PID, 0);
        if let Some(name) = reads.name {
            self.point_to_value(name, NAME_PLACE);
            self.program.add(STORE_64, THREAD, 3, NAME_AT, 0);
        }
        self.program.land_all(unknown);
    }

    /// Reads from the address in register 3. Returns the jump for a failure.
    fn read_to_slot(&mut self, bytes: u8) -> usize {
        let p = &mut self.program;
        p.registers(MOVE_REGISTER, 1, STACK);
        p.immediate(ADD_IMMEDIATE, 1, SLOT.into());
        p.immediate(MOVE_IMMEDIATE, 2, bytes.into());
        p.call(HELPER_PROBE_READ_USER);
        p.jump(JUMP_IF_NOT, 0, 0, 0)
    }

    /// Puts the VMM's address of a value into register 3.
    fn point_to_value(&mut self, read: Read, member: i16) {
        match read.source {
            Source::Host(_) => self.program.add(LOAD_64, 3, ENTRY, member, 0),
            Source::Pointer(offset) => {
                self.program.registers(MOVE_REGISTER, 3, DURATION);
                self.program.immediate(ADD_IMMEDIATE, 3, offset);
            }
        }
    }

    /// Counts the exit by the guest's process in the map `processes`.
    pub fn count_process(&mut self, processes: i32) {
        self.key_from_thread(0, REASON);
        self.key_from_thread(4, PID);
        let full = self.find_or_make(ENTRY, processes, LOST_PROCESSES);
        self.count(COUNT, TOTAL);
        let p = &mut self.program;
        p.add(LOAD_64, 3, THREAD, NAME_AT, 0);
        let nameless = p.jump(JUMP_IF_ZERO, 3, 0, 0);
        // Each time: a process that executes another program gets another name.
        p.registers(MOVE_REGISTER, 1, ENTRY);
        p.immediate(ADD_IMMEDIATE, 1, NAME.into());
        p.immediate(MOVE_IMMEDIATE, 2, NAME_BYTES);
        p.call(HELPER_PROBE_READ_USER);
        p.land_all([full, nameless]);
    }
}
