//! What is known of a guest before it runs.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::PhysicalMemory;
use kvmprof_abi::note::{self, GuestNote, TYPE_LOCATIONS, parse_note};

use super::image::Vmlinux;
use super::linux::{LinuxKnowledge, Modules};
use super::noted::{self, PidAtError};
use super::{IntrospectionError, Registers, Symbols, notes};

/// What is known of a guest, shared by all its vCPUs.
///
/// It may be built while the guest already runs: [`GuestKnowledge::pending`] knows nothing until
/// [`GuestKnowledge::complete`] tells it.
#[derive(Debug, Default)]
pub struct GuestKnowledge {
    guest: OnceLock<Guest>,
}

#[derive(Debug)]
pub(super) enum Guest {
    Linux(Box<LinuxKnowledge>),
    /// Not Linux: what its note says, and the symbols of its image if that is at hand.
    Note(GuestNote, Option<Symbols>),
    /// Nothing but the symbols of its image, if that is at hand.
    Unknown(Option<Symbols>),
}

impl GuestKnowledge {
    /// Learns from whatever image the VMM loads: its own note if it has one, else what a Linux
    /// kernel tells. Of any other ELF file nothing is known.
    ///
    /// # Errors
    /// A Linux kernel that lacks kallsyms or BTF, and damaged images and notes.
    pub fn of_image(image: &[u8]) -> Result<Self, IntrospectionError> {
        if let Some(noted) = Self::of_noted_image(image)? {
            return Ok(noted);
        }
        match Self::from_kernel_image(image) {
            Err(IntrospectionError::NotAKernel) => Ok(Self::unknown().with_symbols(symbols(image))),
            result => result,
        }
    }

    /// Learns from an image with a note of its own, which takes less than a millisecond; `None` for others.
    ///
    /// # Errors
    /// A damaged note.
    pub fn of_noted_image(image: &[u8]) -> Result<Option<Self>, IntrospectionError> {
        let locations = notes(image, note::OWNER.as_bytes())
            .into_iter()
            .find(|(kind, _)| *kind == TYPE_LOCATIONS);
        let Some((_, descriptor)) = locations else {
            return Ok(None);
        };
        let knowledge = Self::from_note(parse_note(descriptor)?).with_symbols(symbols(image));
        Ok(Some(knowledge))
    }

    /// Learns from a whole Linux kernel file, a bzImage or an ELF vmlinux. Takes some 0.1 to 0.7 s
    /// of processor time, most of it to unpack the kernel.
    ///
    /// # Errors
    /// The file is no Linux kernel, is damaged, or lacks kallsyms or BTF.
    pub fn from_kernel_image(file: &[u8]) -> Result<Self, IntrospectionError> {
        Ok(Self::of(Guest::Linux(Box::new(
            LinuxKnowledge::from_image(file)?,
        ))))
    }

    /// Knows what a guest's own note says.
    pub fn from_note(note: GuestNote) -> Self {
        Self::of(Guest::Note(note, None))
    }

    /// Knows what `--pid-at` says: `BASE:OFFSET[,OFFSET...]:WIDTH`, such as `gs:0x10,0x8:4`.
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

    /// Knows nothing, for good.
    pub fn unknown() -> Self {
        Self::of(Guest::Unknown(None))
    }

    /// Knows `symbols` too, those of a guest that isn't Linux, by the addresses at which it runs.
    #[must_use]
    pub(super) fn with_symbols(self, symbols: Option<Symbols>) -> Self {
        match self.guest.into_inner() {
            Some(Guest::Note(note, _)) => Self::of(Guest::Note(note, symbols)),
            Some(Guest::Unknown(_)) => Self::of(Guest::Unknown(symbols)),
            Some(linux) => Self::of(linux),
            None => Self::default(),
        }
    }

    /// Knows nothing yet: [`GuestKnowledge::complete`] will be called.
    pub fn pending() -> Self {
        Self::default()
    }

    /// Tells pending knowledge what `learned` knows. Of several calls the first counts.
    pub fn complete(&self, learned: Self) {
        if let Some(guest) = learned.guest.into_inner() {
            // Knowledge that is there already stays: vCPUs may have built on it.
            let _already = self.guest.set(guest);
        }
    }

    fn of(guest: Guest) -> Self {
        Self {
            guest: OnceLock::from(guest),
        }
    }

    pub(super) fn guest(&self) -> &Guest {
        self.guest.get().unwrap_or(&Guest::Unknown(None))
    }

    /// How processes are told apart, in words.
    pub fn describe(&self) -> String {
        match self.guest.get() {
            None => "still learning from the image".to_owned(),
            Some(Guest::Linux(linux)) => match linux.slide() {
                Some(slide) => format!("Linux {}, slide {slide:#x}", linux.release()),
                None => format!("Linux {}, not found in memory yet", linux.release()),
            },
            Some(Guest::Note(..)) => "by the guest's note or --pid-at".to_owned(),
            Some(Guest::Unknown(_)) => "not at all".to_owned(),
        }
    }

    /// What is known of a Linux guest; `None` for other guests and while knowledge is pending.
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

    /// Learns of a Linux guest's modules whenever that is asked for, until `stopping` is set and [`Modules::wake`]
    /// called. For a thread of its own; of another guest there is nothing to learn.
    pub fn serve_modules<M: PhysicalMemory>(&self, memory: &M, stopping: &AtomicBool) {
        if let Some(linux) = self.linux() {
            linux.modules().serve(linux, memory, stopping);
        }
    }

    /// The symbols of a Linux guest's kernel, by link-time address.
    pub fn symbols(&self) -> Option<&Symbols> {
        self.linux().map(LinuxKnowledge::symbols)
    }

    /// How far above its link-time address a Linux guest's kernel runs, in bytes, once that is
    /// known.
    pub fn slide(&self) -> Option<u64> {
        self.linux()?.slide()
    }

    /// The functions of the guest's kernel at the addresses where they are, in the form of
    /// `/proc/kallsyms`: lines of address, type letter and name, by address. Those of a Linux
    /// kernel's modules aren't among them, but in [`Modules`]. `None` while the image or the slide isn't known, and for a guest
    /// without symbols.
    pub fn kallsyms(&self) -> Option<String> {
        let (symbols, range, slide) = match self.guest() {
            Guest::Linux(linux) => (linux.symbols(), linux.image(), linux.slide()?),
            Guest::Note(_, symbols) | Guest::Unknown(symbols) => {
                (symbols.as_ref()?, 0..u64::MAX, 0)
            }
        };
        let mut text = String::new();
        for (address, kind, name) in symbols.functions() {
            // What isn't in the image isn't moved with it, and a name must not end its line.
            if range.contains(&address) && name.bytes().all(|byte| byte.is_ascii_graphic()) {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{:016x} {kind} {name}", address.wrapping_add(slide));
            }
        }
        (!text.is_empty()).then_some(text)
    }

    /// True until it is known what kind of guest this is.
    pub fn is_pending(&self) -> bool {
        self.guest.get().is_none()
    }

    /// True while where the kernel is could be found out: it is a Linux guest's, and
    /// [`GuestKnowledge::locate`] has not succeeded yet.
    pub fn is_unlocated(&self) -> bool {
        self.linux().is_some_and(|linux| linux.slide().is_none())
    }

    /// Finds out where the kernel is, if that isn't known yet, from one vCPU's registers. Any
    /// sample does that by itself; this is for a guest of which there has been none.
    pub fn locate<M: PhysicalMemory>(&self, memory: &M, registers: &Registers) {
        if let Some(linux) = self.linux() {
            linux.locate(memory, registers);
        }
    }

    /// Whether a Linux guest's kernel has panicked, which is how a reset is told apart from a
    /// reboot: its `panic_cpu` names a CPU. `None` when that can't be known: the guest isn't Linux,
    /// or it isn't known where its kernel is.
    pub fn has_panicked<M: PhysicalMemory>(&self, memory: &M) -> Option<bool> {
        self.linux()?.has_panicked(memory)
    }
}

/// The symbols of an ELF file that wasn't stripped. A guest of this kind runs where it was linked to.
fn symbols(image: &[u8]) -> Option<Symbols> {
    let file = Vmlinux::parse(image).ok()?;
    let symbols = Symbols::from_elf(file.symbols());
    (!symbols.is_empty()).then_some(symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn refuses_what_is_no_kernel() {
        let error = GuestKnowledge::from_kernel_image(b"#!/bin/sh\n").unwrap_err();
        assert!(matches!(error, IntrospectionError::NotAKernel));
    }

    #[test]
    fn a_guest_with_a_note_has_the_symbols_of_its_image() {
        let knowledge = GuestKnowledge::of_image(kvmprof_demo_guest::ELF).unwrap();
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
    fn only_an_image_with_a_note_is_known_by_it() {
        let noted = GuestKnowledge::of_noted_image(kvmprof_demo_guest::ELF).unwrap();
        assert!(!noted.unwrap().is_pending());
        for other in [b"".as_slice(), b"\x7fELF", b"HdrS"] {
            assert!(GuestKnowledge::of_noted_image(other).unwrap().is_none());
        }
    }

    #[test]
    fn what_has_no_image_has_no_symbols() {
        assert_eq!(GuestKnowledge::pending().kallsyms(), None);
        assert_eq!(GuestKnowledge::unknown().kallsyms(), None);
        let by_option = GuestKnowledge::from_pid_at("gs:8:4").unwrap();
        assert_eq!(by_option.kallsyms(), None);
    }
}
