//! Files that the build of a kernel leaves behind beside its image, and whether they are those of this kernel.
//!
//! A file's banner or build id isn't proof enough, and some have neither. So what a file says is compared with what the kernel's image has: addresses of
//! functions with those of its own symbol table, or with those that its code calls, and offsets in structures with those of its own BTF, or with those
//! that its code tells.

use std::collections::HashSet;

use kvmprof_abi::kallsyms::{KernelSymbol, is_function};

use super::placement::ALIGNMENT;
use super::{BANNER_START, KERNEL_MAP};
use crate::code::Code;
use crate::image::btf::{self, Btf};
use crate::image::dwarf::to_btf;
use crate::image::elf::{FileSymbol, SymbolKind};
use crate::image::types::{Members, SIZE, Types};
use crate::image::{KernelImage, Vmlinux};
use crate::{IntrospectionError, Symbols};

/// Maximum number of lines of a list of symbols. Distributions' kernels have some 200,000, and with modules some more.
const MAX_LINES: usize = 4 << 20;
/// Fewest facts that have to be comparable.
const FEWEST_OFFSETS: usize = 5;
/// See [`FEWEST_OFFSETS`].
const FEWEST_FUNCTIONS: usize = 100;
/// Number of functions whose calls are followed, and of the instructions at the beginning of each of them.
const CALLERS: usize = 4096;
/// See [`CALLERS`].
const INSTRUCTIONS: usize = 64;
/// One of this many calls may lead elsewhere than to a function that has a name.
const OTHER_CALLS: usize = 20;

/// What the build of a kernel has left behind beside its image: what an image doesn't tell of itself is taken from there. Each file is checked against
/// the kernel's image when that is read.
#[derive(Debug, Default)]
pub struct BuildFiles {
    /// BTF, and the name of its file.
    types: Option<(String, Vec<u8>)>,
    symbols: Option<(String, Symbols)>,
}

impl BuildFiles {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.types.is_none() && self.symbols.is_none()
    }

    /// Whether there are types among them.
    pub(super) fn has_types(&self) -> bool {
        self.types.is_some()
    }

    /// Takes the types out of a `file`, called `name` in messages: BTF as in `/sys/kernel/btf/vmlinux`, or an ELF file that has it or debug information
    /// (DWARF).
    ///
    /// # Errors
    /// The file has none, or it is damaged.
    pub fn add_types(&mut self, name: &str, file: &[u8]) -> Result<(), IntrospectionError> {
        let section = match Vmlinux::parse(file) {
            Ok(elf) => match elf.section(b".BTF") {
                Some((_, section)) => Some(section.to_vec()),
                None => to_btf(&elf),
            },
            Err(_) => is_btf(file).then(|| file.to_vec()),
        };
        let section = section.ok_or_else(|| IntrospectionError::NoTypes(name.to_owned()))?;
        Btf::parse(&section)?;
        self.types = Some((name.to_owned(), section));
        Ok(())
    }

    /// Takes the symbols out of a `file`, called `name` in messages: `System.map`, a copy of `/proc/kallsyms`, or an ELF file with a symbol table.
    ///
    /// # Errors
    /// The file has none, or hides their addresses.
    pub fn add_symbols(&mut self, name: &str, file: &[u8]) -> Result<(), IntrospectionError> {
        let symbols = match Vmlinux::parse(file) {
            Ok(elf) => Some(Symbols::from_table(elf.symbols(), elf.code_ends())),
            Err(_) => listed(file),
        };
        self.keep_symbols(name, symbols)
    }

    fn keep_symbols(
        &mut self,
        name: &str,
        symbols: Option<Symbols>,
    ) -> Result<(), IntrospectionError> {
        let symbols = symbols.filter(|symbols| symbols.functions().next().is_some());
        let symbols = symbols.ok_or_else(|| IntrospectionError::NoSymbols(name.to_owned()))?;
        if symbols.functions().all(|(address, ..)| address == 0) {
            return Err(IntrospectionError::HiddenAddresses(name.to_owned()));
        }
        self.symbols = Some((name.to_owned(), symbols));
        Ok(())
    }

    /// Takes what is in a `file` that isn't an image: BTF, or a list of symbols. False for other files.
    ///
    /// # Errors
    /// As for [`Self::add_types`] and [`Self::add_symbols`].
    pub fn add(&mut self, name: &str, file: &[u8]) -> Result<bool, IntrospectionError> {
        if is_btf(file) {
            self.add_types(name, file)?;
        } else if let Some(symbols) = listed(file) {
            self.keep_symbols(name, Some(symbols))?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// The symbols, at link-time addresses, if they are those of `image`, whose own are `own`.
    ///
    /// # Errors
    /// They are another kernel's. The error says what was compared.
    pub(super) fn symbols_of(
        &self,
        image: &KernelImage<'_>,
        own: &Symbols,
    ) -> Result<Option<Symbols>, IntrospectionError> {
        let Some((file, symbols)) = &self.symbols else {
            return Ok(None);
        };
        let refused = |compared: String| IntrospectionError::OtherSymbols {
            file: file.clone(),
            compared,
        };
        let symbols = linked(symbols, image);
        if let Some(address) = symbols.address_of("linux_banner") {
            let there = image.bytes_from(address);
            if !there.is_some_and(|bytes| bytes.starts_with(BANNER_START)) {
                return Err(refused(
                    "where it has linux_banner, the kernel has no banner".to_owned(),
                ));
            }
        }
        let (compared, wrong, kind) = match own.is_empty() {
            false => compare_functions(&symbols, own),
            true => compare_calls(&symbols, image),
        };
        let few = compared < FEWEST_FUNCTIONS;
        match (wrong.count * OTHER_CALLS > compared * wrong.tolerated, few) {
            (false, false) => Ok(Some(symbols)),
            (false, true) => Err(refused(format!(
                "only {compared} {kind} could be compared, which is too few to be certain"
            ))),
            (true, _) => Err(refused(format!(
                "of {compared} {kind}, {} are elsewhere, such as {}",
                wrong.count, wrong.example
            ))),
        }
    }

    /// The types, if they are those of the kernel whose code tells `members`, and whose own types are `own`.
    ///
    /// # Errors
    /// They are another kernel's. The error says what was compared.
    pub(super) fn types_of<'a>(
        &'a self,
        own: &Types<'_>,
        members: &Members,
    ) -> Result<Option<Types<'a>>, IntrospectionError> {
        let Some((file, section)) = &self.types else {
            return Ok(None);
        };
        let types = Types::Btf(Btf::parse(section)?);
        let refused = |compared: String| IntrospectionError::OtherTypes {
            file: file.clone(),
            compared,
        };
        let known: Vec<_> = members
            .keys()
            .filter_map(|key| Some((key, value_of(own, key)?, value_of(&types, key)?)))
            .collect();
        let compared = known.len();
        let mut wrong = known.iter().filter(|(_, own, other)| own != other);
        let Some(((structure, member), ..)) = wrong.next() else {
            return match compared >= FEWEST_OFFSETS {
                true => Ok(Some(types)),
                false => Err(refused(format!(
                    "only {compared} offsets in structures could be compared, which is too few to be certain"
                ))),
            };
        };
        Err(refused(format!(
            "of {compared} offsets in structures, {} differ, such as {structure}.{member}",
            1 + wrong.count()
        )))
    }
}

/// Whether a file begins as BTF does.
fn is_btf(file: &[u8]) -> bool {
    file.starts_with(&btf::MAGIC.to_le_bytes())
}

/// What types say of a structure's member, of its size, or of an enumerator.
fn value_of(types: &Types<'_>, (structure, member): &(&'static str, &'static str)) -> Option<u64> {
    if *member == SIZE {
        return types.size_of(structure).ok();
    }
    let found = types.offset_of(structure, member);
    found.or_else(|| types.enumerator(structure, member).map(u64::from))
}

/// The kernel's own symbols in lines as of `/proc/kallsyms`. `None` if the first lines are of another form.
fn listed(file: &[u8]) -> Option<Symbols> {
    let lines = || {
        let lines = file.split(|byte| *byte == b'\n').take(MAX_LINES);
        lines.filter(|line| !line.trim_ascii().is_empty())
    };
    let parsed = lines().take(16).map(KernelSymbol::parse);
    let is_list = parsed
        .map(|line| line.is_some())
        .reduce(|all, one| all && one);
    is_list.filter(|is_list| *is_list)?;
    let own = lines().filter_map(KernelSymbol::parse);
    let own = own.filter(|symbol| symbol.module.is_none());
    let symbols = own.map(|symbol| FileSymbol {
        address: symbol.address,
        name: symbol.name,
        kind: match symbol.kind {
            kind if is_function(kind) => SymbolKind::Function,
            b'a' | b'A' => SymbolKind::Number,
            _ => SymbolKind::Variable,
        },
        size: 0,
    });
    Some(Symbols::from_table(symbols, Vec::new()))
}

/// The symbols at the addresses of `image`: a copy of `/proc/kallsyms` has those at which a kernel has run, by multiples of [`ALIGNMENT`] above them.
fn linked(symbols: &Symbols, image: &KernelImage<'_>) -> Symbols {
    let begin = image.segments().first().map(|segment| segment.address);
    let text = symbols.address_of("_text");
    let distance = text
        .zip(begin)
        .map_or(0, |(text, begin)| text.wrapping_sub(begin));
    let is_slide = distance.is_multiple_of(ALIGNMENT);
    let distance = if is_slide { distance } else { 0 };
    symbols.clone().moved_down(KERNEL_MAP, distance)
}

/// What doesn't agree.
#[derive(Debug, Default)]
struct Wrong {
    count: usize,
    example: String,
    /// How many of [`OTHER_CALLS`] may be wrong.
    tolerated: usize,
}

/// Compares the addresses of functions that both have: the number of them, and those that are elsewhere.
fn compare_functions(symbols: &Symbols, own: &Symbols) -> (usize, Wrong, &'static str) {
    let places: HashSet<(u64, &str)> = symbols
        .functions()
        .map(|(at, _, name)| (at, name))
        .collect();
    let names: HashSet<&str> = places.iter().map(|(_, name)| *name).collect();
    let mut wrong = Wrong::default();
    let mut compared = 0;
    for (address, _, name) in own.functions().filter(|(.., name)| names.contains(name)) {
        compared += 1;
        if !places.contains(&(address, name)) {
            wrong.count += 1;
            name.clone_into(&mut wrong.example);
        }
    }
    (
        compared,
        wrong,
        "functions that the kernel's own symbol table has",
    )
}

/// Follows calls in the code of `image`, which has no symbols: where they lead to, functions begin.
fn compare_calls(symbols: &Symbols, image: &KernelImage<'_>) -> (usize, Wrong, &'static str) {
    let code = Code::new(image, symbols);
    let functions: Vec<u64> = symbols.functions().map(|(address, ..)| address).collect();
    let every = functions.len().div_ceil(CALLERS).max(1);
    let starts: HashSet<u64> = functions.iter().copied().collect();
    let mut wrong = Wrong {
        tolerated: 1,
        ..Wrong::default()
    };
    let mut compared = 0;
    for pair in functions.windows(2).step_by(every) {
        let instructions = code.instructions(pair[0]..pair[1]).take(INSTRUCTIONS);
        for call in instructions.filter(iced_x86::Instruction::is_call_near) {
            compared += 1;
            let target = call.near_branch_target();
            if !starts.contains(&target) {
                wrong.count += 1;
                wrong.example = format!("{target:#x}");
            }
        }
    }
    (compared, wrong, "functions that the kernel's code calls")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Segment;

    const TEXT: u64 = KERNEL_MAP + 0x100_0000;
    const BANNER: u64 = 0x8000;
    /// Bytes of each function.
    const LENGTH: u64 = 16;
    const FUNCTIONS: u64 = 300;

    /// A kernel's code: functions of which each calls the next one, and its banner.
    fn code() -> Vec<u8> {
        let mut bytes = vec![0x90; 0x9000];
        for function in 0..FUNCTIONS {
            let at = usize::try_from(function * LENGTH).unwrap();
            // From the end of the call to the next function.
            let distance = u32::try_from(LENGTH - 5).unwrap().to_le_bytes();
            bytes[at] = 0xe8;
            bytes[at + 1..at + 5].copy_from_slice(&distance);
        }
        let banner = usize::try_from(BANNER).unwrap();
        bytes[banner..banner + 16].copy_from_slice(b"Linux version 6.");
        bytes
    }

    /// As `System.map`: a function every `step` bytes, of a kernel that has run `slide` above.
    fn map(step: u64, slide: u64) -> String {
        let mut text = format!(
            "0000000000000000 D __per_cpu_start\n{:016x} T _text\n{:016x} D linux_banner\n",
            TEXT + slide,
            TEXT + slide + BANNER,
        );
        for function in 0..=FUNCTIONS {
            let address = TEXT + slide + function * step;
            text += &format!("{address:016x} t function_{function}\n");
        }
        text + "ffffffffc0000000 t of_module\t[fuse]\n"
    }

    fn image(bytes: &[u8]) -> KernelImage<'_> {
        KernelImage::from_memory(vec![Segment {
            address: TEXT,
            data: bytes,
            memory_length: bytes.len() as u64,
        }])
    }

    fn symbols_of(list: &str, own: &Symbols) -> Result<Symbols, String> {
        let mut files = BuildFiles::default();
        files.add_symbols("System.map", list.as_bytes()).unwrap();
        let code = code();
        let found = files.symbols_of(&image(&code), own);
        found.map(Option::unwrap).map_err(|error| error.to_string())
    }

    fn none() -> Symbols {
        Symbols::from_table(std::iter::empty(), Vec::new())
    }

    #[test]
    fn symbols_are_compared_with_the_calls_of_a_kernel_that_has_none() {
        for slide in [0, 0x1e00_0000] {
            let found = symbols_of(&map(LENGTH, slide), &none()).unwrap();
            let at = TEXT + 7 * LENGTH;
            assert_eq!(found.function_at(at + 3), Some(("function_7", 3)));
            assert_eq!(found.address_of("linux_banner"), Some(TEXT + BANNER));
            assert_eq!(found.address_of("__per_cpu_start"), Some(0));
            assert_eq!(found.address_of("of_module"), None);
        }
        let other = symbols_of(&map(LENGTH + 2, 0), &none()).unwrap_err();
        assert!(
            other.starts_with("System.map has the symbols of another kernel: of ")
                && other.contains(" functions that the kernel's code calls, "),
            "{other}"
        );
    }

    #[test]
    fn symbols_are_compared_with_those_that_the_kernel_has() {
        let own = listed(map(LENGTH, 0).as_bytes()).unwrap();
        assert!(symbols_of(&map(LENGTH, 0), &own).is_ok());
        // One is enough.
        let moved = format!("{:016x} t function_9\n", TEXT + 9 * LENGTH);
        let other = map(LENGTH, 0).replace(&moved, "ffffffff81008888 t function_9\n");
        assert_eq!(
            symbols_of(&other, &own).unwrap_err(),
            "System.map has the symbols of another kernel: of 302 functions that the kernel's own symbol table has, \
             1 are elsewhere, such as function_9"
        );
        let few = map(LENGTH, 0).replace("function_", "g_");
        let said = symbols_of(&few, &own).unwrap_err();
        assert!(said.contains("only 1 functions"), "{said}");
    }

    #[test]
    fn the_banner_has_to_be_where_the_symbols_say() {
        let place = format!("{:016x} D linux_banner", TEXT + BANNER);
        let other = map(LENGTH, 0).replace(&place, "ffffffff81008100 D linux_banner");
        let said = symbols_of(&other, &none()).unwrap_err();
        assert!(said.contains("the kernel has no banner"), "{said}");
    }

    #[test]
    fn files_without_symbols_or_types_are_refused() {
        let mut files = BuildFiles::default();
        for file in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0; 4096]] {
            let said = files.add_symbols("file", file).unwrap_err().to_string();
            assert!(said.starts_with("file has no symbols"), "{said}");
            let said = files.add_types("file", file).unwrap_err().to_string();
            assert!(said.starts_with("file has no types"), "{said}");
            assert!(!files.add("file", file).unwrap());
        }
        let hidden = "0000000000000000 T _text\n0000000000000000 t one\n";
        let said = files.add_symbols("file", hidden.as_bytes()).unwrap_err();
        assert!(said.to_string().contains("are hidden"), "{said}");
        let damaged = files.add_types("file", b"\x9f\xeb\x01\0");
        assert!(matches!(damaged, Err(IntrospectionError::Btf(_))));
        assert!(files.is_empty());
    }

    #[test]
    fn types_are_compared_with_what_the_code_tells() {
        use kvmprof_introspection_fixtures::btf::Builder;
        let mut builder = Builder::new();
        let members = ["a", "b", "c", "d", "e", "f"];
        let places: Vec<(&str, u32, u32)> = members
            .iter()
            .zip(0..)
            .map(|(name, index)| (*name, 1, index * 64))
            .collect();
        builder.structure("task_struct", &places);
        let mut files = BuildFiles::default();
        assert!(files.add("vmlinux.btf", &builder.section()).unwrap());
        let told = |count: usize, last: u64| {
            let mut told: Members = members[..count]
                .iter()
                .zip(0..)
                .map(|(name, index)| (("task_struct", *name), index * 8))
                .collect();
            told.insert(("task_struct", members[count - 1]), last);
            // What the file doesn't have isn't compared.
            told.insert(("mm_struct", "pgd"), 7);
            told
        };
        let check = |members: &Members| {
            let own = Types::Code(members.clone());
            let found = files.types_of(&own, members);
            found.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(check(&told(6, 40)), Ok(()));
        assert_eq!(
            check(&told(6, 48)).unwrap_err(),
            "vmlinux.btf has the types of another kernel: of 6 offsets in structures, 1 differ, such as task_struct.f"
        );
        let few = check(&told(4, 24)).unwrap_err();
        assert!(few.contains("only 4 offsets"), "{few}");
    }
}
