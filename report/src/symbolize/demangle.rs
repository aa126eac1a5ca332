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
struct BoundedText(String);

impl Write for BoundedText {
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

fn rust(name: &str) -> Option<BoundedText> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut text = BoundedText::default();
    // Without the hash of the crate's version.
    write!(text, "{demangled:#}").ok()?;
    Some(text)
}

fn cpp(name: &str) -> Option<BoundedText> {
    let Some((what, target)) = thunk(name) else {
        return cpp_function(name);
    };
    let target = cpp_function(&format!("_Z{target}"))?;
    let mut text = BoundedText::default();
    write!(text, "{what} to {}", target.0).ok()?;
    Some(text)
}

/// The words for a thunk called `name`, and the mangled target without `_Z` (Itanium C++ ABI, 5.1.4.1: virtual tables).
fn thunk(name: &str) -> Option<(&'static str, &str)> {
    let rest = name.strip_prefix("_ZT")?;
    match rest.as_bytes().first()? {
        b'h' => Some(("non-virtual thunk", after_offset(rest)?)),
        b'v' => Some(("virtual thunk", after_offset(rest)?)),
        b'c' => {
            let offsets = rest.get(1..)?;
            let target = after_offset(after_offset(offsets)?)?;
            Some(("covariant return thunk", target))
        }
        _ => None,
    }
}

/// What comes after the call offset that `text` begins with.
fn after_offset(text: &str) -> Option<&str> {
    let number = |text: &str| -> Option<usize> {
        let (number, _) = text.split_once('_')?;
        let digits = number.strip_prefix('n').unwrap_or(number);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some(number.len() + 1)
    };
    let numbers = if text.starts_with('h') { 1 } else { 2 };
    let mut rest = text.strip_prefix(['h', 'v'])?;
    for _ in 0..numbers {
        rest = rest.get(number(rest)?..)?;
    }
    Some(rest)
}

fn cpp_function(name: &str) -> Option<BoundedText> {
    if !(name.starts_with("_Z") || name.starts_with("_GLOBAL_")) {
        return None;
    }
    if loses_references(name) {
        return None;
    }
    let options = ParseOptions::default().recursion_limit(MAX_DEPTH);
    let symbol = Symbol::new_with_options(name, &options).ok()?;
    let write = |options: &DemangleOptions| -> Option<BoundedText> {
        let mut text = BoundedText::default();
        symbol.structured_demangle(&mut text, options).ok()?;
        Some(tidy(text))
    };
    let options = DemangleOptions::default().recursion_limit(MAX_DEPTH);
    let whole = write(&options)?;
    if !loses_parameters(name) && !is_misplaced(&whole.0) {
        return Some(whole);
    }
    let mut short = write(&options.no_params().no_return_type())?;
    if is_misplaced(&short.0) {
        return None;
    }
    if let Some((_, clone)) = name.split_once('.') {
        write!(short, " [clone .{clone}]").ok()?;
    }
    Some(short)
}

// What follows knows faults of cpp_demangle 0.5.1. A name without its parameters is right, a mangled one too.

/// Whether cpp_demangle drops references of template arguments: of lambdas that take `T&&`, or are within functions that take packs.
fn loses_references(name: &str) -> bool {
    let mut lambdas = name.split("Ul").skip(1);
    let takes_rvalue = lambdas.any(|rest| rest.split('E').next().unwrap_or(rest).contains('O'));
    let within_pack = name.split_once("Dp");
    takes_rvalue
        || within_pack.is_some_and(|(_, rest)| rest.contains("Ul"))
        || ["IOZ", "JOZ"].iter().any(|part| name.contains(part))
}

/// Whether cpp_demangle writes wrong parameters: a pack's references are lost, and a constructor template's first parameter.
fn loses_parameters(name: &str) -> bool {
    let is_template = |rest: &str| matches!(rest.as_bytes(), [b'1'..=b'5', b'I', ..]);
    name.contains("Dp") || name.split('C').skip(1).any(is_template)
}

/// Whether a qualifier is within a name instead of after it, or a literal operator has no name.
fn is_misplaced(text: &str) -> bool {
    let mut constant = text.match_indices(" const::");
    ["&::", "*::", "operator \"\""]
        .iter()
        .any(|part| text.contains(part))
        // What is local to a constant member function is right.
        || constant.any(|(at, _)| text.get(..at).is_none_or(|text| !text.ends_with(')')))
}

/// `text` without the commas of empty packs and doubled qualifiers.
fn tidy(BoundedText(mut text): BoundedText) -> BoundedText {
    for (from, to) in [(", >", ">"), (" const const", " const")] {
        while text.contains(from) {
            text = text.replace(from, to);
        }
    }
    BoundedText(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As c++filt prints them, except for parameters that are omitted where the library would print wrong ones: the first one of `std::function`'s, and
    /// of the pack of `fwd` all but the first.
    const DEMANGLED: &str = "\
_ZN4core3fmt5write17h0123456789abcdefE core::fmt::write
_RNvCs1234_7mycrate3foo mycrate::foo
_ZNSt6vectorIiSaIiEE9push_backERKi std::vector<int, std::allocator<int> >::push_back(int const&)
_ZN3foo3barEv@plt foo::bar()@plt
_ZThn8_N1D1bEv non-virtual thunk to D::b()
_ZThn16_N1DD1Ev non-virtual thunk to D::~D()
_ZTv0_n24_N1D1bEv virtual thunk to D::b()
_ZTch0_h16_N1D1cEv covariant return thunk to D::c()
_ZTcv0_n24_v0_n32_N1D1cEv covariant return thunk to D::c()
_Z3fooOi foo(int&&)
_Z1fOSt5tupleIJRiEE f(std::tuple<int&>&&)
_ZNK10__cxxabiv120__si_class_type_info11__do_upcastEPKNS_17__class_type_infoEPKvRNS1_15__upcast_resultE __cxxabiv1::__si_class_type_info::__do_upcast
_ZNSt8functionIFvvEEC1IZ4mainEUlvE_vEEOT_ std::function<void ()>::function<main::{lambda()#1}, void>
_Z3fwdIJRiiEEvDpOT_ fwd<int&, int>
_Z3fwdIJRiiEEvDpOT_.cold fwd<int&, int> [clone .cold]
_Z1fISt5tupleIJEEEvT_ void f<std::tuple<> >(std::tuple<>)
_ZZNK1A1fEvENKUlvE_clEv A::f() const::{lambda()#1}::operator()() const
";
    /// Those without a correct name, such as one of a lambda with a reference that would be lost.
    const KEPT: [&str; 7] = [
        "memcpy",
        "_Zzz",
        "",
        "_ZThn8_",
        "_ZThx_N1D1bEv",
        "_ZSt16is_invocable_r_vIvRZ4mainEUlOiE1_JiEE",
        "_Zli2_wPKc",
    ];

    #[test]
    fn names_are_as_in_the_source_or_kept() {
        for line in DEMANGLED.lines() {
            let (mangled, name) = line.split_once(' ').unwrap();
            assert_eq!(demangle(mangled), name);
        }
        for kept in KEPT {
            assert_eq!(demangle(kept), kept);
        }
        assert!(demangle("_ZN3foo3barEv.cold").starts_with("foo::bar()"));
    }

    #[test]
    fn names_that_demangle_to_excessive_length_are_kept() {
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
