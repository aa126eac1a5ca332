//! What it takes to unwind a stack of a vCPU that stands still, without KVM: guests whose memory was put together
//! by hand, an unwind table as large as a distribution kernel's.

use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;
use kvmprof::introspection::Stack;
use kvmprof::introspection::testing::stacks::DeepStacks;

const ROUNDS: usize = 301;
/// Stacks in a round.
const STACKS: u32 = 1_000;
/// Frames of each.
const FRAMES: u64 = 16;

fn main() -> anyhow::Result<()> {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    println!("{FRAMES} frames, medians over {ROUNDS} rounds of {STACKS}, us");
    let stacks = DeepStacks::new(FRAMES);
    let mut stack = Stack::default();
    measure("kernel stack by ORC", 5.0, || {
        stacks.unwind_kernel(&mut stack);
        stack.frames().len()
    })?;
    measure("user stack by frame pointer", 3.0, || {
        stacks.unwind_user(&mut stack);
        stack.frames().len()
    })
}

/// Prints what one `unwind` takes, which returns the number of frames.
fn measure(name: &str, allowed_us: f64, mut unwind: impl FnMut() -> usize) -> anyhow::Result<()> {
    ensure!(
        unwind() as u64 == FRAMES,
        "{name}: the stack is another one"
    );
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..STACKS {
                black_box(unwind());
            }
            start.elapsed().as_secs_f64() * 1e6 / f64::from(STACKS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "  {name:<30} {:>6.2} (allowed: {allowed_us})",
        rounds[ROUNDS / 2]
    );
    Ok(())
}
