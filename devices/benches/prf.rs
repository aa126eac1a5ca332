//! What a kernel tick costs prf: the look-up of its program counter in the table, and the account.
//!
//! Tables are as a kernel's: address 0, then functions of random length where a kernel is. Program
//! counters are random, so that no two ticks share what the caches hold: a guest that stays in
//! a few functions is quicker. What is left with no minor on is the account's and the benchmark's own.
//! Every figure is the median over many rounds.

use std::hint::black_box;
use std::time::Instant;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{ALL_VCPUS, MAX_ADDRESSES, PRF_SETSTATE};
use kvmprof_devices::profiling::Prf;
use kvmprof_recording::{Mode, Sample, Ticks};

/// Rounds, and ticks in each.
const ROUNDS: usize = 301;
const TICKS: u32 = 2_000;
/// Sizes of the table: the fewest that there must be room for, a distribution's kernel, the most.
const SIZES: [usize; 4] = [1_024, 65_536, 131_072, MAX_ADDRESSES];
/// What a look-up among 65,536 addresses may take, in ns.
const ALLOWED_NS: u32 = 100;
/// Where a kernel is.
const KERNEL: u64 = 0xffff_ffff_8100_0000;
/// Functions are up to so many bytes long, in steps of 16.
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
