//! A guest that isn't Linux: its processes by a note or an option, and its code by its image.

use kvmprof_abi::note::{self, GuestNote, TYPE_LOCATIONS, parse_note};

use super::image_code::{ImageCode, PlacedCode, Placement};
use super::noted::PidAt;
use super::{IntrospectionError, Registers, notes};
use crate::PhysicalMemory;

/// A guest that isn't Linux, or that nothing is known of.
#[derive(Debug)]
pub struct OtherGuest {
    /// The places of its processes' identities; empty if they are unknown.
    pub note: GuestNote,
    /// The place of the pid by the name of a variable, whose address the image tells. `note` is empty then.
    pub named_pid: Option<PidAt>,
    /// The code of its image, if there is one that isn't stripped.
    pub code: Option<ImageCode>,
}

impl OtherGuest {
    /// Nothing is known of it.
    pub const UNKNOWN: Self = Self {
        note: GuestNote {
            pid: None,
            interrupt_nesting: None,
            process_group: None,
            comm: None,
            tid: None,
        },
        named_pid: None,
        code: None,
    };

    /// A guest with this `note`, and with the code of `image`.
    pub fn from_image(note: GuestNote, image: &[u8], placement: Placement) -> Self {
        Self {
            note,
            named_pid: None,
            code: ImageCode::from_elf(image, placement),
        }
    }

    /// The places in the `kvmprof` note of `image`, if it has one.
    pub fn note_in(image: &[u8]) -> Result<Option<GuestNote>, IntrospectionError> {
        let locations = notes(image, note::OWNER.as_bytes())
            .into_iter()
            .find(|(kind, _)| *kind == TYPE_LOCATIONS);
        let note = locations.map(|(_, descriptor)| parse_note(descriptor));
        Ok(note.transpose()?)
    }

    /// The places of its processes' identities: relative to a variable of its image, only once the image was seen to run.
    pub fn note(&self) -> &GuestNote {
        let by_name = self.placed().and_then(|placed| placed.note.as_ref());
        by_name.unwrap_or(&self.note)
    }

    /// Where its code runs, if that is known.
    pub fn placed(&self) -> Option<&PlacedCode> {
        self.code.as_ref()?.placed()
    }

    /// Looks where its code runs, unless that is known, by a vCPU with `registers`.
    pub fn locate<M: PhysicalMemory>(&self, memory: &M, registers: &Registers) {
        if let Some(code) = &self.code {
            code.locate(memory, registers);
        }
    }

    /// Whether its processes are known.
    pub fn has_processes(&self) -> bool {
        self.note != GuestNote::default() || self.named_pid.is_some()
    }

    /// Whether it isn't known yet where its code runs.
    pub fn is_unlocated(&self) -> bool {
        self.code.is_some() && self.placed().is_none()
    }

    /// How processes are identified.
    pub fn describe(&self) -> String {
        let processes = match self.has_processes() {
            true => "by the guest's note or --pid-at",
            false => "not at all",
        };
        match self.is_unlocated() {
            true => format!(
                "{processes}; no vCPU was seen in the image's code yet, so functions have no names"
            ),
            false => processes.to_owned(),
        }
    }
}
