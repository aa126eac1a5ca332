//! The distance between a kernel's link-time and run-time addresses.

use std::collections::{HashMap, HashSet};

use super::Symbol;

/// Linkers' names for the start of the kernel's text.
const ANCHORS: [&str; 2] = ["_text", "_stext"];

/// The distance of a running kernel from a file of its symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slide {
    /// The number to add (modulo 2^64) to the file's addresses.
    pub distance: u64,
    /// Whether most common names have this distance: if not, the file is of another kernel.
    pub fits: bool,
}

/// The distance from `file` to `running`: that of `_text`, of `_stext`, or else of the first name that occurs once in
/// each. `None` if there is no such name.
pub fn slide_to(file: &[Symbol], running: &[Symbol]) -> Option<Slide> {
    let (file, running) = (unique(file), unique(running));
    // The address of each common name in the file, and its distance.
    let common: HashMap<&str, (u64, u64)> = file
        .into_iter()
        .filter_map(|(name, address)| {
            let distance = running.get(name)?.wrapping_sub(address);
            Some((name, (address, distance)))
        })
        .collect();
    let anchor = ANCHORS.iter().find_map(|name| common.get(name));
    // The lowest, so that the result doesn't depend on the map's order.
    let (_, distance) = *anchor.or_else(|| common.values().min())?;
    let fitting = common.values().filter(|(_, other)| *other == distance);
    Some(Slide {
        distance,
        fits: 2 * fitting.count() >= common.len(),
    })
}

/// The addresses of the names that occur once.
fn unique(symbols: &[Symbol]) -> HashMap<&str, u64> {
    let mut seen: HashMap<&str, Option<u64>> = HashMap::new();
    for symbol in symbols.iter().filter(|symbol| !symbol.name.is_empty()) {
        seen.entry(&symbol.name)
            .and_modify(|address| *address = None)
            .or_insert(Some(symbol.address));
    }
    seen.into_iter()
        .filter_map(|(name, address)| Some((name, address?)))
        .collect()
}

/// The number to add (modulo 2^64) to the addresses of `symbols` so that most of the addresses in `table`, which
/// ascend, are a symbol's; `None` if they don't fit. For a log this is the kernel's distance when it was written.
pub fn slide_of_table(table: &[u64], symbols: &[Symbol]) -> Option<u64> {
    let lowest = symbols.iter().map(|symbol| symbol.address).min()?;
    let known: HashSet<u64> = symbols.iter().map(|symbol| symbol.address).collect();
    let wanted = table.iter().filter(|address| **address != 0);
    let first = *wanted.clone().next()?;
    let matches = |slide: u64| {
        wanted
            .clone()
            .filter(|address| known.contains(&address.wrapping_sub(slide)))
            .count()
    };
    let moved = first.wrapping_sub(lowest);
    let best = if matches(moved) > matches(0) {
        moved
    } else {
        0
    };
    (2 * matches(best) >= wanted.clone().count()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(list: &[(u64, &str)]) -> Vec<Symbol> {
        list.iter()
            .map(|(address, name)| Symbol {
                address: *address,
                name: (*name).to_owned(),
                global: true,
            })
            .collect()
    }

    fn fitting(distance: u64) -> Option<Slide> {
        let fits = true;
        Some(Slide { distance, fits })
    }

    #[test]
    fn the_start_of_the_text_gives_the_slide() {
        let file = symbols(&[(0x1000, "_text"), (0x1010, "first"), (0x1020, "second")]);
        let running = symbols(&[(0x5010, "first"), (0x5000, "_text")]);
        assert_eq!(slide_to(&file, &running), fitting(0x4000));
        // In the other direction too.
        let down = 0x4000_u64.wrapping_neg();
        assert_eq!(slide_to(&running, &file), fitting(down));
    }

    #[test]
    fn without_anchors_one_common_unique_name_suffices() {
        let file = symbols(&[(0x10, "twice"), (0x20, "twice"), (0x30, "once")]);
        let running = symbols(&[(0x110, "twice"), (0x150, "once")]);
        assert_eq!(slide_to(&file, &running), fitting(0x120));
        assert_eq!(slide_to(&file, &symbols(&[(1, "other")])), None);
    }

    #[test]
    fn another_kernel_does_not_fit() {
        let file = symbols(&[(0x10, "_text"), (0x20, "read"), (0x30, "write")]);
        let running = symbols(&[(0x110, "_text"), (0x124, "read"), (0x140, "write")]);
        let slide = slide_to(&file, &running).unwrap();
        assert_eq!((slide.distance, slide.fits), (0x100, false));
    }

    #[test]
    fn a_table_is_recognised_where_it_was_loaded() {
        let file = symbols(&[(0x1000, "a"), (0x1010, "b"), (0x1030, "c")]);
        assert_eq!(slide_of_table(&[0, 0x1000, 0x1010, 0x1030], &file), Some(0));
        let slid = [0, 0x9000, 0x9010, 0x9030, 0xc000];
        assert_eq!(slide_of_table(&slid, &file), Some(0x8000));
        assert_eq!(slide_of_table(&[0, 0x9000, 0x9011, 0x9031], &file), None);
        assert_eq!(slide_of_table(&[0, 0, 0], &file), None);
        assert_eq!(slide_of_table(&slid, &[]), None);
    }
}
