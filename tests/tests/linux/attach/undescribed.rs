//! A guest of QEMU's with KASLR, whose kernel has neither BTF, ORC nor names of variables, attached to by ptrace and by the
//! host's kernel simultaneously: all that is known of it is read out of its code, in its memory.

use kvmprof_recording::{Mode, StackEnd};
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_program, once, undescribed_image,
    unexpected_gaps,
};

use super::{COMMON, ONE, check_pids, check_whole_stacks, of_program};
use crate::named::{NamedSample, read};

/// Both recordings.
const RECORDINGS: [&str; 2] = ["traced", "copied"];

fn run() -> Finished {
    once("attach-undescribed", || {
        let kernel = debian("6.12");
        let one = guest_program("spin.c", ONE, &[]);
        let guest = guest_builder(include_str!("undescribed_init.sh"), &[("one", &one)]);
        let guest = guest.modules(&kernel, &["brd"]);
        Scenario::new()
            .memory(4096)
            .file("vmlinuz", undescribed_image(&kernel))
            .file("guest.cpio", guest.build().unwrap())
            .qemu()
            .run(&format!("{COMMON}\n{}", include_str!("undescribed.sh")))
    })
}

#[test]
fn a_moved_kernel_is_known_by_its_code() {
    let run = run();
    for name in RECORDINGS {
        let (contents, samples) = run.attached(name);
        let kernel = contents.kernel.as_ref().unwrap();
        assert_ne!(kernel.slide, 0, "{name}: {kernel:?}");
        assert_eq!(unexpected_gaps(&kernel.gaps), [] as [&String; 0], "{name}");
        let of_program = of_program(&samples, ONE);
        check_pids(name, &of_program, run.pid("qemu", "one"), 30, 99);
        check_whole_stacks(name, "one", of_program);
    }
}

/// Those of the process that reads a disk of a module lead through that module.
#[test]
fn kernel_stacks_are_whole_through_modules_too() {
    let run = run();
    let dd = run.pid("qemu", "dd");
    for name in RECORDINGS {
        let (_, seen) = read(&run, &format!("{name}.kvmprof"));
        let is_whole = |seen: &&NamedSample| seen.sample.stack.kernel_end == StackEnd::Complete;
        let of_kernel = |seen: &&NamedSample| seen.sample.mode == Mode::Kernel;
        let all = seen.iter().filter(of_kernel).count();
        let whole: Vec<_> = (seen.iter().filter(of_kernel)).filter(is_whole).collect();
        let through = whole.iter().filter(|seen| {
            let mut frames = seen.kernel.iter();
            seen.sample.pid == dd && frames.any(|frame| frame.module == "[brd]")
        });
        let (whole, through) = (whole.len(), through.count());
        println!("{name}: {whole} of {all} kernel stacks are whole, {through} through the module");
        assert!(all >= 50 && whole * 100 >= all * 95 && through >= 10);
    }
}
