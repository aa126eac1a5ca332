//! A guest of QEMU's with KASLR, whose kernel has neither BTF, ORC nor names of variables, attached to by ptrace and by the
//! host's kernel simultaneously: all that is known of it is read out of its code, in its memory.

use kvmprof_recording::{Mode, Sample, StackEnd};
use kvmprof_report::symbolize::Symbols;
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_program, once, undescribed_image,
    unexpected_gaps,
};

use super::{COMMON, ONE, check_whole_stacks};
use crate::prf::functions_of_modules;

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

fn pid(run: &Finished, name: &str) -> i32 {
    run.console("qemu")
        .after(&format!("pid {name} "))
        .parse()
        .unwrap()
}

#[test]
fn a_moved_kernel_is_known_by_its_code() {
    let run = run();
    for name in RECORDINGS {
        let (contents, _) = run.recording(&format!("{name}.kvmprof"));
        let kernel = contents.kernel.as_ref().unwrap();
        assert_ne!(kernel.slide, 0, "{name}: {kernel:?}");
        assert_eq!(unexpected_gaps(&kernel.gaps), [] as [&String; 0], "{name}");
        assert!(contents.account.balances(), "{name}");
    }
}

/// A program counter identifies its program by the link address. Its stacks need its file, out of the guest's page cache.
#[test]
fn user_samples_have_pids_and_whole_stacks() {
    let run = run();
    let one = pid(&run, "one");
    for name in RECORDINGS {
        let (_, samples) = run.recording(&format!("{name}.kvmprof"));
        let text = ONE..ONE + 0x100_0000;
        let of_program = samples.iter().map(|(sample, _)| sample);
        let of_program =
            of_program.filter(|sample| sample.mode == Mode::User && text.contains(&sample.pc));
        let of_program: Vec<&Sample> = of_program.collect();
        let right = of_program.iter().filter(|sample| sample.pid == one).count();
        let all = of_program.len();
        println!("{name}: of {all} samples {right} have the pid");
        assert!(all >= 30 && right * 100 >= all * 99);
        check_whole_stacks(name, "one", of_program);
    }
}

/// Those of the process that reads a disk of a module lead through that module.
#[test]
fn kernel_stacks_are_whole_through_modules_too() {
    let run = run();
    let dd = pid(&run, "dd");
    for name in RECORDINGS {
        let (contents, samples) = run.recording(&format!("{name}.kvmprof"));
        let functions = functions_of_modules(&contents.symbols);
        let is_in_module = |address: &u64| {
            let function = functions.range(..=*address).next_back();
            function.is_some_and(|(_, function)| function.ends_with(" [brd]"))
        };
        let kernel = samples
            .iter()
            .filter(|(sample, _)| sample.mode == Mode::Kernel);
        let is_whole = |sample: &Sample| sample.stack.kernel_end == StackEnd::Complete;
        let whole = kernel
            .clone()
            .filter(|(sample, _)| is_whole(sample))
            .count();
        let all = kernel.clone().count();
        let symbols = Symbols::parse(&contents.symbols);
        let cut = kernel.clone().filter(|(sample, _)| !is_whole(sample));
        let cut = cut.map(|(sample, frames)| {
            let kernel = &frames[..usize::from(sample.stack.kernel)];
            let names = kernel.iter().map(|at| symbols.find(*at).unwrap_or("?"));
            names.collect::<Vec<_>>()
        });
        let cut: Vec<_> = cut.collect();
        let through = kernel.filter(|(sample, frames)| {
            sample.pid == dd && is_whole(sample) && frames.iter().any(is_in_module)
        });
        let through = through.count();
        println!("{name}: {whole} of {all} kernel stacks are whole, {through} through the module");
        let is_right = all >= 50 && whole * 100 >= all * 95 && through >= 10;
        assert!(is_right, "{cut:#?}");
    }
}
