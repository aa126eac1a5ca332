//! Which methods an address of compiled code executes: the debug information that HotSpot has for each place at which a thread may stop
//! (`src/hotspot/share/code/debugInfoRec.hpp`, `scopeDesc.hpp`).

use super::super::ProcessMemory;
use super::code::Blob;
use super::layout::{Blobs, pc};
use crate::bytes::i32_at;

/// Maximum number of places of compiled code.
const MAX_PLACES: u64 = 1 << 20;
/// Bytes of a scope that are read: three packed numbers.
const HEAD: usize = 3 * MAX_PACKED;
/// Maximum number of bytes of a packed number.
const MAX_PACKED: usize = 5;
/// Maximum number of methods that compiled code refers to.
const MAX_METHODS: u32 = 1 << 16;

/// Numbers packed by `UNSIGNED5`: a byte below [`Self::LOW`] is the last one of a number, others have six bits of it.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'b> {
    bytes: &'b [u8],
    has_no_zeros: bool,
}

impl<'b> Packed<'b> {
    /// The numbers at the start of `bytes`. If they have no byte that is 0, each is one more.
    pub fn new(bytes: &'b [u8], has_no_zeros: bool) -> Self {
        Self {
            bytes,
            has_no_zeros,
        }
    }

    /// The next byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// The next number.
    pub fn number(&mut self) -> Option<u32> {
        let excluded = u32::from(self.has_no_zeros);
        let low = 192 - excluded;
        let mut number: u32 = 0;
        for index in 0..MAX_PACKED {
            let byte = u32::from(self.byte()?).checked_sub(excluded)?;
            number = number.wrapping_add(byte.wrapping_shl(6 * u32::try_from(index).ok()?));
            if byte < low {
                break;
            }
        }
        Some(number)
    }

    /// The next number, which has a sign as its lowest bit.
    pub fn signed(&mut self) -> Option<i32> {
        let number = self.number()?;
        let half = (number >> 1).cast_signed();
        Some(if number & 1 == 0 { half } else { !half })
    }
}

/// A method that is executed by compiled code, and the bytecode in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    pub method: u64,
    /// `None` if it isn't known.
    pub bytecode: Option<u32>,
    /// The place of the scope that it was put into; 0 for none.
    outer: u32,
}

/// The scopes of one address, innermost first.
#[derive(Debug)]
pub struct Scopes {
    scopes: u64,
    metadata: u64,
    next: u32,
    has_no_zeros: bool,
    /// Whether the address is a place whose bytecode is known.
    is_known: bool,
}

impl Scopes {
    /// Those of the code of `blob` at `ip`, which is the next instruction, or a return address. If it isn't a place with scopes, as in the
    /// midst of code, and behind calls of C++ that can't stop the thread, they are those of the place that follows. `None` if there are none.
    pub fn at(
        layout: &Blobs,
        blob: &Blob,
        ip: u64,
        has_no_zeros: bool,
        memory: &mut dyn ProcessMemory,
    ) -> Option<Self> {
        let [first, end] = layout
            .pcs
            .map(|place| place.find(blob.address, blob.head()));
        let (first, end) = (first?, end?);
        let count = end.checked_sub(first)? / pc::BYTES;
        (count <= MAX_PLACES).then_some(())?;
        let wanted = i32::try_from(ip.checked_sub(blob.code.start)?).ok()?;
        let mut place = |number: u64| -> Option<[i32; 2]> {
            let mut bytes = [0; 8];
            memory.read(first.checked_add(number * pc::BYTES)?, &mut bytes)?;
            Some([i32_at(&bytes, pc::DISTANCE)?, i32_at(&bytes, pc::SCOPE)?])
        };
        // They are sorted.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low.midpoint(high);
            match place(middle)? {
                [distance, _] if distance < wanted => low = middle + 1,
                _ => high = middle,
            }
        }
        (low < count).then_some(())?;
        let [distance, scope] = place(low)?;
        Some(Self {
            scopes: layout.scopes.find(blob.address, blob.head())?,
            metadata: layout.metadata.find(blob.address, blob.head())?,
            next: u32::try_from(scope).ok().filter(|scope| *scope != 0)?,
            has_no_zeros,
            is_known: distance == wanted,
        })
    }

    /// The next scope; `None` behind the outermost one, or if it can't be read.
    pub fn next(&mut self, memory: &mut dyn ProcessMemory) -> Option<Scope> {
        let place = self.next;
        (place != 0).then_some(())?;
        self.next = 0;
        let mut bytes = [0; HEAD];
        memory.read(self.scopes.checked_add(place.into())?, &mut bytes)?;
        let mut packed = Packed::new(&bytes, self.has_no_zeros);
        let outer = packed.number()?;
        let method = packed.number()?;
        let bytecode = packed.number()?.checked_sub(1);
        // Outer scopes come first.
        (outer < place && (1..=MAX_METHODS).contains(&method)).then_some(())?;
        let method = self.metadata.checked_add(8 * u64::from(method - 1))?;
        let method = memory.word(method)?;
        let bytecode = bytecode.filter(|_| self.is_known);
        (self.next, self.is_known) = (outer, true);
        Some(Scope {
            method,
            bytecode,
            outer,
        })
    }
}

impl Scope {
    /// Whether it was put into no other one.
    pub fn is_outermost(&self) -> bool {
        self.outer == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_in_up_to_five_bytes() {
        let read = |bytes: &[u8], has_no_zeros| Packed::new(bytes, has_no_zeros).number();
        for (bytes, number) in [
            (&[0][..], 0),
            (&[191], 191),
            (&[192, 0], 192),
            (&[255, 1], 319),
            (&[192, 192, 3], 192 + (192 << 6) + (3 << 12)),
            (&[255; 5], 255_u32.wrapping_mul(0x0104_1041)),
        ] {
            assert_eq!(read(bytes, false), Some(number), "{bytes:?}");
        }
        assert_eq!(read(&[1], true), Some(0));
        assert_eq!(read(&[191], true), Some(190));
        assert_eq!(read(&[192, 1], true), Some(191));
        assert_eq!(read(&[192, 2, 9], true), Some(191 + 64));
        // What has no end, and a byte that no number has.
        for (bytes, has_no_zeros) in [
            (&[][..], false),
            (&[192], false),
            (&[0], true),
            (&[192, 0], true),
        ] {
            assert_eq!(read(bytes, has_no_zeros), None, "{bytes:?}");
        }
        let signed = |byte| Packed::new(&[byte], false).signed();
        assert_eq!(
            [0, 1, 2, 3].map(signed),
            [Some(0), Some(-1), Some(1), Some(-2)]
        );
    }
}
