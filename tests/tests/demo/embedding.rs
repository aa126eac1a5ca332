//! The example of `introspection`: a vCPU loop of one's own that samples its guest.

use std::collections::BTreeMap;
use std::process::Command;

use kvmprof_demo_guest::{function_at, process_of, rows};
use kvmprof_tests::{
    Boot, check_demo_processes, in_lab, kvmprof, not_run, on_kvm, run_command, write_kernel,
};

const SAMPLES: usize = 1000;

/// A sample as the example prints it: the pid, the name and the stack, innermost frame first.
fn parse(line: &str) -> (i32, &str, Vec<u64>) {
    let (identity, stack) = line.split_once(" [").unwrap();
    let (pid, name) = identity.split_once(' ').unwrap();
    let frames = stack.trim_end_matches(']').split(", ");
    let frames = frames.map(|frame| u64::from_str_radix(frame, 16).unwrap());
    (pid.parse().unwrap(), name, frames.collect())
}

#[test]
fn a_vcpu_loop_of_ones_own_samples_pid_name_and_stack() {
    on_kvm(|| {
        if in_lab() {
            return not_run("the example isn't in the lab");
        }
        let example = kvmprof().with_file_name("examples/vcpu_loop");
        assert!(
            example.is_file(),
            "cargo build --release -p kvmprof-introspection --features kvm-bindings --example vcpu_loop"
        );
        let folder = tempfile::tempdir().unwrap();
        let image = write_kernel(Boot::Demo, folder.path());
        let ran = run_command(Command::new(example).arg(image).arg(SAMPLES.to_string()));
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
        let samples: Vec<_> = ran.stdout.lines().map(parse).collect();
        assert_eq!(samples.len(), SAMPLES);
        // Only functions of programs belong to a process.
        let of_user = samples.iter().filter_map(|(pid, name, frames)| {
            let pc = *frames.first()?;
            process_of(function_at(pc)?)?;
            Some((pc, *pid, *name, frames))
        });
        check_demo_processes(of_user.clone().map(|(pc, pid, ..)| (pc, pid)));
        let mut names: BTreeMap<i32, &str> = BTreeMap::new();
        let (mut all, mut deep) = (0, 0);
        for (_, pid, name, frames) in of_user {
            names.insert(pid, name);
            let whole = frames.iter().all(|frame| function_at(*frame).is_some());
            assert!(whole, "{pid} {name} {frames:x?}");
            (all, deep) = (all + 1, deep + usize::from(frames.len() > 1));
        }
        // A program's first function has no caller.
        assert!(deep * 2 >= all, "{deep} of {all}");
        assert!(names.len() >= 3, "{names:?}");
        for (pid, name) in names {
            let mut own = rows().iter().filter(|row| row.pid == Some(pid));
            assert!(own.any(|row| row.name == name), "{pid} {name}");
        }
    });
}
