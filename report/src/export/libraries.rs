//! The modules of a recording as libraries of the Firefox Profiler.

use std::collections::HashMap;
use std::sync::Arc;

use fxprof_processed_profile::debugid::DebugId;
use fxprof_processed_profile::{LibraryHandle, LibraryInfo, Profile, Symbol, SymbolTable};

use super::{Frame, Source};

/// What the kernel's addresses are relative to: where x86-64 has its code and its modules
/// (`Documentation/arch/x86/x86_64/mm.rst` of the Linux sources).
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// A function, by its module, whether it is the kernel's, and its relative address.
type Place = (String, bool, u32);

/// The libraries, and the functions in them.
#[derive(Debug, Default)]
pub struct Libraries {
    handles: HashMap<(String, bool), LibraryHandle>,
    /// `None` where files of one name have different functions.
    functions: HashMap<Place, Option<String>>,
}

impl Libraries {
    /// Those of `source`, which become `profile`'s.
    pub fn of(source: &Source, profile: &mut Profile) -> Self {
        let mut libraries = Self::default();
        let sum = source.profile();
        for (pid, stack) in sum.stacks.keys() {
            for frame in sum.frames(*pid, stack) {
                libraries.add(&Frame::of(frame));
            }
        }
        let mut tables: HashMap<(String, bool), Vec<Symbol>> = HashMap::new();
        for ((module, is_kernel, address), name) in &libraries.functions {
            let symbols = tables.entry((module.clone(), *is_kernel)).or_default();
            symbols.extend(name.clone().map(|name| Symbol {
                address: *address,
                size: None,
                name,
            }));
        }
        let mut tables: Vec<_> = tables.into_iter().collect();
        // Their numbers are to be the same for the same recording.
        tables.sort_by(|(left, _), (right, _)| left.cmp(right));
        for ((module, is_kernel), symbols) in tables {
            let library = profile.add_lib(LibraryInfo {
                name: module.clone(),
                debug_name: module.clone(),
                path: module.clone(),
                debug_path: module.clone(),
                debug_id: DebugId::nil(),
                code_id: None,
                arch: None,
                symbol_table: Some(Arc::new(SymbolTable::new(symbols))),
            });
            libraries.handles.insert((module, is_kernel), library);
        }
        libraries
    }

    fn add(&mut self, frame: &Frame<'_>) {
        let Some((begin, _)) = addresses(frame) else {
            return;
        };
        let place = (frame.module.to_string(), frame.is_kernel, begin);
        let known = (self.functions)
            .entry(place)
            .or_insert_with(|| Some(frame.name.to_string()));
        if known.as_ref().is_some_and(|known| *known != *frame.name) {
            *known = None;
        }
    }

    /// The library that `frame` is in, and where; `None` when it has no function that a library could name.
    pub fn place(&self, frame: &Frame<'_>) -> Option<(LibraryHandle, u32)> {
        let (begin, address) = addresses(frame)?;
        let module = (frame.module.to_string(), frame.is_kernel);
        let library = *self.handles.get(&module)?;
        let place = (module.0, module.1, begin);
        self.functions.get(&place)?.as_ref()?;
        Some((library, address))
    }
}

/// The addresses of a frame's function and of itself, as libraries have them: relative, of 32 bits.
fn addresses(frame: &Frame<'_>) -> Option<(u32, u32)> {
    if frame.is_inlined {
        return None;
    }
    let base = if frame.is_kernel { KERNEL_BASE } else { 0 };
    let address = u32::try_from(frame.file_address.checked_sub(base)?).ok()?;
    let offset = u32::try_from(frame.offset?).ok()?;
    Some((address.checked_sub(offset)?, address))
}
