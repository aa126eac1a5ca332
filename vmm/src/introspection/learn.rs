//! What kind of guest an image is.

use kvmprof_abi::note::{self, TYPE_LOCATIONS, parse_note};

use super::{Base, Chain, GuestKnowledge, GuestNote, IntrospectionError, notes};

impl GuestKnowledge {
    /// Learns from whatever image the VMM loads: its own note if it has one, else what a Linux
    /// kernel tells. Of any other ELF file nothing is known.
    ///
    /// # Errors
    /// A Linux kernel that lacks kallsyms or BTF, and damaged images and notes.
    pub fn of_image(image: &[u8]) -> Result<Self, IntrospectionError> {
        let locations = notes(image, note::OWNER.as_bytes())
            .into_iter()
            .find(|(kind, _)| *kind == TYPE_LOCATIONS);
        if let Some((_, descriptor)) = locations {
            let note = parse_note(descriptor).map_err(|_| IntrospectionError::Note("unreadable"))?;
            return Ok(Self::from_note(chains(&note)));
        }
        match Self::from_kernel_image(image) {
            Err(IntrospectionError::NotAKernel) => Ok(Self::unknown()),
            result => result,
        }
    }
}

fn chains(note: &note::GuestNote) -> GuestNote {
    let chain = |location: &Option<note::Location>| {
        let location = location.as_ref()?;
        let base = match location.base {
            note::Base::Absolute => Base::Absolute,
            note::Base::Gs => Base::Gs,
        };
        Chain::new(base, location.offsets(), location.width.into())
    };
    GuestNote {
        pid: chain(&note.pid),
        tid: chain(&note.tid),
        interrupt_nesting: chain(&note.interrupt_nesting),
        process_group: chain(&note.process_group),
        comm: chain(&note.comm),
    }
}
