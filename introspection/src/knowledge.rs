//! The knowledge about a guest: from its image before it runs, or from its memory.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::PhysicalMemory;
use kvmprof_abi::note::{self, GuestNote, TYPE_LOCATIONS, parse_note};

use super::image::{Line, Vmlinux};
use super::linux::{LinuxKnowledge, ListedProcess, Modules};
use super::noted::{self, PidAtError};
use super::unwind::ImageUnwinder;
use super::{IntrospectionError, Registers, Symbols, notes};

/// The knowledge about a guest, shared by all its vCPUs.
///
/// The guest can run before the knowledge is complete: [`GuestKnowledge::pending`] knows nothing until
/// [`GuestKnowledge::complete`] is called.
#[derive(Debug, Default)]
pub struct GuestKnowledge {
    guest: OnceLock<Guest>,
}

#[derive(Debug)]
pub(super) enum Guest {
    Linux(Box<LinuxKnowledge>),
    /// A guest that isn't Linux: its note, and its image's code if there is an image.
    Note(GuestNote, Option<ImageCode>),
    /// Only the code of the guest's image, if there is one.
    Unknown(Option<ImageCode>),
}

/// The code of a guest that isn't Linux, from its ELF image. Such a guest runs at its link-time addresses.
#[derive(Debug)]
pub(super) struct ImageCode {
    symbols: Symbols,
    unwinder: ImageUnwinder,
}

impl ImageCode {
    /// Returns `None` if the file isn't an ELF file, or was stripped.
    fn from_image(image: &[u8]) -> Option<Self> {
        let file = Vmlinux::parse(image).ok()?;
        let symbols = Symbols::from_table(file.symbols(), file.code_ends());
        (!symbols.is_empty()).then(|| Self {
            symbols,
            unwinder: ImageUnwinder::from_elf(image),
        })
    }
}

impl GuestKnowledge {
    /// Reads the image that the VMM loads: its note if it has one, otherwise as a Linux kernel. Any other ELF file
    /// gives no knowledge.
    ///
    /// # Errors
    /// The image or its note is damaged.
    pub fn from_image(image: &[u8]) -> Result<Self, IntrospectionError> {
        if let Some(noted) = Self::from_noted_image(image)? {
            return Ok(noted);
        }
        match Self::from_kernel_image(image) {
            Err(IntrospectionError::NotAKernel) => {
                Ok(Self::unknown().with_code(ImageCode::from_image(image)))
            }
            result => result,
        }
    }

    /// Reads an image that has a note, with its symbols and its unwind information. `None` for other images.
    ///
    /// # Errors
    /// The note is damaged.
    pub fn from_noted_image(image: &[u8]) -> Result<Option<Self>, IntrospectionError> {
        let locations = notes(image, note::OWNER.as_bytes())
            .into_iter()
            .find(|(kind, _)| *kind == TYPE_LOCATIONS);
        let Some((_, descriptor)) = locations else {
            return Ok(None);
        };
        let knowledge =
            Self::from_note(parse_note(descriptor)?).with_code(ImageCode::from_image(image));
        Ok(Some(knowledge))
    }

    /// Reads a Linux kernel file, a bzImage or an ELF vmlinux. Takes 0.1 to 0.7 s of processor time, mainly to unpack
    /// the kernel.
    ///
    /// # Errors
    /// The file isn't a Linux kernel, or is damaged.
    pub fn from_kernel_image(file: &[u8]) -> Result<Self, IntrospectionError> {
        Ok(Self::new(Guest::Linux(Box::new(
            LinuxKnowledge::from_image(file)?,
        ))))
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
        Ok(Self::new(Guest::Linux(Box::new(
            LinuxKnowledge::from_memory(memory, registers)?,
        ))))
    }

    /// The knowledge that a guest's note gives.
    pub fn from_note(note: GuestNote) -> Self {
        Self::new(Guest::Note(note, None))
    }

    /// The knowledge that an argument of `--pid-at` gives: `BASE:OFFSET[,OFFSET...]:WIDTH`, such as `gs:0x10,0x8:4`.
    ///
    /// # Errors
    /// The value is malformed.
    pub fn from_pid_at(value: &str) -> Result<Self, PidAtError> {
        let pid = noted::parse(value)?;
        Ok(Self::from_note(GuestNote {
            pid: Some(pid),
            ..GuestNote::default()
        }))
    }

    /// No knowledge, neither now nor later.
    pub fn unknown() -> Self {
        Self::new(Guest::Unknown(None))
    }

    /// Adds the `code` of a guest that isn't Linux.
    #[must_use]
    fn with_code(self, code: Option<ImageCode>) -> Self {
        match self.guest.into_inner() {
            Some(Guest::Note(note, _)) => Self::new(Guest::Note(note, code)),
            Some(Guest::Unknown(_)) => Self::new(Guest::Unknown(code)),
            Some(linux) => Self::new(linux),
            None => Self::default(),
        }
    }

    /// No knowledge until [`GuestKnowledge::complete`] is called.
    pub fn pending() -> Self {
        Self::default()
    }

    /// Completes pending knowledge with `found`. Only the first call has an effect.
    pub fn complete(&self, found: Self) {
        if let Some(guest) = found.guest.into_inner() {
            // Existing knowledge isn't replaced, because vCPUs may have built on it.
            let _already = self.guest.set(guest);
        }
    }

    fn new(guest: Guest) -> Self {
        Self {
            guest: OnceLock::from(guest),
        }
    }

    pub(super) fn guest(&self) -> &Guest {
        self.guest.get().unwrap_or(&Guest::Unknown(None))
    }

    /// A description of how processes are identified.
    pub fn describe(&self) -> String {
        match self.guest.get() {
            None => "not known yet: the guest's kernel is still being read".to_owned(),
            Some(Guest::Linux(linux)) => match linux.slide() {
                Some(slide) => format!("Linux {}, slide {slide:#x}", linux.release()),
                None => format!("Linux {}, not found in memory yet", linux.release()),
            },
            Some(Guest::Note(..)) => "by the guest's note or --pid-at".to_owned(),
            Some(Guest::Unknown(_)) => "not at all".to_owned(),
        }
    }

    /// What isn't known of a Linux guest's kernel, and why: a sentence each.
    pub fn gaps(&self) -> &[String] {
        self.linux().map_or(&[], LinuxKnowledge::gaps)
    }

    /// The knowledge of a Linux guest; `None` for other guests and while knowledge is pending.
    pub fn linux(&self) -> Option<&LinuxKnowledge> {
        match self.guest() {
            Guest::Linux(linux) => Some(linux),
            Guest::Note(..) | Guest::Unknown(_) => None,
        }
    }

    /// The modules of a Linux guest's kernel.
    pub fn modules(&self) -> Option<&Modules> {
        self.linux().map(LinuxKnowledge::modules)
    }

    /// Reads a Linux guest's modules on request, until `stopping` is set and [`Modules::wake`] is called. Needs a
    /// thread of its own. Returns at once for other guests. `clock` tells the time of samples, in ns.
    pub fn serve_modules<M: PhysicalMemory>(
        &self,
        memory: &M,
        stopping: &AtomicBool,
        clock: fn() -> u64,
    ) {
        if let Some(linux) = self.linux() {
            linux.modules().serve(linux, memory, stopping, clock);
        }
    }

    /// The symbols of a Linux guest's kernel, by link-time address.
    pub fn symbols(&self) -> Option<&Symbols> {
        self.linux().map(LinuxKnowledge::symbols)
    }

    /// The slide of a Linux guest's kernel, in bytes, once it is known.
    pub fn slide(&self) -> Option<u64> {
        self.linux()?.slide()
    }

    /// The functions of the guest's kernel at their run-time addresses, in the form of `/proc/kallsyms`: lines of
    /// address, type letter and name, sorted by address. A line `ADDRESS ? [end]` ends a function that isn't followed by another one.
    /// Functions of modules are in [`Modules`]. `None` while the image or the slide is unknown, and for a guest without symbols.
    pub fn kallsyms(&self) -> Option<String> {
        let (symbols, range, slide) = match self.guest() {
            Guest::Linux(linux) => (linux.symbols(), linux.image(), linux.slide()?),
            Guest::Note(_, code) | Guest::Unknown(code) => {
                (&code.as_ref()?.symbols, 0..u64::MAX, 0)
            }
        };
        let mut text = String::new();
        for Line {
            address,
            kind,
            name,
        } in symbols.lines(range.end)
        {
            // The slide applies only to addresses in the image, whose last address is an end.
            if address >= range.start {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{:016x} {kind} {name}", address.wrapping_add(slide));
            }
        }
        (!text.is_empty()).then_some(text)
    }

    /// A line in the form of `/proc/kallsyms` for the guest's address `address`, which is in a variable of the kernel's
    /// image. The name in it is `VARIABLE`, or `VARIABLE+0xOFFSET`. `None` if no variable is there, or that is unknown.
    pub fn variable(&self, address: u64) -> Option<String> {
        let linux = self.linux()?;
        let linked = address.wrapping_sub(linux.slide()?);
        let (name, offset) = (linux.symbols()).variable_at(linked)?;
        let is_sound =
            linux.image().contains(&linked) && name.bytes().all(|byte| byte.is_ascii_graphic());
        let place = match offset {
            0 => name.to_owned(),
            _ => format!("{name}+{offset:#x}"),
        };
        is_sound.then(|| format!("{address:016x} d {place}\n"))
    }

    /// Unwinds the stacks of a guest that isn't Linux. `None` for Linux, and for guests whose code is unknown.
    pub(super) fn image_unwinder(&self) -> Option<&ImageUnwinder> {
        match self.guest() {
            Guest::Linux(_) => None,
            Guest::Note(_, code) | Guest::Unknown(code) => code.as_ref().map(|code| &code.unwinder),
        }
    }

    /// True while the kind of the guest is unknown.
    pub fn is_pending(&self) -> bool {
        self.guest.get().is_none()
    }

    /// True for a Linux guest, and while the guest can still turn out to be one.
    pub fn may_be_linux(&self) -> bool {
        self.is_pending() || self.linux().is_some()
    }

    /// False for a guest whose processes are unknown, or not known yet.
    pub fn tells_processes(&self) -> bool {
        !matches!(self.guest(), Guest::Unknown(_))
    }

    /// True for a Linux guest whose tasks can all be found, and while the guest can still turn out to be one.
    pub fn may_list_tasks(&self) -> bool {
        self.is_pending() || self.linux().is_some_and(LinuxKnowledge::has_task_list)
    }

    /// True for a Linux guest whose slide isn't known yet.
    pub fn is_unlocated(&self) -> bool {
        self.linux().is_some_and(|linux| linux.slide().is_none())
    }

    /// Finds the kernel's slide from one vCPU's registers, if it isn't known yet. Every sample does so too; this
    /// function is for a guest without samples.
    pub fn locate<M: PhysicalMemory>(&self, memory: &M, registers: &Registers) {
        if let Some(linux) = self.linux() {
            linux.locate(memory, registers);
        }
    }

    /// Finds the slide as [`GuestKnowledge::locate`] does. If that fails, compares the kernel of the file with the
    /// running kernel, for which it copies the running kernel's image, some 60 MB.
    ///
    /// # Errors
    /// [`IntrospectionError::OtherBuild`] if the running kernel isn't the file's. [`IntrospectionError::NoKernelYet`]
    /// and [`IntrospectionError::OtherKernel`] as for [`GuestKnowledge::from_memory`].
    pub fn locate_or_compare<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
    ) -> Result<(), IntrospectionError> {
        match self.linux() {
            Some(linux) if linux.locate(memory, registers).is_none() => {
                linux.compare_with_running(memory, registers)
            }
            _ => Ok(()),
        }
    }

    /// Whether the guest's kernel has a driver for ACPI's power button. `None` if the guest isn't Linux. A driver in a
    /// module is found only after the kernel's slide is known.
    pub fn hears_power_button<M: PhysicalMemory>(&self, memory: &M) -> Option<bool> {
        if self.is_pending() {
            return Some(false);
        }
        Some(self.linux()?.hears_power_button(memory))
    }

    /// All processes of a Linux guest, each behind the one that has forked it; none for other guests. `None` if they are unknown: until the
    /// kernel's slide is known, and if there are more than 4096. Takes up to some ms for these. The guest may run meanwhile, and processes
    /// that are started or end meanwhile may be missing.
    pub fn list_processes<M: PhysicalMemory>(&self, memory: &M) -> Option<Vec<ListedProcess>> {
        match self.guest.get()? {
            Guest::Linux(linux) => linux.list_processes(memory),
            Guest::Note(..) | Guest::Unknown(_) => Some(Vec::new()),
        }
    }

    /// Forgets the kernel's slide and its modules, for a restart of the guest. Keeps what comes from the guest's image.
    /// No vCPU may run meanwhile, or use earlier results afterwards.
    pub fn forget_running(&self) {
        if let Some(linux) = self.linux() {
            linux.forget_running();
        }
    }

    /// Whether a Linux guest's kernel has panicked: its `panic_cpu` names a CPU. Distinguishes a panic's reset from a
    /// reboot. `None` if the guest isn't Linux or the kernel's slide is unknown.
    pub fn has_panicked<M: PhysicalMemory>(&self, memory: &M) -> Option<bool> {
        self.linux()?.has_panicked(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::kernel::HOT;
    use crate::testing::linux_guest::LinuxGuest;
    use crate::testing::modules::TestModule;

    #[test]
    fn pending_knowledge_is_completed_once() {
        let knowledge = GuestKnowledge::pending();
        assert!(matches!(knowledge.guest(), Guest::Unknown(_)));
        knowledge.complete(GuestKnowledge::from_pid_at("gs:8:4").unwrap());
        knowledge.complete(GuestKnowledge::unknown());
        assert!(matches!(
            knowledge.guest(),
            Guest::Note(
                GuestNote {
                    pid: Some(_),
                    tid: None,
                    ..
                },
                None
            )
        ));
        assert!(knowledge.symbols().is_none());
        assert_eq!(knowledge.slide(), None);
    }

    #[test]
    fn a_restarted_guest_is_searched_again() {
        let guest = LinuxGuest::new(HOT);
        let knowledge = &guest.knowledge;
        knowledge.locate(&guest.memory, &guest.user());
        let slide = knowledge.slide();
        guest.load(&[TestModule::new("first", 2)]);
        guest.read_modules();
        let modules = || knowledge.modules().unwrap().loaded().functions();
        assert!(slide.is_some() && !modules().is_empty());
        let before = knowledge.modules().unwrap().generation();
        knowledge.forget_running();
        assert!(knowledge.is_unlocated() && knowledge.kallsyms().is_none());
        assert!(modules().is_empty());
        assert!(knowledge.modules().unwrap().generation() > before);
        // Functions that were returned stay valid, because recordings continue.
        assert!(knowledge.modules().unwrap().functions_after(0).is_some());
        knowledge.locate(&guest.memory, &guest.user());
        assert_eq!(knowledge.slide(), slide);
        guest.read_modules();
        assert!(!modules().is_empty());
    }

    #[test]
    fn the_button_driver_is_known_by_its_module() {
        let guest = LinuxGuest::new(HOT);
        let hears = || guest.knowledge.hears_power_button(&guest.memory);
        guest.load(&[TestModule::new("first", 2), TestModule::new("button", 1)]);
        assert_eq!(hears(), Some(false), "it isn't known where the list is");
        guest.knowledge.locate(&guest.memory, &guest.user());
        assert_eq!(hears(), Some(true));
        guest.load(&[TestModule::new("buttons", 1)]);
        assert_eq!(hears(), Some(false));
        let pending = GuestKnowledge::pending();
        assert_eq!(pending.hears_power_button(&guest.memory), Some(false));
        let other = GuestKnowledge::unknown();
        assert_eq!(other.hears_power_button(&guest.memory), None);
    }

    #[test]
    fn refuses_files_that_are_no_kernel() {
        let error = GuestKnowledge::from_kernel_image(b"#!/bin/sh\n").unwrap_err();
        assert!(matches!(error, IntrospectionError::NotAKernel));
    }

    #[test]
    fn a_guest_with_a_note_has_the_symbols_of_its_image() {
        let knowledge = GuestKnowledge::from_image(kvmprof_demo_guest::ELF).unwrap();
        let text = knowledge.kallsyms().unwrap();
        let compute = kvmprof_demo_guest::symbol("compute").unwrap().address;
        assert!(
            text.contains(&format!("{compute:016x} t compute\n")),
            "{text}"
        );
        assert!(
            !text.contains("kvmprof_truth"),
            "data is none of the functions"
        );
    }

    #[test]
    fn only_an_image_with_a_note_is_identified_by_it() {
        let noted = GuestKnowledge::from_noted_image(kvmprof_demo_guest::ELF).unwrap();
        assert!(!noted.unwrap().is_pending());
        for other in [b"".as_slice(), b"\x7fELF", b"HdrS"] {
            assert!(GuestKnowledge::from_noted_image(other).unwrap().is_none());
        }
    }

    #[test]
    fn a_guest_without_an_image_has_no_symbols() {
        assert_eq!(GuestKnowledge::pending().kallsyms(), None);
        assert_eq!(GuestKnowledge::unknown().kallsyms(), None);
        let by_option = GuestKnowledge::from_pid_at("gs:8:4").unwrap();
        assert_eq!(by_option.kallsyms(), None);
    }
}
