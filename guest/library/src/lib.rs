//! libkvmprof: the functions profil, pcsample and those of pmc, in C, for C and C++ programs in a guest.
//!
//! The library itself is in `source`, its headers are in `guest/abi/include`, and `docs/profil.md` and `docs/pmc.md` describe its use. This
//! crate only builds it, and has its paths for tests and for guests of tests.

use std::path::Path;

/// The file of the static library.
pub const STATIC: &str = concat!(env!("OUT_DIR"), "/libkvmprof.a");

/// The file of the shared library. Its name is the one that programs linked with it look for.
pub const SHARED: &str = concat!(env!("OUT_DIR"), "/libkvmprof.so.1");

/// The folder with both libraries, for a linker's `-L`.
pub fn folder() -> &'static Path {
    Path::new(env!("OUT_DIR"))
}

/// The folder with the headers, for a compiler's `-I`; AIX's are in its folder `aix`.
pub fn headers() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../abi/include"))
}
