//! The lab as a library: each test boots its own machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use kvmprof_lab::{Kernel, Lab, LabError, kernels};

use crate::{check_hang, check_panic, check_status_and_streams};

#[test]
fn arguments_of_the_command_arrive_unchanged() {
    let words = ["it's", "two words", "$HOME\\", "", "new\nline", "*"];
    let mut command = vec!["printf", "<%s>"];
    command.extend(words);
    let outcome = Lab::new().command(command).run().unwrap();
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    assert_eq!(String::from_utf8(outcome.stdout).unwrap(), expected);
}

#[test]
fn status_both_streams_files_and_the_output_folder_return_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let program = source.join("program");
    fs::write(&program, "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o751)).unwrap();
    let out = folder.path().join("out");
    let lab = Lab::new().add_to_lab(&program);
    let outcome = check_status_and_streams(
        lab.add(&source, "/else/where").out(&out),
        "{ program && stat -c %a /lab/program /else/where/program; } >$LAB_OUT/modes
         mkdir $LAB_OUT/sub && head -c 5000000 /dev/zero >$LAB_OUT/sub/zeros
         ln -s sub $LAB_OUT/link && chmod 600 $LAB_OUT/sub/zeros",
    );
    let modes = fs::read_to_string(out.join("modes")).unwrap();
    assert_eq!(modes, "ran\n751\n751\n");
    assert_eq!(outcome.out_dir.as_deref(), Some(out.as_path()));
    let zeros = fs::read(out.join("sub/zeros")).unwrap();
    assert!(zeros.len() == 5_000_000 && zeros.iter().all(|byte| *byte == 0));
    let mode = fs::metadata(out.join("sub/zeros"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("sub"));
}

#[test]
fn the_machine_is_as_configured_and_a_process_left_running_delays_nothing() {
    let outcome = Lab::new()
        .cpus(1)
        .memory(512)
        .script(
            "nproc; grep MemTotal /proc/meminfo; id -u; ip addr show lo; ls /proc/self/fd
             sh -c 'trap \"\" TERM HUP; while :; do sleep 1000; done' &",
        )
        .run()
        .unwrap();
    assert_eq!((outcome.status, outcome.out_dir), (0, None));
    let text = String::from_utf8(outcome.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "1", "{text}");
    let kibibytes: u64 = lines[1].split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!((400 << 10..512 << 10).contains(&kibibytes), "{text}");
    assert_eq!(lines[2], "0", "{text}");
    assert!(text.contains("127.0.0.1"), "{text}");
    // The three streams, and the folder that ls itself reads.
    let descriptors = lines
        .iter()
        .rev()
        .take_while(|line| line.parse::<u8>().is_ok());
    assert_eq!(descriptors.count(), 4, "{text}");
}

#[test]
fn kvm_runs_guests_under_each_of_debians_kernels() {
    let debian = kernels().unwrap();
    assert_eq!(debian.len(), 2);
    for (kernel, series) in debian.into_iter().zip(["6.1.", "6.12."]) {
        let version = kernel.version.clone();
        assert!(version.starts_with(series), "{version}");
        let outcome = Lab::new()
            .kernel(kernel)
            .add(env!("CARGO_BIN_EXE_kvmprof-lab"), "/lab/kvmprof-lab")
            .script("uname -r && kvmprof-lab probe")
            .run()
            .unwrap();
        let text = String::from_utf8(outcome.stdout).unwrap();
        assert_eq!(text, format!("{version}\n/dev/kvm runs guests\n"));
        assert_eq!(outcome.status, 0);
    }
}

#[test]
fn a_panic_is_reported_with_the_console() {
    check_panic(Lab::new());
}

#[test]
fn an_early_crash_is_reported() {
    const SETUP_SECTORS_AT: usize = 0x1f1;
    let mut kernel = kernels().unwrap().remove(0);
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("vmlinuz");
    let mut bytes = fs::read(&kernel.image).unwrap();
    // Only invalid instructions after the setup part: a triple fault.
    let entry = (usize::from(bytes[SETUP_SECTORS_AT]) + 1) * 512;
    bytes[entry..entry + 0x10000].fill(0xff);
    fs::write(&image, bytes).unwrap();
    kernel.image = image;
    let error = Lab::new()
        .kernel(kernel)
        .command(["true"])
        .run()
        .unwrap_err();
    assert!(matches!(error, LabError::NotUp { .. }), "{error}");
}

#[test]
fn messages_of_qemu_are_passed_on() {
    let error = Lab::new()
        .kernel(Kernel {
            image: "/dev/null".into(),
            ..kernels().unwrap().remove(0)
        })
        .command(["true"])
        .run()
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LabError::Refused { .. }), "{text}");
    assert!(text.contains("qemu: "), "{text}");
}

#[test]
fn a_machine_that_runs_too_long_is_ended() {
    let lab = Lab::new().run_limit(Duration::from_secs(1));
    let error = lab.command(["sleep", "1000"]).run().unwrap_err();
    assert!(matches!(error, LabError::Timeout { .. }), "{error}");
}

/// The command is ended, and its output so far is returned.
#[test]
fn a_machine_that_hangs_is_ended_and_its_output_kept() {
    let error = check_hang(Lab::new(), "sh -c 'while :; do :; done' & sleep 1000");
    let console = &error.traces().unwrap().console;
    assert!(console.contains("the host stops the command"), "{console}");
}

/// Without a receiver, nothing can be sent either.
#[test]
fn a_stopped_machine_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let error = Lab::new()
        .quiet_limit(Duration::from_secs(10))
        .out(folder.path())
        .script(
            "for process in /proc/[0-9]*; do
                 id=${process#/proc/}
                 [ $id = $$ ] || kill -STOP $id
             done
             kill -STOP $$",
        )
        .run()
        .unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, LabError::Silent { .. }), "{text}");
    assert!(
        text.contains("Its output folder did not come back"),
        "{text}"
    );
}

#[test]
fn a_machine_with_too_much_output_is_ended() {
    let error = Lab::new()
        .output_limit(100_000)
        .command(["yes"])
        .run()
        .unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text,
        "The lab machine sent more than 100000 bytes of standard output"
    );
    let folder = tempfile::tempdir().unwrap();
    let error = Lab::new()
        .out(folder.path())
        .out_limit(100_000)
        .script("head -c 10000000 /dev/zero >$LAB_OUT/big")
        .run()
        .unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text,
        "The lab machine sent more than 100000 bytes of output folder"
    );
}

#[test]
fn more_files_than_memory_are_refused_before_the_start() {
    let error = Lab::new()
        .memory(256)
        .contents("/lab/big", 0o600, vec![0; 200 << 20])
        .command(["true"])
        .run()
        .unwrap_err();
    assert!(
        matches!(error, LabError::TooBig { memory: 256, .. }),
        "{error}"
    );
}

#[test]
fn errors_of_a_kernel_without_modules_have_the_searched_paths() {
    let kernel = kernels().unwrap().remove(0);
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("vmlinuz");
    fs::copy(&kernel.image, &image).unwrap();
    let kernel = Kernel {
        modules: None,
        ..Kernel::from_image(&image).unwrap()
    };
    let version = kernel.version.clone();
    let error = Lab::new()
        .kernel(kernel)
        .command(["true"])
        .run()
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("/lib/modules/{version}")), "{text}");
    assert!(text.contains("dpkg -x"), "{text}");
}
