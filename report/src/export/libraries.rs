//! The modules of a recording as libraries of the Firefox Profiler.

use std::collections::HashMap;
use std::sync::Arc;

use fxprof_processed_profile::debugid::DebugId;
use fxprof_processed_profile::{LibraryHandle, LibraryInfo, Profile, Symbol, SymbolTable};

use super::{Frame, Source};
use crate::symbolize::BuildIds;

/// The base of the kernel's relative addresses: x86-64 kernels have their code and modules above it
/// (`Documentation/arch/x86/x86_64/mm.rst` of the Linux sources).
const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// A function: its module, whether it is a kernel function, and its relative address.
type LibraryFunction = (String, bool, u32);

/// The libraries, and the functions in them.
#[derive(Debug, Default)]
pub struct Libraries {
    handles: HashMap<(String, bool), LibraryHandle>,
    /// `None` if files of one name have different functions.
    functions: HashMap<LibraryFunction, Option<String>>,
}

impl Libraries {
    /// Adds the libraries of `source` to `profile`.
    pub fn new(source: &Source, profile: &mut Profile) -> Self {
        let mut libraries = Self::default();
        let sum = source.profile();
        for (pid, stack) in sum.stacks.keys() {
            for frame in sum.frames(*pid, stack) {
                libraries.add(&Frame::new(frame));
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
        let builds = BuildIds::new(&sum.contents);
        // The same recording must give the same numbers.
        tables.sort_by(|(left, _), (right, _)| left.cmp(right));
        for ((module, is_kernel), symbols) in tables {
            let library = profile.add_lib(LibraryInfo {
                name: module.clone(),
                debug_name: module.clone(),
                path: module.clone(),
                debug_path: module.clone(),
                debug_id: DebugId::nil(),
                code_id: builds.only(&module).map(str::to_owned),
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
        let key = (frame.module.to_string(), frame.is_kernel, begin);
        let known = (self.functions)
            .entry(key)
            .or_insert_with(|| Some(frame.name.to_string()));
        if known.as_ref().is_some_and(|known| *known != *frame.name) {
            *known = None;
        }
    }

    /// The library and relative address of `frame`; `None` if no library has its function.
    pub fn locate(&self, frame: &Frame<'_>) -> Option<(LibraryHandle, u32)> {
        let (begin, address) = addresses(frame)?;
        let module = (frame.module.to_string(), frame.is_kernel);
        let library = *self.handles.get(&module)?;
        let key = (module.0, module.1, begin);
        self.functions.get(&key)?.as_ref()?;
        Some((library, address))
    }
}

/// The relative 32-bit addresses of a frame's function and of the frame.
fn addresses(frame: &Frame<'_>) -> Option<(u32, u32)> {
    if frame.is_inlined {
        return None;
    }
    let base = if frame.is_kernel { KERNEL_BASE } else { 0 };
    let address = u32::try_from(frame.file_address.checked_sub(base)?).ok()?;
    let offset = u32::try_from(frame.offset?).ok()?;
    Some((address.checked_sub(offset)?, address))
}
