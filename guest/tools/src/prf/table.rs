//! The table that prfld loads.

use crate::symbols::Symbol;

/// The addresses of `symbols` plus `slide` (modulo 2^64), in ascending order without duplicates. The first address is
/// 0, which counts everything below the first symbol.
pub fn table(symbols: &[Symbol], slide: u64) -> Vec<u64> {
    let mut addresses: Vec<u64> = std::iter::once(0)
        .chain(
            symbols
                .iter()
                .map(|symbol| symbol.address.wrapping_add(slide)),
        )
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_begins_with_zero_and_ascends() {
        let symbol = |address| Symbol {
            address,
            name: "name".to_owned(),
            global: false,
        };
        let symbols = [symbol(u64::MAX - 9), symbol(16), symbol(16), symbol(8)];
        assert_eq!(table(&symbols, 0), [0, 8, 16, u64::MAX - 9]);
        assert_eq!(table(&symbols, 10), [0, 18, 26]);
        assert_eq!(table(&[], 0), [0]);
    }
}
