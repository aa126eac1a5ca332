//! Faults of guest memory: the exits at which the host gives the guest a page, or a right to one.

/// What a fault of guest memory was, as far as the host proves it. The numbers are those of the recording's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultKind {
    /// None of the others is proven.
    #[default]
    Other = 0,
    /// KVM didn't have the page, and the host's kernel made one for it without a wait. It may have taken an earlier one away.
    FirstTouch = 1,
    /// KVM didn't have the page, and the host's kernel waited for it, but not, as far as that is proven, for a disk or a userfaultfd's handler: most often for another
    /// thread that has it read.
    Waited = 2,
    /// KVM didn't have the page, and the vCPU's thread had no fault of its own for it: most often the VMM had it already.
    Mapped = 3,
    /// A write to a page that KVM had for reads, of which the host's kernel made a copy: it was shared, or the page of zeros.
    WriteAfterShare = 4,
    /// A write to a page that KVM had for reads, in a slot of which it notes the pages that are written (`KVM_MEM_LOG_DIRTY_PAGES`), without a copy.
    DirtyLog = 5,
    /// There is no memory at the address, but a device, or nothing.
    Device = 6,
    /// KVM didn't have the page, and the host's kernel read it from swap.
    SwapIn = 7,
    /// KVM didn't have the page, and the host's kernel read it from a file.
    FileRead = 8,
    /// The handler of a userfaultfd was asked for the page, or for the right to write to it.
    Userfault = 9,
}

impl FaultKind {
    /// All kinds, by their numbers.
    pub const ALL: [Self; 10] = [
        Self::Other,
        Self::FirstTouch,
        Self::Waited,
        Self::Mapped,
        Self::WriteAfterShare,
        Self::DirtyLog,
        Self::Device,
        Self::SwapIn,
        Self::FileRead,
        Self::Userfault,
    ];

    /// The kind with this number; a later version's kind is another one.
    pub fn from_number(number: u8) -> Self {
        let known = Self::ALL.get(usize::from(number));
        known.copied().unwrap_or_default()
    }

    /// Its name in tables and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::FirstTouch => "first-touch",
            Self::Waited => "waited",
            Self::Mapped => "mapped",
            Self::WriteAfterShare => "write-after-share",
            Self::DirtyLog => "dirty-log",
            Self::Device => "device",
            Self::SwapIn => "swap-in",
            Self::FileRead => "file-read",
            Self::Userfault => "userfaultfd",
        }
    }
}

/// A fault of guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryFault {
    /// The guest-physical address.
    pub address: u64,
    /// The guest-physical address at which its memory slot begins; `None` for a device.
    pub slot: Option<u64>,
    /// What it was.
    pub kind: FaultKind,
    /// From the exit to the next entry, in ns.
    pub time: u64,
}

impl MemoryFault {
    /// The size of a page, in bytes.
    pub const PAGE: u64 = 4096;

    /// The guest-physical address of its page.
    pub fn page(&self) -> u64 {
        self.address & !(Self::PAGE - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_format() {
        for (number, kind) in (0..).zip(FaultKind::ALL) {
            assert_eq!((kind as u8, FaultKind::from_number(number)), (number, kind));
        }
        assert_eq!(FaultKind::from_number(10), FaultKind::Other);
        let fault = MemoryFault {
            address: 0x1_2345_6fff,
            ..MemoryFault::default()
        };
        assert_eq!(fault.page(), 0x1_2345_6000);
    }
}
