//! `__per_cpu_offset`: the array of 64-bit numbers that the kernel's code indexes most often, by `per_cpu(variable, cpu)`.

use std::collections::BTreeMap;

use memchr::memmem;

use crate::bytes::array_at;

use super::super::{Code, Findings};

/// The first bytes of instructions of 8 bytes, with any registers, that read memory: `mov` and `add` (SDM volume 2,
/// section 2.2.1).
const STARTS: [[u8; 2]; 8] = [
    [0x48, 0x8b],
    [0x4a, 0x8b],
    [0x4c, 0x8b],
    [0x4e, 0x8b],
    [0x48, 0x03],
    [0x4a, 0x03],
    [0x4c, 0x03],
    [0x4e, 0x03],
];
/// Minimum number of instructions that use the array.
const MIN_USES: u32 = 50;
/// The factor by which they must outnumber those of the next array.
const MARGIN: u32 = 3;

/// Finds the array.
pub fn find(code: &Code<'_>, findings: &mut Findings) {
    let Some((_, text)) = code.text() else {
        return;
    };
    let mut uses: BTreeMap<u64, u32> = BTreeMap::new();
    for start in STARTS {
        let arrays = memmem::find_iter(text, &start).filter_map(|place| array_of(text, place));
        for array in arrays {
            *uses.entry(array).or_default() += 1;
        }
    }
    let mut arrays: Vec<(u32, u64)> = uses
        .into_iter()
        .map(|(array, uses)| (uses, array))
        .collect();
    arrays.sort_unstable();
    let Some((most, address)) = arrays.pop() else {
        return;
    };
    let next = arrays.last().map_or(0, |(uses, _)| *uses);
    if most >= MIN_USES && most / MARGIN >= next {
        findings.add_variable("__per_cpu_offset", code.linked(address));
    }
}

/// The array of an instruction at `place`: `mov ARRAY(,%index,8), %register`, or `add`.
fn array_of(text: &[u8], place: usize) -> Option<u64> {
    let [_, _, form, index] = array_at::<4>(text, place)?;
    // An index without a base (SDM volume 2, section 2.1.5).
    let is_it = form & 0xc7 == 0x04 && index & 0xc7 == 0xc5;
    let array = array_at::<4>(text, place + 4).filter(|_| is_it)?;
    let array = i64::from(i32::from_le_bytes(array));
    (array < 0).then_some(array.cast_unsigned())
}
