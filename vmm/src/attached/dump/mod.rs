//! A dump of a guest: its memory and its registers as an ELF core file, for programs such as crash(8) and drgn.

mod core_file;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use kvmprof_attach::remote::{Channel, HeldVcpu, RemoteVcpu};
use kvmprof_attach::tracer::{StopOutcome, TraceError};
use kvmprof_attach::{AttachError, Machine};
use kvmprof_introspection::{PhysicalMemory, Registers, VMCOREINFO_BYTES, VmcoreinfoSearch};
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::sampling::select_registers;
use kvmprof_recording::file::{Observer, RecordingFile};
use kvmprof_sandbox::Thread;
use vm_memory::GuestAddress;

use super::error::AttachedError;
use super::{Attachment, MAX_TRIES, give_up_rights};
use crate::vm::restrict_paths;
use core_file::{CoreFile, Segment, VcpuRegisters};

/// Bytes that are copied at once.
const COPIED_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// The guest to dump, and where to.
pub struct DumpConfig {
    /// The guest. If its vCPUs are to stand still, it was opened for that
    /// ([`StandStill::UntilReleased`](kvmprof_attach::remote::StandStill)).
    pub attachment: Attachment,
    /// Whether its vCPUs stand still while its memory is copied.
    pub pause: bool,
    /// The empty file of the dump.
    pub file: File,
    /// What gives that file its name, once the dump is whole.
    pub name: Box<dyn RecordingFile + Send>,
    /// Whether this process is restricted to the files that it can need (`kvmprof_sandbox::paths`).
    pub restrict_paths: bool,
}

/// What a dump has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    /// The length of the guest's memory, in bytes.
    pub memory_bytes: u64,
    /// The number of bytes of memory in the file that aren't in holes.
    pub copied_bytes: u64,
    /// The number of bytes of memory that couldn't be read, and are zeros.
    pub unreadable_bytes: u64,
    /// Whether it has the VMCOREINFO of the guest's kernel.
    pub has_vmcoreinfo: bool,
    /// The ids of the vCPUs whose registers aren't known, and are zeros.
    pub without_registers: Vec<u32>,
}

/// Why a guest couldn't be dumped.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The guest can't be looked at.
    #[error(transparent)]
    Attached(#[from] AttachedError),
    /// The VMM is stopped.
    #[error(
        "Process {0} is stopped (SIGSTOP or the like), so its vCPUs can't tell their registers: let it go on first"
    )]
    Suspended(i32),
    /// Another process traces a vCPU's thread.
    #[error(
        "Another process, such as a debugger, traces thread {0} of the VMM: end that first, or dump again"
    )]
    Busy(i32),
    /// A vCPU has gone on before all memory was copied.
    #[error("A vCPU didn't stand still until the end ({0}): dump again")]
    WentOn(TraceError),
    /// The guest has more memory than a file can have.
    #[error("The guest's memory doesn't fit into a file")]
    TooLong,
    /// The file can't be written.
    #[error("Cannot write the dump")]
    Write(#[source] io::Error),
    /// The observer has ended it.
    #[error("The dump was interrupted")]
    Interrupted,
}

impl From<AttachError> for DumpError {
    fn from(error: AttachError) -> Self {
        Self::Attached(error.into())
    }
}

/// Dumps the guest of `config`. The calling thread and this process are contained from now on, if `kvmprof_sandbox` was told to. The file gets its headers once it has
/// everything else, and then its name: what is cut off is no core file. `observer` gets the progress in bytes, and can end it.
///
/// # Errors
/// The guest can't be looked at, or has ended meanwhile; the file can't be written. The file has no name then.
pub fn dump(config: DumpConfig, observer: &dyn Observer) -> Result<Dumped, DumpError> {
    let DumpConfig {
        attachment,
        pause,
        file,
        mut name,
        restrict_paths: is_restricted,
    } = config;
    if is_restricted {
        restrict_paths(&ProfilingConfig::default()).map_err(AttachedError::from)?;
    }
    give_up_rights(&[])?;
    kvmprof_sandbox::enter(Thread::Main);
    let vcpus = Vcpus::of(&attachment)?;
    let mut held = Vec::new();
    for vcpu in &attachment.guest.vcpus {
        let one = hold(vcpu, &attachment.machine)?;
        held.push((one.registers().copied(), pause.then_some(one)));
    }
    let (registers, held): (Vec<VcpuRegisters>, Vec<Option<HeldVcpu<'_>>>) =
        held.into_iter().unzip();
    let registers = vcpus.all(registers);
    let memory = &attachment.guest.control;
    memory.refresh()?;
    let core = CoreFile::new(&memory.slots(), registers.len()).ok_or(DumpError::TooLong)?;
    file.set_len(core.bytes).map_err(DumpError::Write)?;
    let mut copy = Copy::new(memory, &file, &registers);
    for segment in &core.segments {
        copy.segment(segment, &core, observer)?;
    }
    // What was read last may be what the VMM had left when it ended.
    memory.refresh()?;
    for vcpu in held.into_iter().flatten() {
        match vcpu.release() {
            Ok(StopOutcome::Gone) => return Err(AttachError::Ended(vcpus.pid).into()),
            Ok(_) => {}
            Err(error) => return Err(DumpError::WentOn(error)),
        }
    }
    let begin = core.begin(&registers, copy.vmcoreinfo.found());
    let dumped = Dumped {
        memory_bytes: core.segments.iter().map(|segment| segment.bytes).sum(),
        has_vmcoreinfo: copy.vmcoreinfo.found().is_some(),
        without_registers: vcpus.without(&registers),
        ..copy.dumped
    };
    // Only what is on the disk is said to be whole.
    let written = (file.sync_all())
        .and_then(|()| file.write_all_at(&begin, 0))
        .and_then(|()| file.sync_all())
        .and_then(|()| name.keep(true));
    written.map_err(DumpError::Write)?;
    Ok(dumped)
}

/// The guest's vCPUs, also those that no thread has run yet.
struct Vcpus {
    pid: i32,
    /// The id of each, and whether a thread runs it.
    ids: Vec<(u32, bool)>,
}

impl Vcpus {
    fn of(attachment: &Attachment) -> Result<Self, DumpError> {
        let machine = &attachment.machine;
        let ids = machine.vcpus.iter();
        let ids = ids.map(|vcpu| (vcpu.index, vcpu.thread.is_some()));
        if attachment.guest.vcpus.is_empty() {
            return Err(AttachedError::NoVcpus(machine.pid).into());
        }
        Ok(Self {
            pid: machine.pid,
            ids: ids.collect(),
        })
    }

    /// The registers of all of them, if `known` are those of the ones that a thread runs.
    fn all(&self, known: Vec<VcpuRegisters>) -> Vec<VcpuRegisters> {
        let mut known = known.into_iter();
        let all = self.ids.iter();
        all.map(|(_, has_thread)| has_thread.then(|| known.next()).flatten().flatten())
            .collect()
    }

    /// The ids of those whose registers aren't known.
    fn without(&self, registers: &[VcpuRegisters]) -> Vec<u32> {
        let all = self.ids.iter().zip(registers);
        all.filter(|(_, registers)| registers.is_none())
            .map(|((id, _), _)| *id)
            .collect()
    }
}

/// Stops a vCPU.
fn hold<'a>(vcpu: &'a RemoteVcpu, machine: &Machine) -> Result<HeldVcpu<'a>, DumpError> {
    let pid = machine.pid;
    let mut tries = 0;
    loop {
        tries += 1;
        match vcpu.hold() {
            Ok(StopOutcome::Stopped(held)) => return Ok(held),
            Ok(StopOutcome::Suspended) => return Err(DumpError::Suspended(pid)),
            Ok(StopOutcome::Busy) if tries < MAX_TRIES => {}
            Ok(StopOutcome::Busy) => return Err(DumpError::Busy(vcpu.thread())),
            Ok(StopOutcome::Gone) => return Err(AttachError::Ended(pid).into()),
            // The host may be busy, or the thread at a moment at which it can't be moved.
            Err(TraceError::Slow | TraceError::Restartable | TraceError::Signal(_))
                if tries < MAX_TRIES => {}
            Err(source) => return Err(AttachedError::Trace { pid, source }.into()),
        }
    }
}

/// Copies memory into the file.
struct Copy<'a> {
    memory: &'a Channel,
    file: &'a File,
    /// The registers of vCPUs, for page tables.
    registers: Vec<Registers>,
    buffer: Vec<u8>,
    vmcoreinfo: VmcoreinfoSearch,
    /// The number of bytes that are done.
    done: u64,
    dumped: Dumped,
}

impl<'a> Copy<'a> {
    fn new(memory: &'a Channel, file: &'a File, registers: &[VcpuRegisters]) -> Self {
        let known = registers.iter().flatten();
        Self {
            memory,
            file,
            registers: known
                .map(|(regs, sregs)| select_registers(regs, sregs))
                .collect(),
            buffer: vec![0; COPIED_BYTES],
            vmcoreinfo: VmcoreinfoSearch::default(),
            done: 0,
            dumped: Dumped::default(),
        }
    }

    fn segment(
        &mut self,
        segment: &Segment,
        core: &CoreFile,
        observer: &dyn Observer,
    ) -> Result<(), DumpError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut at = 0;
        while at < segment.bytes {
            let left = usize::try_from(segment.bytes - at).unwrap_or(COPIED_BYTES);
            let part = &mut buffer[..left.min(COPIED_BYTES)];
            self.read(segment.address + at, part)?;
            self.find_vmcoreinfo(part);
            self.write(segment.offset + at, part)?;
            at += part.len() as u64;
            self.done += part.len() as u64;
            if let ControlFlow::Break(()) = observer.advance(self.done, core.bytes) {
                return Err(DumpError::Interrupted);
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Reads a part of memory. Pages that can't be read are zeros.
    fn read(&mut self, address: u64, part: &mut [u8]) -> Result<(), DumpError> {
        let memory = self.memory;
        if memory.read_physical(GuestAddress(address), part).is_some() {
            return Ok(());
        }
        // After the guest's end nothing can be read.
        memory.refresh()?;
        for (page, address) in part
            .chunks_mut(PAGE_BYTES)
            .zip((address..).step_by(PAGE_BYTES))
        {
            if memory.read_physical(GuestAddress(address), page).is_none() {
                page.fill(0);
                self.dumped.unreadable_bytes += page.len() as u64;
            }
        }
        Ok(())
    }

    /// Looks whether one of these pages is the VMCOREINFO of the kernel that runs.
    fn find_vmcoreinfo(&mut self, part: &[u8]) {
        for page in part.chunks_exact(VMCOREINFO_BYTES) {
            (self.vmcoreinfo).look(page, self.memory, &self.registers);
        }
    }

    /// Writes pages, but those of zeros, which stay holes of the file.
    fn write(&mut self, mut offset: u64, part: &[u8]) -> Result<(), DumpError> {
        let mut rest = part;
        while !rest.is_empty() {
            let (hole, behind) = rest.split_at(pages_with(rest, true));
            let (run, behind) = behind.split_at(pages_with(behind, false));
            offset += hole.len() as u64;
            (self.file.write_all_at(run, offset)).map_err(DumpError::Write)?;
            offset += run.len() as u64;
            self.dumped.copied_bytes += run.len() as u64;
            rest = behind;
        }
        Ok(())
    }
}

/// The length of the pages at the start of `part` that have zeros only, or of those that have something else, in bytes.
fn pages_with(part: &[u8], zeros: bool) -> usize {
    let pages = part.chunks(PAGE_BYTES);
    let pages = pages.take_while(|page| ZEROS.starts_with(page) == zeros);
    pages.map(<[u8]>::len).sum()
}

#[cfg(test)]
mod tests;
