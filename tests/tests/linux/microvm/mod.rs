//! The kernels of microVM products, out of their libraries, with a folder as root: they have neither BTF, ORC, names of variables, ACPI nor a
//! driver for the serial port, and one takes no initial RAM disk.

use kvmprof_introspection::GuestKnowledge;
use kvmprof_lab::virtiofsd;
use kvmprof_recording::{Mode, StackEnd};
use kvmprof_tests::linux::{Finished, Product, Scenario, guest_program, once, unexpected_gaps};

use crate::record::{NamedSample, most, read};

/// Where programs are linked to.
const CALLS: u64 = 0x1000_0000;
const PLAIN: u64 = 0x2000_0000;
/// More than any of them has.
const LENGTH: u64 = 0x100_0000;
/// What the guest's command ends with.
const STATUS: u8 = 7;

struct Run {
    product: Product,
    finished: Finished,
}

/// Makes each check a test for each product's kernel.
macro_rules! on_each_kernel {
    ($($check:ident)*) => {
        $(mod $check {
            use super::*;

            #[test]
            fn of_microsandbox() {
                super::$check(&run(Product::Microsandbox));
            }

            #[test]
            fn of_boxlite() {
                super::$check(&run(Product::Boxlite));
            }
        })*
    };
}

on_each_kernel! {
    it_starts_from_a_folder_on_the_virtio_console
    user_samples_have_their_process
    kernel_stacks_are_whole
    user_stacks_follow_frame_pointers
    nothing_is_unknown
}

fn run(product: Product) -> Run {
    let finished = once(&format!("microvm-{product:?}"), || {
        let calls = guest_program("calls.c", CALLS, &["-fno-omit-frame-pointer"]);
        let plain = guest_program("calls.c", PLAIN, &["-O2", "-fomit-frame-pointer"]);
        Scenario::new()
            .file("libkrunfw.so", product.library())
            .program_with_libraries("virtiofsd", &virtiofsd())
            .program_contents("calls", &calls.file)
            .program_contents("plain", &plain.file)
            .run(include_str!("driver.sh"))
    });
    Run { product, finished }
}

impl Run {
    fn seen(&self) -> Vec<NamedSample> {
        read(&self.finished, "guest.kvmprof").1
    }
}

fn it_starts_from_a_folder_on_the_virtio_console(run: &Run) {
    let console = run.finished.console("guest");
    println!("{}", console.text());
    assert_eq!(console.after("tty "), "/dev/hvc0");
    assert_eq!(console.after("cpus "), "2");
    assert_eq!(console.after("release "), run.product.release());
    assert!(console.has("changed"));
    assert!(run.finished.path("unchanged").exists());
    let said = run.finished.text("guest.stderr");
    assert_eq!(run.finished.status("guest"), STATUS, "{said}");
    let (release, _) = run.finished.placement("guest.status.json");
    assert_eq!(release, run.product.release());
}

/// The guest says which process each program is; a program's code is at addresses of its own.
fn user_samples_have_their_process(run: &Run) {
    let console = run.finished.console("guest");
    let programs = [("calls", CALLS), ("plain", PLAIN)].map(|(name, address)| {
        let pid: i32 = console.after(&format!("pid {name} ")).parse().unwrap();
        (name, pid, address..address + LENGTH)
    });
    let seen = run.seen();
    let user: Vec<_> = seen
        .iter()
        .filter(|seen| seen.sample.mode == Mode::User)
        .filter_map(|seen| {
            let at = seen.sample.pc;
            let program = programs.iter().find(|(.., code)| code.contains(&at))?;
            Some((seen, program))
        })
        .collect();
    let right = user.iter().filter(|(seen, (name, pid, _))| {
        seen.sample.pid == *pid && seen.sample.tid == *pid && seen.name() == *name
    });
    let (right, all) = (right.count(), user.len());
    println!("{right} of {all} user samples have the right process and name");
    assert!(all >= 200 && right * 100 >= all * 99);
    for (name, ..) in &programs {
        let of_it = user.iter().filter(|(_, program)| program.0 == *name);
        assert!(of_it.count() >= 50, "{name}");
    }
}

fn kernel_stacks_are_whole(run: &Run) {
    let seen = run.seen();
    let kernel: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| seen.name() == "dd" && seen.sample.mode == Mode::Kernel)
        .collect();
    most("dd's whole kernel stacks", &kernel, 95, |seen| {
        seen.sample.stack.kernel_end == StackEnd::Complete
    });
    let is_of_call = |frame: &String| frame == "do_syscall_64" || frame.contains("entry_SYS");
    most("dd's system calls", &kernel, 90, |seen| {
        seen.frames.iter().any(is_of_call)
    });
}

/// The programs are read out of the guest's page cache.
fn user_stacks_follow_frame_pointers(run: &Run) {
    let seen = run.seen();
    let code = CALLS..CALLS + LENGTH;
    let user: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| seen.sample.mode == Mode::User && code.contains(&seen.sample.pc))
        .collect();
    println!("{:?}", user.first().map(|seen| &seen.frames));
    // inner, middle, outer and main.
    most("user stacks of calls", &user, 90, |seen| {
        seen.frames.len() >= 4
    });
}

/// The kernel's code tells all that a kernel describes that has BTF.
fn nothing_is_unknown(run: &Run) {
    let library = run.product.library();
    let knowledge = GuestKnowledge::from_kernel_image(&library).unwrap();
    let linux = knowledge.linux().unwrap();
    assert_eq!(linux.release(), run.product.release());
    assert!(linux.symbols().len() > 50_000);
    assert!(
        unexpected_gaps(linux.gaps()).is_empty(),
        "{:#?}",
        linux.gaps()
    );
}
