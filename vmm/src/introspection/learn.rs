//! What kind of guest an image is.

use kvmprof_abi::note::{self, TYPE_LOCATIONS, parse_note};

use super::image::Vmlinux;
use super::{GuestKnowledge, IntrospectionError, Symbols, notes};

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
