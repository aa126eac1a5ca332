//! libkvmprof: the functions profil, pcsample and those of pmc for programs of a guest, in C, for programs in C and C++.
//!
//! The library itself is in `source`, its headers are in `guest/abi/include`, and `docs/profil.md` and `docs/pmc.md` are about its use. This
//! crate only builds it, and says where it is: for tests and for guests of tests.

use std::path::Path;

/// The file of the static library.
pub const STATIC: &str = concat!(env!("OUT_DIR"), "/libkvmprof.a");

/// The file of the shared library, by the name that programs which are linked with it look for.
pub const SHARED: &str = concat!(env!("OUT_DIR"), "/libkvmprof.so.1");

/// The folder with both libraries, for a linker's `-L`.
pub fn folder() -> &'static Path {
    Path::new(env!("OUT_DIR"))
}

/// The folder with the headers, for a compiler's `-I`; AIX's are in its folder `aix`.
pub fn headers() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../abi/include"))
}
