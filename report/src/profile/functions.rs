//! Samples by function.

use std::collections::HashMap;

use super::{Profile, Stack, Symbols};

/// What halted vCPUs are shown as.
pub const HALTED: &str = "[halted]";

/// What comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SortBy {
    /// Where the program counter was.
    #[default]
    #[value(name = "self")]
    Own,
    /// What was somewhere on the stack.
    Total,
}

/// One function, or an address that belongs to none that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, or its address.
    pub name: String,
    /// Whether it is the kernel's.
    pub is_kernel: bool,
    /// Samples in which the program counter was in it.
    pub own: u64,
    /// Samples in which it was somewhere on the stack, each counted once.
    pub total: u64,
}

/// The functions of `profile`, by `sort`.
pub fn functions(profile: &Profile, sort: SortBy) -> Vec<Function> {
    let mut rows: HashMap<(String, bool), (u64, u64)> = HashMap::new();
    let mut seen = Vec::new();
    for ((_, stack), count) in &profile.stacks {
        seen.clear();
        for index in 0..stack.frames.len() {
            let key = (
                frame_name(&profile.symbols, stack, index),
                stack.is_kernel(index),
            );
            if !seen.contains(&key) {
                rows.entry(key.clone()).or_default().1 += count;
                seen.push(key);
            }
        }
        if let Some(innermost) = seen.first() {
            rows.entry(innermost.clone()).or_default().0 += count;
        }
    }
    if profile.idle > 0 {
        let both = (profile.idle, profile.idle);
        rows.insert((HALTED.to_owned(), true), both);
    }
    let mut functions: Vec<Function> = rows
        .into_iter()
        .map(|((name, is_kernel), (own, total))| Function {
            name,
            is_kernel,
            own,
            total,
        })
        .collect();
    functions.sort_by(|left, right| {
        let key = |function: &Function| match sort {
            SortBy::Own => (function.own, function.total),
            SortBy::Total => (function.total, function.own),
        };
        key(right)
            .cmp(&key(left))
            .then_with(|| left.name.cmp(&right.name))
    });
    functions
}

/// The name of a stack's frame number `index`, or its address.
pub fn frame_name(symbols: &Symbols, stack: &Stack, index: usize) -> String {
    let address = stack.frames[index];
    match symbols.find(address) {
        Some(name) => name.to_owned(),
        None => format!("{address:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::collect::testing::profile;
    use super::*;

    #[test]
    fn own_and_total_samples_differ_by_the_stacks() {
        let rows = |sort| -> Vec<(String, u64, u64)> {
            functions(&profile(&[]), sort)
                .into_iter()
                .map(|function| (function.name, function.own, function.total))
                .collect()
        };
        let row = |name: &str, own, total| (name.to_owned(), own, total);
        assert_eq!(
            rows(SortBy::Own),
            [
                row("[halted]", 2, 2),
                row("copy", 2, 2),
                row("entry", 1, 3),
                row("0x40", 1, 1),
                row("0x50", 0, 2),
            ]
        );
        assert_eq!(rows(SortBy::Total)[0], row("entry", 1, 3));
    }
}
