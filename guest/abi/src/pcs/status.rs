//! The result of `PCS_GETSTAT`.

use super::format::Format;
use crate::encoded::{Encoded, array};

/// The account of a consumer of ticks, such as an open pcs, from its own start. At every moment `ticks == recorded +
/// merged + ungathered + stolen + lost + pending + discarded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// All ticks since the start, of all vCPUs.
    pub ticks: u64,
    /// Ticks delivered as a record of their own.
    pub recorded: u64,
    /// Ticks delivered within a merged count.
    pub merged: u64,
    /// Ticks that weren't selected: those before the first `PROF_*`.
    pub ungathered: u64,
    /// Ticks on which the host didn't run the vCPU.
    pub stolen: u64,
    /// Ticks that the clock lost, and samples without a free buffer.
    pub lost: u64,
    /// Ticks in buffers and merged counts that haven't been read yet.
    pub pending: u64,
    /// Ticks discarded at close.
    pub discarded: u64,
}

/// Bytes in an encoded [`Ledger`].
pub(crate) const LEDGER_SIZE: usize = 64;

impl Ledger {
    /// All fields in their order, with their names: first the ticks, then their parts.
    pub const fn fields(&self) -> [(&'static str, u64); 8] {
        [
            ("ticks", self.ticks),
            ("recorded", self.recorded),
            ("merged", self.merged),
            ("ungathered", self.ungathered),
            ("stolen", self.stolen),
            ("lost", self.lost),
            ("pending", self.pending),
            ("discarded", self.discarded),
        ]
    }

    /// True when every tick is accounted for.
    pub fn balances(&self) -> bool {
        let [(_, ticks), parts @ ..] = self.fields();
        let sum = parts
            .into_iter()
            .try_fold(0_u64, |sum, (_, part)| sum.checked_add(part));
        sum == Some(ticks)
    }

    pub(crate) fn encode(&self) -> Encoded<LEDGER_SIZE> {
        let mut bytes = Encoded::new();
        for (_, field) in self.fields() {
            bytes.push(&field.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let field = |index: usize| array(bytes, index * 8).map(u64::from_le_bytes);
        Some(Self {
            ticks: field(0)?,
            recorded: field(1)?,
            merged: field(2)?,
            ungathered: field(3)?,
            stolen: field(4)?,
            lost: field(5)?,
            pending: field(6)?,
            discarded: field(7)?,
        })
    }
}

/// The result of `PCS_GETSTAT`: the eight `u64` of the [`Ledger`] in their order, then, as `u32` each: hz, vcpus,
/// format, buffer size, buffers, modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The account of the ticks.
    pub ledger: Ledger,
    /// The clock's rate, in Hz per vCPU.
    pub hz: u32,
    /// The number of vCPUs of the guest.
    pub vcpus: u32,
    /// The form of the records.
    pub format: Format,
    /// Bytes in a buffer.
    pub buffer_size: u32,
    /// The number of buffers of the device.
    pub buffers: u32,
    /// The `PROF_*` calls made, each as the command under `PROF_MASK`, ORed together.
    pub modes: u32,
}

/// Bytes in an encoded [`Status`].
pub const STATUS_SIZE: usize = LEDGER_SIZE + 6 * 4;

impl Status {
    /// The bytes that `PCS_GETSTAT` stores.
    pub fn encode(&self) -> Encoded<STATUS_SIZE> {
        let mut bytes = Encoded::new();
        bytes.push(&self.ledger.encode());
        for field in [
            self.hz,
            self.vcpus,
            self.format.number(),
            self.buffer_size,
            self.buffers,
            self.modes,
        ] {
            bytes.push(&field.to_le_bytes());
        }
        bytes
    }

    /// The status in `bytes`; `None` if they are too few, or the format is unknown. Bytes beyond [`STATUS_SIZE`] are
    /// ignored.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let field = |index: usize| array(bytes, LEDGER_SIZE + index * 4).map(u32::from_le_bytes);
        Some(Self {
            ledger: Ledger::decode(bytes)?,
            hz: field(0)?,
            vcpus: field(1)?,
            format: Format::from_number(field(2)?)?,
            buffer_size: field(3)?,
            buffers: field(4)?,
            modes: field(5)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_ledger_does_not_overflow() {
        let ledger = Ledger {
            recorded: u64::MAX,
            lost: 1,
            ..Ledger::default()
        };
        assert!(!ledger.balances());
    }
}
