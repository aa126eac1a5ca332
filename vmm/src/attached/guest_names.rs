//! What the exits of a guest are named by, without profiling it: the functions of its kernel, and the places of its processes.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvmprof_attach::Machine;
use kvmprof_attach::remote::{Channel, RemoteVcpu};
use kvmprof_introspection::{BuildFiles, GuestKnowledge, ProcessPlaces, VcpuIntrospector};
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::kernel_capture::{decode_places, encode_places};
use kvmprof_sandbox::Thread;

use super::error::AttachedError;
use super::kernel_finder::KernelFinder;
use super::vcpu_look::VcpuLook;
use super::{Attachment, give_up_rights, numbers};
use crate::vm::{VmError, restrict_paths};

/// The number of looks at vCPUs until the kernel, or the processes, are given up: a vCPU may run a guest of its own, or be stopped for something else.
const LOOKS: u32 = 12;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of vCPUs whose processes are found.
const MAX_VCPUS: u64 = 4096;
/// Maximum number of processes whose containers are known, and of bytes of the name of a container.
const MAX_PROCESSES: usize = 4096;
const MAX_CONTAINER: usize = 256;

/// The label of processes that is their container's id.
const CONTAINER: &str = "container";

/// What the exits of a guest are named by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestNames {
    /// The functions of the kernel that the guest runs, and those of a Linux kernel's modules, in the form of `/proc/kallsyms`. It's empty if no kernel is found that
    /// has any.
    pub functions: String,
    /// The places of the running process, for vCPUs by their numbers (KVM_CREATE_VCPU).
    pub places: Vec<(u32, ProcessPlaces)>,
    /// The containers of a Linux guest's processes, by the processes' ids; empty for a process in none.
    pub containers: BTreeMap<i32, String>,
}

impl GuestNames {
    /// Finds what is known of the guest of `attachment`. A vCPU is stopped for a moment for each look. This process, which has no other thread, is [contained](contain)
    /// from now on.
    ///
    /// # Errors
    /// The host refuses to contain this process, or gives no thread.
    pub fn find(attachment: Attachment, is_restricted: bool) -> Result<Self, AttachedError> {
        let numbers = vcpu_numbers(attachment.machine());
        contain(is_restricted)?;
        // The process that traces the VMM ends with this, for which only the first thread may wait.
        let Attachment { guest, helper, .. } = attachment;
        let (memory, vcpus) = (guest.watching, guest.watched);
        let looking = thread::Builder::new().name("introspection".into());
        let looking = looking
            .spawn(move || {
                kvmprof_sandbox::enter(Thread::AttachedKernel);
                look(memory, vcpus, numbers)
            })
            .map_err(VmError::host("a thread"))?;
        kvmprof_sandbox::enter(Thread::Main);
        let names = looking
            .join()
            .map_err(|_| VmError::panicked("the thread that reads the guest's kernel"))?;
        drop(helper);
        Ok(names)
    }

    /// Writes them for another process of kvmprof.
    ///
    /// # Errors
    /// Writing to `output` failed.
    pub fn write(&self, output: &mut impl Write) -> io::Result<()> {
        let mut words = vec![self.places.len() as u64];
        for (vcpu, places) in &self.places {
            words.push((*vcpu).into());
            encode_places(places, &mut words);
        }
        let containers = self.containers.iter();
        let containers = containers.filter(|(_, name)| name.len() <= MAX_CONTAINER);
        let containers: Vec<_> = containers.take(MAX_PROCESSES).collect();
        words.push(containers.len() as u64);
        for (process, name) in containers {
            words.push(u64::from(process.cast_unsigned()));
            words.push(name.len() as u64);
            words.extend(name.as_bytes().chunks(8).map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }));
        }
        for word in [words.len() as u64].iter().chain(&words) {
            output.write_all(&word.to_le_bytes())?;
        }
        output.write_all(self.functions.as_bytes())
    }

    /// What another process has [written](Self::write); `None` for anything else. The functions aren't parsed.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let (words, text) = rest.split_at_checked(count.checked_mul(8)?)?;
        let mut words = (words.as_chunks().0.iter()).map(|word| u64::from_le_bytes(*word));
        let vcpus = words.next().filter(|vcpus| *vcpus <= MAX_VCPUS)?;
        let place = |_| {
            let vcpu = u32::try_from(words.next()?).ok()?;
            Some((vcpu, decode_places(&mut words)?))
        };
        let places = (0..vcpus).map(place).collect::<Option<_>>()?;
        let containers = words
            .next()
            .filter(|count| *count <= MAX_PROCESSES as u64)?;
        let containers = (0..containers).map(|_| container(&mut words));
        let containers = containers.collect::<Option<_>>()?;
        words.next().is_none().then_some(())?;
        Some(Self {
            functions: String::from_utf8(text.to_vec()).ok()?,
            places,
            containers,
        })
    }
}

/// The next process and its container of those that were written.
fn container(words: &mut impl Iterator<Item = u64>) -> Option<(i32, String)> {
    let process = u32::try_from(words.next()?).ok()?.cast_signed();
    let length = usize::try_from(words.next()?).ok()?;
    if length > MAX_CONTAINER {
        return None;
    }
    let mut name = Vec::new();
    for _ in 0..length.div_ceil(8) {
        name.extend(words.next()?.to_le_bytes());
    }
    name.truncate(length);
    Some((process, String::from_utf8(name).ok()?))
}

/// This process, which has no other thread, gives up all rights from now on, if `kvmprof_sandbox` was told to contain it; with `is_restricted` also all files but those
/// that it can need (`kvmprof_sandbox::paths`).
///
/// # Errors
/// The host refuses it.
pub fn contain(is_restricted: bool) -> Result<(), AttachedError> {
    // The first call asks the kernel by prctl(2) where the vDSO is, which no filter allows.
    let _ = rustix::thread::sched_getcpu();
    if is_restricted {
        restrict_paths(&ProfilingConfig::default())?;
    }
    give_up_rights(&[])
}

/// The numbers of the vCPUs that have a thread: KVM's, and those of the CPUs in the guest.
fn vcpu_numbers(machine: &Machine) -> Vec<(u32, u16)> {
    let vcpus = machine.vcpus.iter().filter(|vcpu| vcpu.thread.is_some());
    let vcpus = vcpus.map(|vcpu| vcpu.index);
    vcpus.zip(numbers(machine)).collect()
}

fn look(memory: Arc<Channel>, vcpus: Vec<RemoteVcpu>, numbers: Vec<(u32, u16)>) -> GuestNames {
    let knowledge = Arc::new(GuestKnowledge::pending());
    let mut finder = KernelFinder::new(memory, vcpus, BuildFiles::default());
    for _ in 0..LOOKS {
        if let Err(error) = finder.look(&knowledge) {
            log::debug!("The guest's kernel isn't known: {error}");
        }
        if !knowledge.is_pending() && !knowledge.is_unlocated() {
            break;
        }
        thread::sleep(PAUSE);
    }
    if knowledge.is_pending() {
        return GuestNames::default();
    }
    let (memory, vcpus) = finder.into_parts();
    let mut functions = knowledge.kallsyms().unwrap_or_default();
    let mut containers = BTreeMap::new();
    if let Some(linux) = knowledge.linux() {
        linux.modules().read(linux, &memory);
        functions += &linux.modules().loaded().functions();
        let processes = linux.describe_processes(&memory).unwrap_or_default();
        containers.extend(processes.processes.into_iter().map(|mut process| {
            let container = process.labels.remove(CONTAINER);
            (process.pid, container.unwrap_or_default())
        }));
    }
    let vcpus = vcpus.into_iter().zip(numbers);
    let vcpus = vcpus.map(|(vcpu, (number, cpu))| {
        let introspector = VcpuIntrospector::new(Arc::clone(&knowledge), cpu);
        (number, vcpu, introspector)
    });
    GuestNames {
        places: places(vcpus.collect()),
        functions,
        containers,
    }
}

/// Where the processes that run on these vCPUs are found. All vCPUs are looked at before one is again: what one of them runs can show where the processes of all are.
fn places(mut vcpus: Vec<(u32, RemoteVcpu, VcpuIntrospector)>) -> Vec<(u32, ProcessPlaces)> {
    let mut found = Vec::new();
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(PAUSE);
        }
        vcpus.retain_mut(|(number, vcpu, introspector)| {
            let places = places_now(vcpu, introspector);
            let is_open = places.is_none();
            found.extend(places.map(|places| (*number, places)));
            is_open
        });
        if vcpus.is_empty() {
            break;
        }
    }
    found
}

fn places_now(vcpu: &mut RemoteVcpu, introspector: &mut VcpuIntrospector) -> Option<ProcessPlaces> {
    let memory = Arc::clone(vcpu.memory());
    let registers = VcpuLook::new(vcpu).registers()?;
    introspector.identify(&*memory, &registers, false, false);
    introspector.places(&*memory, &registers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        let places = |is_linux| ProcessPlaces {
            task: None,
            values: Vec::new(),
            interrupt_stack: None,
            is_linux,
        };
        let names = GuestNames {
            functions: "0000000000001000 t main\n".into(),
            places: vec![(0, places(true)), (7, places(false))],
            containers: [(1, ""), (-7, "4f1d"), (77, "eightnin"), (78, "nine bytes")]
                .map(|(process, name)| (process, name.to_owned()))
                .into(),
        };
        let mut bytes = Vec::new();
        names.write(&mut bytes).unwrap();
        assert_eq!(GuestNames::read(&bytes).as_ref(), Some(&names));
        let words = bytes.len() - names.functions.len();
        for length in 0..words {
            assert_eq!(GuestNames::read(&bytes[..length]), None, "{length}");
        }
        let mut bytes = Vec::new();
        GuestNames::default().write(&mut bytes).unwrap();
        assert_eq!(GuestNames::read(&bytes), Some(GuestNames::default()));
    }
}
