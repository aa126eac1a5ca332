//! Kernels within libkrunfw, the shared library by which microVM products carry their kernel.
//!
//! The library has the kernel as its variable `KERNEL_BUNDLE`, laid out as it is in memory, and the function
//! `krunfw_get_kernel(u64 *load, u64 *entry, size_t *length)`, which says where that has to be (libkrun:
//! `src/libkrun/src/lib.rs`). The function isn't called: its code is read, as a kernel's is ([`crate::code`]).

use crate::code::Code;
use crate::code::flow::{Access, Flow, Node, Use};
use crate::image::{KernelImage, Vmlinux};
use crate::{IntrospectionError, Symbols};

/// The variable with the kernel.
const CONTENTS: &str = "KERNEL_BUNDLE";
/// The function that says where the kernel has to be.
const PLACES: &str = "krunfw_get_kernel";
/// The width of what it writes, in bytes.
const WORD: u8 = 8;

/// A kernel within a library, laid out as in memory. Its variables without a value come after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelBundle<'a> {
    /// The guest-physical address of its first byte.
    pub load: u64,
    /// The guest-physical address of its first instruction, in 64-bit mode (kernel:
    /// Documentation/arch/x86/boot.rst, "64-bit boot protocol").
    pub entry: u64,
    /// The kernel.
    pub contents: &'a [u8],
}

impl<'a> KernelBundle<'a> {
    /// The kernel in `file`; `None` if that isn't such a library.
    ///
    /// # Errors
    /// It is one, but doesn't tell where its kernel has to be, or lacks a part of it.
    pub fn find(file: &'a [u8]) -> Result<Option<Self>, IntrospectionError> {
        let Ok(library) = Vmlinux::parse(file) else {
            return Ok(None);
        };
        let symbols = Symbols::from_table(library.dynamic_symbols(), Vec::new());
        let [Some(contents), Some(places)] = symbols.addresses_of([CONTENTS, PLACES]) else {
            return Ok(None);
        };
        let library = KernelImage::from_file(library);
        let flow = Code::new(&library, &symbols).flow_at(places);
        let argument = |index| written(&flow, index).ok_or(IntrospectionError::Bundle);
        let (load, entry, length) = (argument(0)?, argument(1)?, argument(2)?);
        let contents = library.bytes_from(contents).unwrap_or_default();
        let length = usize::try_from(length).map_err(|_| IntrospectionError::Bundle)?;
        let contents = contents.get(..length).ok_or(IntrospectionError::Bundle)?;
        let is_inside = (entry.checked_sub(load)).is_some_and(|offset| offset < length as u64);
        if !is_inside || load.checked_add(length as u64).is_none() {
            return Err(IntrospectionError::Bundle);
        }
        Ok(Some(Self {
            load,
            entry,
            contents,
        }))
    }
}

/// The number that a function writes to where its argument with this index points. `None` if it writes none, or several.
fn written(flow: &Flow, index: usize) -> Option<u64> {
    let target = flow.argument(index)?;
    let mut writes = flow
        .words_of(target, WORD)
        .filter(|(offset, access)| *offset == 0 && access.kind == Use::Write)
        .map(|(_, access)| number(flow, access));
    let first = writes.next()??;
    writes.next().is_none().then_some(first)
}

/// The number that an access writes, if it is known.
fn number(flow: &Flow, access: &Access) -> Option<u64> {
    match access.value.map(|value| flow.node(value)) {
        Some(Node::Constant(number)) => Some(number),
        Some(_) => None,
        None => access.instruction.try_immediate(1).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_introspection_fixtures::library::{Function, Library};

    const WHOLE: Library<'_> = Library {
        function: Function::Framed,
        load: 0x100_0000,
        entry: 0x100_0123,
        length: 0x2000,
        contents: &[0x90; 0x2001],
    };

    #[test]
    fn the_places_are_read_out_of_the_code() {
        for function in [Function::Framed, Function::Plain] {
            let file = Library { function, ..WHOLE }.file();
            let bundle = KernelBundle::find(&file).unwrap().unwrap();
            let places = (bundle.load, bundle.entry, bundle.contents.len());
            assert_eq!(places, (0x100_0000, 0x100_0123, 0x2000), "{function:?}");
        }
    }

    #[test]
    fn a_library_that_contradicts_itself_is_refused() {
        let function = Function::Empty;
        let wrong = [
            Library {
                entry: 0xff_ffff,
                ..WHOLE
            },
            Library {
                entry: 0x100_2000,
                ..WHOLE
            },
            Library {
                length: 0x2002,
                ..WHOLE
            },
            Library { function, ..WHOLE },
        ];
        for library in wrong {
            let file = library.file();
            let error = KernelBundle::find(&file).unwrap_err();
            assert!(matches!(error, IntrospectionError::Bundle), "{error}");
        }
    }

    #[test]
    fn other_files_have_none() {
        for file in [
            &b""[..],
            b"#!/bin/sh",
            kvmprof_demo_guest::ELF,
            &WHOLE.file()[..64],
        ] {
            assert!(!matches!(KernelBundle::find(file), Ok(Some(_))));
        }
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(KernelBundle::find(&own).unwrap(), None);
    }

    /// Wherever it ends, and whatever its bytes are.
    #[test]
    fn a_damaged_library_is_no_panic() {
        let file = WHOLE.file();
        for length in 0..file.len().min(0x1200) {
            let _either = KernelBundle::find(&file[..length]);
            let mut changed = file.clone();
            changed[length] ^= 0xff;
            let _either = KernelBundle::find(&changed);
        }
    }
}
