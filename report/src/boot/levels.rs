//! The levels of initcalls.

use std::collections::HashMap;

/// The prefix of the symbols of initcalls (include/linux/init.h): `__initcall__kmod_MODULE__COUNTER_LINE_FUNCTIONLEVEL`.
pub const INITCALL_PREFIX: &str = "__initcall__kmod_";
/// The names of levels that aren't numbers.
const NAMED: [&str; 3] = ["early", "rootfs", "con"];

/// The levels of a kernel's initcalls, by their functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels(HashMap<String, String>);

impl Levels {
    /// The levels by the names of a kernel's symbols. Symbols without [`INITCALL_PREFIX`] are ignored.
    pub fn from_symbols<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self(names.filter_map(parse).collect())
    }

    /// The level of this initcall, such as `6` or `4s`, if known.
    pub fn of(&self, function: &str) -> Option<&str> {
        self.0.get(function).map(String::as_str)
    }
}

/// The function and the level of a symbol.
fn parse(symbol: &str) -> Option<(String, String)> {
    let (_, rest) = symbol.strip_prefix(INITCALL_PREFIX)?.split_once("__")?;
    let (_, rest) = split_number(rest)?;
    let (_, function) = split_number(rest)?;
    let level = NAMED.into_iter().find(|level| function.ends_with(level));
    let length = match level {
        Some(level) => level.len(),
        None => {
            let digits = function.strip_suffix('s').unwrap_or(function);
            digits
                .ends_with(|end: char| end.is_ascii_digit())
                .then_some(1)?
                + (function.len() - digits.len())
        }
    };
    let (function, level) = function.split_at(function.len() - length);
    Some((function.to_owned(), level.to_owned()))
}

/// Splits a text into the number at its start and the rest after an underscore.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let (number, rest) = text.split_once('_')?;
    number
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some((number, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_in_the_names_of_symbols() {
        let names = [
            "__initcall__kmod_cpuid__322_213_cpuid_init6",
            "__initcall__kmod_core__200_99_trace_init_flags_sys_enterearly",
            "__initcall__kmod_pci__7_1_pci_init4s",
            "__initcall__kmod_my_mod__7_1_x2apic_rootfsrootfs",
            "__initcall_start",
            "cpuid_init",
        ];
        let levels = Levels::from_symbols(names.into_iter());
        for (function, level) in [
            ("cpuid_init", Some("6")),
            ("trace_init_flags_sys_enter", Some("early")),
            ("pci_init", Some("4s")),
            ("x2apic_rootfs", Some("rootfs")),
            ("other", None),
        ] {
            assert_eq!(levels.of(function), level, "{function}");
        }
    }
}
