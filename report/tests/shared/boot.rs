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
    let mut add = |count, process, mode, kernel: &[u64], user: &[u64]| {
        written.samples(count, process, mode, (kernel, user));
        written.end_block();
    };
    add(5, nobody, Mode::Kernel, &[0x10_0000], &[]);
    add(10, swapper, Mode::Kernel, &[START], &[]);
    add(
        slow,
        first,
        Mode::Kernel,
        &[SLOW, CALLER, FIRST_THREAD],
        &[],
    );
    add(1, first, Mode::Kernel, &[CALLER, FIRST_THREAD], &[]);
    add(
        quick,
        first,
        Mode::Kernel,
        &[QUICK, CALLER, FIRST_THREAD],
        &[],
    );
    add(3, first, Mode::Kernel, &[FIRST_THREAD], &[]);
    add(user, init, Mode::User, &[], &[0x40_1000]);
    written.write(path);
}
