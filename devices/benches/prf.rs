//! Measures prf's work for a kernel tick: the lookup of its program counter in the table, and the account.
//!
//! Tables are like a kernel's: address 0, then functions of random length at a kernel's addresses. Program counters are
//! random, so that caches don't help: a guest that stays in a few functions is faster. The figure without a minor is
//! the cost of the account and of the benchmark itself. All figures are medians over many rounds.

use std::hint::black_box;
use std::time::Instant;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{ALL_VCPUS, MAX_ADDRESSES, PRF_SETSTATE};
use kvmprof_devices::profiling::Prf;
use kvmprof_recording::{Mode, Sample, Ticks};

/// Rounds, and ticks in each round.
const ROUNDS: usize = 301;
const TICKS: u32 = 2_000;
/// Sizes of the table: the smallest limit, two typical kernels, and the largest.
const SIZES: [usize; 4] = [1_024, 65_536, 131_072, MAX_ADDRESSES];
/// The limit for a lookup among 65,536 addresses, in ns.
const ALLOWED_NS: u32 = 100;
/// The address of the kernel.
const KERNEL: u64 = 0xffff_ffff_8100_0000;
/// Maximum length of a function in bytes; lengths are multiples of 16.
const LONGEST: u64 = 512;

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn main() -> Result<(), Errno> {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    println!(
        "a kernel tick with a random program counter, medians over {ROUNDS} rounds of {TICKS}, ns (allowed: \
         {ALLOWED_NS} at 65536)"
    );
    for size in SIZES {
        measure(size)?;
    }
    Ok(())
}

fn measure(size: usize) -> Result<(), Errno> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut table = 0_u64.to_le_bytes().to_vec();
    let mut end = KERNEL;
    for _ in 1..size {
        table.extend_from_slice(&end.to_le_bytes());
        end += 16 + random.below(LONGEST) / 16 * 16;
    }
    for (what, minors) in [
        ("none on", &[][..]),
        ("one minor", &[0][..]),
        ("and 255", &[0, ALL_VCPUS]),
    ] {
        let mut prf = Prf::new(1, MAX_ADDRESSES);
        prf.set_hz(100);
        for minor in minors {
            prf.write(*minor, &table)?;
            prf.ioctl(*minor, PRF_SETSTATE, 1)?;
        }
        let mut rounds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..TICKS {
                    let pc = KERNEL + random.below(end - KERNEL);
                    prf.feed(black_box(&tick(pc)));
                }
                start.elapsed().as_secs_f64() * 1e9 / f64::from(TICKS)
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        let median = rounds.get(ROUNDS / 2).copied().unwrap_or(f64::NAN);
        println!("  {size:>7} addresses, {what:<10} {median:>6.0}");
    }
    Ok(())
}

fn tick(pc: u64) -> Ticks {
    Ticks {
        sample: Some(Sample {
            pc,
            mode: Mode::Kernel,
            ..Sample::default()
        }),
        ..Ticks::default()
    }
}
