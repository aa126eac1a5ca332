//! What kind of guest an image is.

use kvmprof_abi::note::{self, TYPE_LOCATIONS, parse_note};

use super::{GuestKnowledge, IntrospectionError, notes};

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
            return Ok(Self::from_note(parse_note(descriptor)?));
        }
        match Self::from_kernel_image(image) {
            Err(IntrospectionError::NotAKernel) => Ok(Self::unknown()),
            result => result,
        }
    }
}
