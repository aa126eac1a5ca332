//! The kernels of microVM products, out of their libraries, with a folder as root: they have neither BTF, ORC, names of variables, ACPI nor a
//! driver for the serial port, and one takes no initial RAM disk.

use kvmprof_introspection::GuestKnowledge;
use kvmprof_lab::virtiofsd;
use kvmprof_tests::linux::{Finished, Product, Scenario, guest_program, once, unexpected_gaps};

use crate::record::{NamedSample, check_calls_of_dd, check_frame_pointers, check_process, read};

/// Where programs are linked to.
const CALLS: u64 = 0x1000_0000;
const PLAIN: u64 = 0x2000_0000;
/// What the guest's command ends with.
const STATUS: u8 = 7;

struct Run {
    product: Product,
    finished: Finished,
}

kvmprof_tests::in_each_kernel! {
    of {
        of_microsandbox(super::Product::Microsandbox)
        of_boxlite(super::Product::Boxlite)
    }
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
    for (name, start) in [("calls", CALLS), ("plain", PLAIN)] {
        let pid = run.finished.pid("guest", name);
        check_process("guest", &run.seen(), name, start, pid);
    }
}

fn kernel_stacks_are_whole(run: &Run) {
    check_calls_of_dd("guest", &run.seen());
}

/// The programs are read out of the guest's page cache.
fn user_stacks_follow_frame_pointers(run: &Run) {
    check_frame_pointers("guest", &run.seen(), CALLS);
}

/// The kernel's code tells all that a kernel describes that has BTF.
fn nothing_is_unknown(run: &Run) {
    let library = run.product.library();
    let knowledge = GuestKnowledge::from_kernel_image(&library).unwrap();
    let linux = knowledge.linux().unwrap();
    assert_eq!(linux.release(), run.product.release());
    assert!(linux.symbols().len() > 50_000);
    assert_eq!(unexpected_gaps(linux.gaps()), [] as [&String; 0]);
}
