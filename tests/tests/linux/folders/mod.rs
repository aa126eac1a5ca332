//! Folders of the host in Debian's kernels: mounted, and as the root. One machine runs all guests.

use std::fs;

use kvmprof_initramfs::in_load_order;
use kvmprof_lab::{Kernel, virtiofsd};
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program, once};

const CALLS: u64 = 0x1000_0000;
/// More than fits below the hole at 3 GiB.
const MEMORY: &str = "3584M";
/// For that, and for the lab's own machine.
const LAB_MEMORY_MIB: u64 = 5120;

/// Only the modules that the root needs: the whole folder would fill most of the lab's memory.
pub fn modules(kernel: &Kernel) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let names = ["virtio_mmio", "virtio_console", "virtiofs", "overlay"];
    for module in in_load_order(kernel, &names).unwrap() {
        let path = folder.path().join(format!("{}.ko", module.name));
        fs::write(path, module.contents).unwrap();
    }
    let whole = kernel.modules_folder().unwrap();
    for list in ["modules.builtin", "modules.order"] {
        fs::copy(whole.join(list), folder.path().join(list)).unwrap();
    }
    folder
}

fn run() -> Finished {
    once("folders", || {
        let (old, new) = (debian("6.1"), debian("6.12"));
        let guest = guest_builder(include_str!("init.sh"), &[]).modules(&new, &["virtio_mmio"]);
        let modules = modules(&old);
        let calls = guest_program("calls.c", CALLS, &["-fno-omit-frame-pointer"]);
        Scenario::new()
            .memory(LAB_MEMORY_MIB)
            .kernel("vmlinuz-6.1", &old)
            .unpacked_kernel("vmlinux-6.12", &new)
            .folder("modules", modules.path())
            .program_with_libraries("virtiofsd", &virtiofsd())
            .program_contents("calls", &calls.file)
            .file("memory", MEMORY.as_bytes().to_vec())
            .file("guest.cpio", guest.build().unwrap())
            .run(include_str!("driver.sh"))
    })
}

/// The program's functions have their names in the report of a recording of its run in the folder.
fn has_functions_of_calls(run: &Finished, name: &str) {
    let report = run.json(&format!("{name}.json"));
    let functions = report["functions"].as_array().unwrap();
    let names: Vec<&str> = functions
        .iter()
        .filter_map(|function| function["name"].as_str())
        .collect();
    assert!(names.contains(&"inner"), "{names:?}");
}

#[test]
fn a_guest_reads_and_writes_a_folder_also_after_a_reset() {
    let run = run();
    let console = run.console("folder");
    println!("{}", console.text());
    let sum = run.text("file.sum");
    let said = console
        .text()
        .matches(&format!("sum {}", sum.trim()))
        .count();
    // Both folders before and after the reset, one after the end of the other's daemon, and that with a new
    // one.
    assert_eq!(said, 6);
    assert!(console.has("written") && console.has("mounted again"));
    assert_eq!(run.text("moved"), "from the guest\n");
    assert_eq!(run.status("folder"), 0);
}

#[test]
fn a_readonly_folder_stays_as_it_is() {
    let run = run();
    let console = run.console("folder");
    for change in ["touch /ro/new", "rm /ro/file", "chmod 777 /ro/file"] {
        assert!(console.has(&format!("refused: {change}")), "{change}");
    }
    assert_eq!(run.text("other.list"), "file\n");
}

#[test]
fn a_guest_continues_after_the_end_of_virtiofsd() {
    let run = run();
    assert!(run.console("folder").has("goes on"));
    let said = run.text("folder.stderr");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("the program that serves the folder has ended"),
        "{said}"
    );
}

#[test]
fn unanswered_requests_fail_until_the_driver_restarts() {
    let run = run();
    let console = run.console("folder");
    // One from before, and one from after.
    for request in ["asked: ", "later: "] {
        let said = console.after(request);
        assert!(said.contains("Input/output error"), "{request}{said}");
    }
    assert!(console.has("served again"));
    let folders = run.status_document("folder.status.json").machine.folders;
    println!("{folders:?}");
    let [work, other] = folders.as_slice() else {
        panic!("two folders");
    };
    assert_eq!(
        (work.tag.as_str(), work.state.as_str()),
        ("work", "serving")
    );
    assert_eq!((work.source.as_str(), work.readonly), ("/run/work", false));
    // After the guest's reset, and after the failure.
    assert_eq!((work.restarts, work.failures), (2, 1));
    assert!(work.refused_requests >= 2, "{work:?}");
    assert!(other.readonly);
    assert_eq!(other.failure, None);
    for folder in [work, other] {
        let faults = (folder.queue_faults, folder.refused_queues);
        assert_eq!(faults, (0, 0), "{folder:?}");
    }
    let text = run.text("folder.status.text");
    assert!(
        text.contains("folder     work, /run/work, serving"),
        "{text}"
    );
    assert!(
        text.contains("failed last because the program that serves the folder has ended"),
        "{text}"
    );
}

#[test]
fn programs_of_folders_have_their_functions_names() {
    let run = run();
    // From the page cache, then from that of a file below an overlay, and from the folder itself.
    for name in ["folder", "root", "shell"] {
        has_functions_of_calls(&run, name);
    }
}

#[test]
fn a_folder_is_the_root_and_stays_as_it_is() {
    let run = run();
    let console = run.console("root");
    println!("{}", console.text());
    assert!(console.has("changed"));
    assert!(run.path("unchanged").exists());
    assert_eq!(run.status("root"), 7, "{}", run.text("root.stderr"));
    assert!(console.has("/dev/ttyS0") && console.has("2"));
    let memory: u64 = console.after("memory ").parse().unwrap();
    assert!(memory > 3300, "{memory} MiB");
}

#[test]
fn a_shell_is_on_the_console() {
    let run = run();
    let console = run.console("shell");
    println!("{}", console.text());
    // A typed file exists.
    assert!(console.text().lines().all(|line| line.trim() != "not here"));
    assert_eq!(run.status("shell"), 0, "{}", run.text("shell.stderr"));
    assert_eq!(run.text("by-guest"), "by the guest\n");
}

#[test]
fn virtiofsd_ends_with_kvmprof() {
    // The machine's script waits for that.
    assert!(!run().text("daemons").trim().is_empty());
}
