//! What the program puts into the ring.

use kvmprof_introspection::ProcessPlaces;
use kvmprof_introspection::bytes::{array_at, u64_at};

/// Where in a record is when it was made, in ns of CLOCK_MONOTONIC; 8 bytes, as each of the following.
pub const TIME: usize = 0;
/// The guest's RIP at its last exit.
pub const RIP: usize = 8;
/// KVM's copy of CR3.
pub const CR3: usize = 16;
/// The privilege level at the last exit.
pub const CPL: usize = 24;
/// `KVM_MP_STATE_*`.
pub const MP_STATE: usize = 32;
/// `kvm_vcpu_arch.regs_avail`: which registers are valid.
pub const AVAILABLE: usize = 40;
/// What the record has: [`LOADED`], [`OWN`], [`FIRST_VALUE`].
pub const FLAGS: usize = 48;
/// The values, [`VALUE`] bytes for each.
pub const VALUES: usize = 56;
/// Bytes of a value's place.
pub const VALUE: usize = 16;
/// Bytes of a record.
pub const RECORD_BYTES: usize = VALUES + VALUE * ProcessPlaces::MAX;

/// A flag: the vCPU is loaded by the thread.
pub const LOADED: i32 = 1;
/// A flag: the vCPU is the guest's.
pub const OWN: i32 = 2;
/// A flag: the first value was read. The next values' follow.
pub const FIRST_VALUE: i32 = 1 << 8;

/// The bit of RIP in `regs_avail`.
const RIP_AVAILABLE: u64 = 1 << super::layout::RIP;

/// One record. All of it is of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record([u8; RECORD_BYTES]);

impl Record {
    /// That with these bytes; `None` if they are too few. More may follow.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self(*bytes.first_chunk()?))
    }

    fn u64(&self, offset: usize) -> u64 {
        u64_at(&self.0, offset).unwrap_or_default()
    }

    fn has(&self, flag: i32) -> bool {
        self.u64(FLAGS) & u64::from(flag.cast_unsigned()) != 0
    }

    /// When, in ns of CLOCK_MONOTONIC.
    pub fn time(&self) -> u64 {
        self.u64(TIME)
    }

    /// Whether the vCPU still is the guest's. If it isn't the record says nothing else.
    pub fn is_own(&self) -> bool {
        self.has(OWN)
    }

    /// Whether the thread was in KVM with the vCPU, be it in the guest or in the host's kernel on its behalf.
    pub fn is_loaded(&self) -> bool {
        self.has(LOADED)
    }

    /// The guest's program counter at its last exit; `None` where the host's kernel doesn't have it in memory.
    pub fn rip(&self) -> Option<u64> {
        (self.u64(AVAILABLE) & RIP_AVAILABLE != 0).then(|| self.u64(RIP))
    }

    /// CR3 as KVM has it in memory: on SVM with nested paging that of an earlier exit.
    pub fn cr3(&self) -> u64 {
        self.u64(CR3)
    }

    /// The privilege level at the last exit, where [`super::SamplingHost::knows_privilege`].
    pub fn cpl(&self) -> u8 {
        self.u64(CPL).to_le_bytes()[0] & 3
    }

    /// `KVM_MP_STATE_*` (`include/uapi/linux/kvm.h`).
    pub fn mp_state(&self) -> u32 {
        let [a, b, c, d, ..] = self.u64(MP_STATE).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The value with this index; the bytes behind its width are 0. `None` if it couldn't be read.
    pub fn value(&self, index: usize) -> Option<[u8; VALUE]> {
        let flag = u32::try_from(index)
            .ok()
            .and_then(|index| FIRST_VALUE.checked_shl(index))?;
        if index >= ProcessPlaces::MAX || !self.has(flag) {
            return None;
        }
        array_at(&self.0, VALUES + index * VALUE)
    }
}
