//! Demangles names.

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// Maximum length of a name in bytes: a short mangled name can stand for one of gigabytes.
const MAX_LENGTH: usize = 4096;
/// Maximum nesting of names.
const MAX_DEPTH: u32 = 96;

/// Text of at most [`MAX_LENGTH`] bytes.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_LENGTH {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The source name of the mangled Rust or C++ name `name`, or `name` itself if it isn't mangled. Suffixes of linkers
/// and compilers (`@plt`, `.cold`) are kept.
pub fn demangle(name: &str) -> Cow<'_, str> {
    let (mangled, rest) = match name.split_once('@') {
        Some((mangled, _)) => name.split_at(mangled.len()),
        None => (name, ""),
    };
    let found = rust(mangled).or_else(|| cpp(mangled));
    match found {
        Some(mut text) if !text.0.is_empty() => {
            text.0.push_str(rest);
            text.0.into()
        }
        _ => name.into(),
    }
}

fn rust(name: &str) -> Option<Bounded> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut text = Bounded::default();
    // Without the hash of the crate's version.
    write!(text, "{demangled:#}").ok()?;
    Some(text)
}

fn cpp(name: &str) -> Option<Bounded> {
    if !(name.starts_with("_Z") || name.starts_with("_GLOBAL_")) {
        return None;
    }
    let options = ParseOptions::default().recursion_limit(MAX_DEPTH);
    let symbol = Symbol::new_with_options(name, &options).ok()?;
    let options = DemangleOptions::default().recursion_limit(MAX_DEPTH);
    let mut text = Bounded::default();
    symbol.structured_demangle(&mut text, &options).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_in_the_source() {
        for (mangled, name) in [
            ("memcpy", "memcpy"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            ("_ZN3foo3barEv@plt", "foo::bar()@plt"),
            ("_Zzz", "_Zzz"),
            ("", ""),
        ] {
            assert_eq!(demangle(mangled), name);
        }
        assert!(demangle("_ZN3foo3barEv.cold").starts_with("foo::bar()"));
    }

    #[test]
    fn names_that_would_grow_stay_as_they_are() {
        // Each type argument contains the one before twice.
        let mut name = "_Z1fI1aIiiE".to_owned();
        for index in 0..30_u32 {
            let digit = |number| char::from_digit(number, 36).unwrap().to_ascii_uppercase();
            let number = format!("S{}_", digit(index));
            name.push_str(&format!("1aI{number}{number}E"));
        }
        name.push_str("Evv");
        assert!(demangle(&name).len() <= MAX_LENGTH);
        let deep = format!("_Z1f{}i", "P".repeat(100_000));
        assert_eq!(demangle(&deep), deep);
    }
}
