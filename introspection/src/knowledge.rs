//! The knowledge about a guest: from its image before it runs, or from its memory.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};

use crate::PhysicalMemory;
use kvmprof_abi::note::GuestNote;

use super::firmware::Firmware;
use super::image_code::{ImageCode, Placement};
use super::linux::{BuildFiles, LinuxKnowledge};
use super::noted::{PidAt, PidAtError};
use super::other_guest::OtherGuest;
use super::{IntrospectionError, Registers};

/// The knowledge about a guest, shared by all its vCPUs.
///
/// The guest can run before the knowledge is complete: [`GuestKnowledge::pending`] knows nothing until
/// [`GuestKnowledge::complete`] is called. A guest may also restart with another kernel ([`GuestKnowledge::succeed`]).
#[derive(Debug, Default)]
pub struct GuestKnowledge {
    /// What was found, of each kernel in turn. None is removed: threads of vCPUs use it without a lock.
    guests: [OnceLock<Guest>; MAX_KERNELS],
    /// The place of the present one.
    current: AtomicUsize,
    /// What runs before a kernel does.
    firmware: Firmware,
    /// Whether command lines of processes are no labels.
    leaves_out_arguments: bool,
}

/// Maximum number of kernels that a guest runs in turn, each of which takes some 10 MB.
const MAX_KERNELS: usize = 16;

/// A guest by its kind: what only one kind can answer is asked of it directly.
///
/// Both are in boxes: the knowledge of a guest, which has room for many, is moved about with the configuration.
#[derive(Debug)]
pub(super) enum Guest {
    Linux(Box<LinuxKnowledge>),
    Other(Box<OtherGuest>),
}

impl From<OtherGuest> for Guest {
    fn from(guest: OtherGuest) -> Self {
        Self::Other(Box::new(guest))
    }
}

impl From<LinuxKnowledge> for Guest {
    fn from(linux: LinuxKnowledge) -> Self {
        Self::Linux(Box::new(linux))
    }
}

impl GuestKnowledge {
    /// Reads the image that the VMM loads: its note if it has one, otherwise as a Linux kernel. Of any other ELF file
    /// only the code is known, and nothing of a bzImage without a packed kernel, such as memtest86+.
    ///
    /// # Errors
    /// The image or its note is damaged.
    pub fn from_image(image: &[u8]) -> Result<Self, IntrospectionError> {
        if let Some(noted) = Self::from_noted_image(image)? {
            return Ok(noted);
        }
        match Self::from_kernel_image(image) {
            Err(IntrospectionError::NotAKernel | IntrospectionError::NoPayload) => Ok(Self::new(
                OtherGuest::from_image(GuestNote::default(), image, Placement::Loaded),
            )),
            result => result,
        }
    }

    /// Reads the image that another VMM is said to run: as [`GuestKnowledge::from_image`] does. Functions of an image that isn't Linux have names only
    /// once a vCPU was seen in its code, by [`GuestKnowledge::locate_image`] or [`VcpuIntrospector::identify`](super::VcpuIntrospector::identify).
    ///
    /// `others` are what the build of a Linux kernel has left behind.
    ///
    /// # Errors
    /// The image or its note is damaged, or it is neither a kernel nor an ELF file with a note or symbols, or `others` are those of another kernel.
    pub fn from_running_image(
        image: &[u8],
        others: &BuildFiles,
    ) -> Result<Self, IntrospectionError> {
        if let Some(note) = OtherGuest::note_in(image)?.filter(|_| others.is_empty()) {
            let guest = OtherGuest::from_image(note, image, Placement::Unproven);
            return Ok(Self::new(guest));
        }
        match Self::from_kernel_image_with(image, others) {
            Err(error @ IntrospectionError::NotAKernel) if others.is_empty() => {
                let note = GuestNote::default();
                let guest = OtherGuest::from_image(note, image, Placement::Unproven);
                match guest.code.is_some() {
                    true => Ok(Self::new(guest)),
                    false => Err(error),
                }
            }
            result => result,
        }
    }

    /// Reads an image that has a note, with its symbols and its unwind information. `None` for other images.
    ///
    /// # Errors
    /// The note is damaged.
    pub fn from_noted_image(image: &[u8]) -> Result<Option<Self>, IntrospectionError> {
        let note = OtherGuest::note_in(image)?;
        Ok(note.map(|note| {
            let guest = OtherGuest::from_image(note, image, Placement::Loaded);
            Self::new(guest)
        }))
    }

    /// Reads a Linux kernel file, a bzImage or an ELF vmlinux. Takes 0.1 to 0.7 s of processor time, mainly to unpack
    /// the kernel.
    ///
    /// # Errors
    /// The file isn't a Linux kernel, or is damaged.
    pub fn from_kernel_image(file: &[u8]) -> Result<Self, IntrospectionError> {
        Self::from_kernel_image_with(file, &BuildFiles::default())
    }

    /// As [`Self::from_kernel_image`], with what else the kernel's build has left behind.
    ///
    /// # Errors
    /// The file isn't a Linux kernel, or is damaged, or the other files are those of another kernel.
    pub fn from_kernel_image_with(
        file: &[u8],
        others: &BuildFiles,
    ) -> Result<Self, IntrospectionError> {
        Ok(Self::new(LinuxKnowledge::from_image_with(file, others)?))
    }

    /// Finds out from guest memory alone which Linux kernel runs, and where it is. `registers` are those of any vCPU,
    /// in kernel or user mode. Copies the kernel's image, some 60 MB and at most 256 MiB, and takes 0.1 to 0.4 s of
    /// processor time. The guest may run meanwhile.
    ///
    /// Symbols get link-time addresses, as from the kernel's file, if the kernel was linked to the usual address.
    ///
    /// # Errors
    /// [`IntrospectionError::NoKernelYet`] while the vCPU is in firmware or a boot loader; a later call may find a
    /// kernel. [`IntrospectionError::OtherKernel`] if it runs a kernel that isn't Linux.
    pub fn from_memory<M: PhysicalMemory>(
        memory: &M,
        registers: &Registers,
    ) -> Result<Self, IntrospectionError> {
        Self::from_memory_with(memory, registers, &BuildFiles::default())
    }

    /// As [`Self::from_memory`], with what the kernel's build has left behind.
    ///
    /// # Errors
    /// As for [`Self::from_memory`], or the files are those of another kernel.
    pub fn from_memory_with<M: PhysicalMemory>(
        memory: &M,
        registers: &Registers,
        others: &BuildFiles,
    ) -> Result<Self, IntrospectionError> {
        Ok(Self::new(LinuxKnowledge::from_memory(
            memory, registers, others,
        )?))
    }

    /// The knowledge that an argument of `--pid-at` gives: `BASE:OFFSET[,OFFSET...]:WIDTH`, such as `gs:0x10,0x8:4`. With a variable's name as the base,
    /// the image has to be given by [`GuestKnowledge::with_image`].
    ///
    /// # Errors
    /// The value is malformed.
    pub fn from_pid_at(value: &str) -> Result<Self, PidAtError> {
        let pid_at = PidAt::parse(value)?;
        let note = GuestNote {
            pid: pid_at.location(),
            ..GuestNote::default()
        };
        Ok(Self::new(OtherGuest {
            named_pid: note.pid.is_none().then_some(pid_at),
            note,
            code: None,
        }))
    }

    /// The same knowledge of [`GuestKnowledge::from_pid_at`], and of the code in `image`, if that is an ELF file with symbols, as for
    /// [`GuestKnowledge::from_running_image`]: the file may be that of a loader, which starts another one. Other knowledge stays as it is.
    ///
    /// # Errors
    /// The image doesn't have the variable that is the pid's base.
    pub fn with_image(self, image: &[u8]) -> Result<Self, PidAtError> {
        match self.into_guest() {
            Some(Guest::Other(guest)) if guest.has_processes() && guest.code.is_none() => {
                let mut code = ImageCode::from_elf(image, Placement::Unproven);
                if let Some(pid_at) = &guest.named_pid {
                    let unknown = || pid_at.unknown_base();
                    code = Some(code.ok_or_else(unknown)?.with_pid(pid_at)?);
                }
                Ok(Self::new(OtherGuest { code, ..*guest }))
            }
            guest => Ok(guest.map_or_else(Self::pending, Self::new::<Guest>)),
        }
    }

    /// Looks whether a vCPU with `registers` is in the code of the guest's image, and where that runs, if this isn't known yet. Only
    /// for guests that aren't Linux: [`LinuxKnowledge::locate`] does it for the others.
    pub fn locate_image<M: PhysicalMemory>(&self, memory: &M, registers: &Registers) {
        if let Guest::Other(other) = self.guest() {
            other.locate(memory, registers);
        }
    }

    /// No knowledge, neither now nor later.
    pub fn unknown() -> Self {
        Self::new(OtherGuest::UNKNOWN)
    }

    /// No knowledge until [`GuestKnowledge::complete`] is called.
    pub fn pending() -> Self {
        Self::default()
    }

    /// Completes pending knowledge with `found`. Only the first call has an effect.
    pub fn complete(&self, found: Self) {
        if let Some(guest) = self.restricted(found) {
            // Existing knowledge isn't replaced, because vCPUs may have built on it.
            let _already = self.guests[0].set(guest);
        }
    }

    /// Replaces the knowledge of a Linux kernel that has ended, and was forgotten by [`LinuxKnowledge::forget_running`], with what was `found` of the
    /// kernel that runs in its place. What was borrowed before stays as it is. Only one thread may call this.
    ///
    /// False, without an effect, if the guest isn't Linux, or has run 16 kernels already.
    pub fn succeed(&self, found: Self) -> bool {
        let place = self.current.load(Ordering::Relaxed) + 1;
        let Some((former, next)) = self.linux().zip(self.guests.get(place)) else {
            return false;
        };
        let Some(Guest::Linux(linux)) = self.restricted(found) else {
            return false;
        };
        linux.modules().follow_those_of(former.modules());
        if next.set(Guest::Linux(linux)).is_err() {
            return false;
        }
        self.current.store(place, Ordering::Release);
        former.modules().end();
        true
    }

    fn into_guest(self) -> Option<Guest> {
        let current = self.current.into_inner();
        let [first, ..] = self.guests;
        (current == 0).then(|| first.into_inner())?
    }

    /// The same knowledge, without the command lines of processes among their labels, and whatever [completes](Self::complete) or
    /// [succeeds](Self::succeed) it.
    #[must_use]
    pub fn without_arguments(self) -> Self {
        let restricted = Self {
            leaves_out_arguments: true,
            ..Self::default()
        };
        restricted.complete(self);
        restricted
    }

    /// What was `found`, without what this knowledge leaves out.
    fn restricted(&self, found: Self) -> Option<Guest> {
        let mut guest = found.into_guest()?;
        if let Guest::Linux(linux) = &mut guest
            && self.leaves_out_arguments
        {
            linux.leave_out_arguments();
        }
        Some(guest)
    }

    fn new<G: Into<Guest>>(guest: G) -> Self {
        let found = Self::default();
        let _first = found.guests[0].set(guest.into());
        found
    }

    /// What is known of the present guest, once that is known.
    fn known(&self) -> Option<&Guest> {
        self.guests.get(self.current.load(Ordering::Acquire))?.get()
    }

    /// What is known of the firmware, while the guest's kernel is still looked for in its memory.
    pub fn firmware(&self) -> &Firmware {
        &self.firmware
    }

    pub(super) fn guest(&self) -> &Guest {
        static PENDING: LazyLock<Guest> = LazyLock::new(|| OtherGuest::UNKNOWN.into());
        self.known().unwrap_or_else(|| &PENDING)
    }

    /// A description of how processes are identified.
    pub fn describe(&self) -> String {
        match self.known() {
            None => "not known yet: the guest's kernel is still being read".to_owned(),
            Some(Guest::Linux(linux)) => match linux.slide() {
                Some(slide) => format!("Linux {}, slide {slide:#x}", linux.release()),
                None => format!("Linux {}, not found in memory yet", linux.release()),
            },
            Some(Guest::Other(other)) => other.describe(),
        }
    }

    /// The knowledge of a Linux guest; `None` for other guests and while knowledge is pending.
    pub fn linux(&self) -> Option<&LinuxKnowledge> {
        match self.guest() {
            Guest::Linux(linux) => Some(linux),
            Guest::Other(_) => None,
        }
    }

    /// The functions of the guest's kernel at their run-time addresses, in the form of `/proc/kallsyms`: lines of
    /// address, type letter and name, sorted by address. A line `ADDRESS ? [end]` ends a function that isn't followed by another one.
    /// Functions of modules are in [`Modules`](super::Modules). `None` while the image or the slide is unknown, and for a guest without symbols.
    pub fn kallsyms(&self) -> Option<String> {
        let (symbols, range, slide) = match self.guest() {
            Guest::Linux(linux) => (linux.symbols(), linux.image(), linux.slide()?),
            Guest::Other(other) => {
                let code = other.code.as_ref()?;
                (code.symbols(), 0..u64::MAX, code.placed()?.slide)
            }
        };
        let mut text = String::new();
        for (address, kind, name) in symbols.lines(range.end) {
            // The slide applies only to addresses in the image, whose last address is an end.
            if address >= range.start {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{:016x} {kind} {name}", address.wrapping_add(slide));
            }
        }
        (!text.is_empty()).then_some(text)
    }

    /// True while the kind of the guest is unknown.
    pub fn is_pending(&self) -> bool {
        self.known().is_none()
    }

    /// True for a Linux guest, and while the guest can still turn out to be one.
    pub fn may_be_linux(&self) -> bool {
        self.is_pending() || self.linux().is_some()
    }

    /// False for a guest whose processes are unknown, or not known yet.
    pub fn tells_processes(&self) -> bool {
        match self.guest() {
            Guest::Linux(_) => true,
            Guest::Other(other) => other.has_processes(),
        }
    }

    /// True for a Linux guest whose tasks can all be found, and while the guest can still turn out to be one.
    pub fn may_list_tasks(&self) -> bool {
        self.is_pending() || self.linux().is_some_and(LinuxKnowledge::has_task_list)
    }

    /// True for a guest whose kernel or image is known, and not yet where that runs.
    pub fn is_unlocated(&self) -> bool {
        match self.guest() {
            Guest::Linux(linux) => linux.slide().is_none(),
            Guest::Other(other) => other.is_unlocated(),
        }
    }
}

#[cfg(test)]
mod tests;
