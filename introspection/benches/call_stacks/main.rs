//! Times stack unwinding and looks at all tasks on a stopped vCPU, and reading the kernel's module list, without KVM. The guests' memory is
//! synthetic; the unwind table is as large as a distribution kernel's.
#![expect(clippy::unwrap_used, reason = "a benchmark fails like a test")]

mod java;
mod javascript;
mod python;
mod stacks;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use kvmprof_introspection::{GuestKnowledge, Registers, Stack, TaskReader, VcpuIntrospector};
use kvmprof_introspection_fixtures::kernel::{HOT, TEXT, offsets, task};
use kvmprof_introspection_fixtures::linux_guest::{
    DIRECT_MAP, LinuxGuest, SLIDE, TASKS as FIRST_TASK,
};
use kvmprof_introspection_fixtures::modules::{START, TestModule};

use java::JavaFrames;
use javascript::JavaScriptFrames;
use python::PythonFrames;
use stacks::DeepStacks;

const ROUNDS: usize = 301;
/// Stacks in a round.
const STACKS: u32 = 1_000;
/// Frames of each stack.
const FRAMES: u64 = 16;
/// Modules of a usual guest.
const MODULES: usize = 100;
/// Functions of each module.
const FUNCTIONS: u64 = 500;
/// Tasks that are looked at.
const TASKS: usize = 250;
/// The physical address of their stacks.
const KERNEL_STACKS: u64 = 0x80_0000;
/// How often the module list is read.
const LISTS: usize = 21;

fn main() -> anyhow::Result<()> {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    println!("{FRAMES} frames, medians over {ROUNDS} rounds of {STACKS}, us");
    let mut stacks = DeepStacks::new(FRAMES);
    let mut stack = Stack::default();
    let orc = measure("kernel stack by ORC", 5.0, || {
        stacks.unwind_kernel(&mut stack);
        stack.frames().len()
    })?;
    // 0.3 us a frame, once the rules are known.
    let code = measure("kernel stack by its code", 0.3 * FRAMES as f64, || {
        stacks.unwind_by_code(&mut stack);
        stack.frames().len()
    })?;
    println!(
        "  {:<30} {:>6.2}",
        "its code's to ORC's, a ratio",
        code / orc
    );
    measure("user stack by frame pointer", 3.0, || {
        stacks.unwind_user(&mut stack);
        stack.frames().len()
    })?;
    let frameless = measure("user stack by .eh_frame", 10.0, || {
        stacks.unwind_frameless(&mut stack);
        stack.frames().len()
    })?;
    let mut python = PythonFrames::new(FRAMES);
    let python = measure("functions of Python", 3.0, || python.walk())?;
    println!(
        "  {:<30} {:>6.2}",
        "those to the stack by .eh_frame",
        python / frameless
    );
    let mut javascript = JavaScriptFrames::new(FRAMES);
    measure("functions of JavaScript", 5.0, || javascript.walk())?;
    let mut java = JavaFrames::new(FRAMES);
    measure("methods of Java", 40.0, || java.walk())?;
    measure_modules()?;
    measure_looks()
}

/// Prints the time of a look for each task: with stacks known from the previous look, and with stacks that are read.
fn measure_looks() -> anyhow::Result<()> {
    let guest = LinuxGuest::new(HOT);
    let count = guest.list_processes(&[1; TASKS]);
    for index in 1..=count {
        let task = FIRST_TASK + index * 0x1000;
        let stack = KERNEL_STACKS + index * 0x400;
        guest.write(task + task::STACK, &(DIRECT_MAP + stack).to_le_bytes());
        let code = |offset: u64| (TEXT + SLIDE + offset).to_le_bytes();
        // What __switch_to_asm saves, then frames of 16 bytes and a return address.
        guest.write(stack + 48, &code(offsets::FRAMED + 8));
        for frame in 0..FRAMES - 1 {
            let is_last = frame == FRAMES - 2;
            let caller = if is_last {
                offsets::STACK_END
            } else {
                offsets::FRAMED
            };
            guest.write(stack + 56 + frame * 24 + 16, &code(caller + 8 + frame));
        }
    }
    let registers = guest.kernel(0);
    let knowledge = Arc::new(GuestKnowledge::from_kernel_image(&HOT.file())?);
    let mut introspector = VcpuIntrospector::new(knowledge, 0);
    introspector.identify(&guest.memory, &registers, false, false);
    let mut reader = TaskReader::default();
    let mut look = |forgets: bool| {
        let rounds = (0..ROUNDS).map(|_| {
            if forgets {
                reader.forget();
            }
            let start = Instant::now();
            introspector.look_at_tasks(&guest.memory, &registers, &mut reader);
            start.elapsed().as_secs_f64() * 1e6 / TASKS as f64
        });
        let each = median(rounds.collect());
        let frames = reader.look().frames.len() as u64;
        (each, frames == count * FRAMES)
    };
    let (new, are_whole) = look(true);
    let (kept, are_kept) = look(false);
    ensure!(are_whole && are_kept, "the tasks' stacks are others");
    println!(
        "look at {TASKS} tasks with stacks of {FRAMES} frames, medians over {ROUNDS} looks, us each"
    );
    println!("  {:<30} {new:>6.2}", "a task whose stack is read");
    println!(
        "  {:<30} {kept:>6.2} (allowed: 0.8)",
        "a task whose stack is known"
    );
    Ok(())
}

/// Prints the time that modules take: to see on the vCPU's thread whether the list has changed, and to read the list on
/// another thread, from scratch or with one new module.
fn measure_modules() -> anyhow::Result<()> {
    let guest = LinuxGuest::new(HOT);
    let knowledge = Arc::new(GuestKnowledge::from_kernel_image(&HOT.file())?);
    let linux = knowledge.linux().context("It is no Linux")?;
    linux.locate(&guest.memory, &guest.user());
    let modules: Vec<TestModule> = (0..MODULES)
        .map(|number| TestModule::new(&format!("module{number}"), FUNCTIONS))
        .collect();
    let (all, few) = (MODULES, MODULES - 1);
    println!("{MODULES} modules of {FUNCTIONS} functions, medians over {LISTS} lists, us");
    let mut whole = Vec::new();
    let mut one = Vec::new();
    for _ in 0..LISTS {
        for (modules, times) in [
            (&modules[..0], None),
            (&modules[..few], Some(&mut whole)),
            (&modules[..all], Some(&mut one)),
        ] {
            guest.load(modules);
            let start = Instant::now();
            linux.modules().read(linux, &guest.memory);
            if let Some(times) = times {
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    let mut introspector = VcpuIntrospector::new(Arc::clone(&knowledge), 0);
    let registers = Registers {
        rip: START + 8,
        ..guest.kernel(0)
    };
    let look = |introspector: &mut VcpuIntrospector, registers: &Registers| {
        let rounds = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            for _ in 0..STACKS {
                black_box(introspector.identify(&guest.memory, registers, false, false));
            }
            start.elapsed().as_secs_f64() * 1e6 / f64::from(STACKS)
        });
        median(rounds.collect())
    };
    let elsewhere = look(&mut introspector, &guest.kernel(0));
    let here = look(&mut introspector, &registers);
    println!(
        "  {:<30} {:>6.2} (allowed: 1)",
        "look at the list, on the vCPU",
        here - elsewhere
    );
    println!(
        "  {:<30} {:>6.0} (beside the vCPUs)",
        "all of it anew",
        median(whole)
    );
    println!(
        "  {:<30} {:>6.0} (beside the vCPUs)",
        "one more",
        median(one)
    );
    Ok(())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Prints the time that one `unwind` takes, in us, and returns it. `unwind` returns the number of frames.
fn measure(name: &str, allowed_us: f64, mut unwind: impl FnMut() -> usize) -> anyhow::Result<f64> {
    ensure!(
        unwind() as u64 == FRAMES,
        "{name}: the stack is another one"
    );
    let rounds = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        for _ in 0..STACKS {
            black_box(unwind());
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(STACKS)
    });
    let time = median(rounds.collect());
    println!("  {name:<30} {time:>6.2} (allowed: {allowed_us})");
    Ok(time)
}
