//! The symbols' addresses, in the five encodings of the kernel's versions.

use super::Stretch;
use super::names::Names;
use super::tokens::Tokens;
use crate::bytes::{i32_at, u32_at, u64_at};

/// One address in this many may be out of order.
const FORGIVEN: usize = 1024;

/// Finds as many addresses as there are `names`, which ascend and which `accepts` accepts.
pub fn find(
    stretch: Stretch<'_>,
    names: &Names<'_>,
    tokens: &Tokens<'_>,
    accepts: &dyn Fn(&[u64]) -> bool,
) -> Option<Vec<u64>> {
    let count = names.count;
    let data = stretch.data;
    let believable = |addresses: Option<Vec<u64>>| {
        addresses.filter(|addresses| ascend(addresses) && accepts(addresses))
    };
    // Up to 6.3, the offsets, their base and the count are before the names.
    let before = || {
        let base = names.count_position.checked_sub(8)?;
        let offsets = base.checked_sub((count * 4).next_multiple_of(8))?;
        relative(data, count, offsets, base, &believable).or_else(|| {
            let start = names.count_position.checked_sub(count * 8)?;
            believable(absolute(data, count, start))
        })
    };
    // Since 6.4, they are after the token index.
    let after = |alignment: usize| {
        let start = tokens.end.next_multiple_of(alignment);
        let base = (start + count * 4).next_multiple_of(alignment);
        relative(data, count, start, base, &believable)
            .or_else(|| believable(absolute(data, count, start)))
            .or_else(|| believable(self_relative(stretch, count, start)))
    };
    before().or_else(|| after(8)).or_else(|| after(4))
}

/// 32-bit offsets from a 64-bit base.
fn relative(
    data: &[u8],
    count: usize,
    offsets: usize,
    base: usize,
    believable: &dyn Fn(Option<Vec<u64>>) -> Option<Vec<u64>>,
) -> Option<Vec<u64>> {
    let base = u64_at(data, base)?;
    let read = |decode: &dyn Fn(i32) -> u64| {
        (0..count)
            .map(|index| i32_at(data, offsets + index * 4).map(decode))
            .collect()
    };
    // 4.6 to 6.14 with SMP (CONFIG_KALLSYMS_ABSOLUTE_PERCPU): a non-negative offset is an address itself, a negative
    // one counts down from the base.
    let signed = |offset: i32| match u64::try_from(offset) {
        Ok(address) => address,
        Err(_) => base.wrapping_sub(1).wrapping_add_signed(-i64::from(offset)),
    };
    let unsigned = |offset: i32| base.wrapping_add(u64::from(offset.cast_unsigned()));
    believable(read(&signed)).or_else(|| believable(read(&unsigned)))
}

/// 64-bit addresses: up to 6.10 without CONFIG_KALLSYMS_BASE_RELATIVE.
fn absolute(data: &[u8], count: usize, start: usize) -> Option<Vec<u64>> {
    (0..count)
        .map(|index| u64_at(data, start + index * 8))
        .collect()
}

/// 32-bit offsets, each relative to its own address: since 7.0.
fn self_relative(stretch: Stretch<'_>, count: usize, start: usize) -> Option<Vec<u64>> {
    (0..count)
        .map(|index| {
            let position = start + index * 4;
            let offset = u32_at(stretch.data, position)?.cast_signed();
            let address = stretch.address.wrapping_add(position as u64);
            Some(address.wrapping_add_signed(i64::from(offset)))
        })
        .collect()
}

/// True if nearly all `addresses` ascend.
fn ascend(addresses: &[u64]) -> bool {
    let descents = addresses
        .windows(2)
        .filter(|pair| pair[1] < pair[0])
        .count();
    descents <= addresses.len() / FORGIVEN
}
