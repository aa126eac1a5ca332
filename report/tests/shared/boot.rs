//! Recordings of boots.

use std::path::Path;

use kvmprof_recording::Mode;

use super::recordings::Written;

/// The kernel's symbols, 4 KiB apart.
const SYMBOLS: &str = "\
ffffffff81000000 T start_kernel
ffffffff81001000 t kernel_init
ffffffff81002000 T do_one_initcall
ffffffff81003000 t slow_init
ffffffff81004000 t quick_init
ffffffff81005000 T _end
";
const START: u64 = 0xffff_ffff_8100_0010;
const FIRST_THREAD: u64 = 0xffff_ffff_8100_1010;
const CALLER: u64 = 0xffff_ffff_8100_2010;
const SLOW: u64 = 0xffff_ffff_8100_3010;
const QUICK: u64 = 0xffff_ffff_8100_4010;

/// Writes a boot of a sample a ms to `path`: 5 of unpacking, 10 of early setup, then `slow_init` and `quick_init` for so many samples
/// with one between them, 3 of handover and `user` ones of init.
pub fn write(path: &Path, slow: u64, quick: u64, user: u64) {
    let mut written = Written::with_symbols(SYMBOLS);
    let swapper = (0, b"swapper/0".as_slice());
    let first = (1, b"swapper/0".as_slice());
    let init = (1, b"init".as_slice());
    let nobody = (-1, b"".as_slice());
    for (count, process, kernel) in [
        (5, nobody, &[0x10_0000][..]),
        (10, swapper, &[START]),
        (slow, first, &[SLOW, CALLER, FIRST_THREAD]),
        (1, first, &[CALLER, FIRST_THREAD]),
        (quick, first, &[QUICK, CALLER, FIRST_THREAD]),
        (3, first, &[FIRST_THREAD]),
    ] {
        written.samples(count, process, Mode::Kernel, (kernel, &[]));
        written.end_block();
    }
    written.samples(user, init, Mode::User, (&[], &[0x40_1000]));
    written.write(path);
}
