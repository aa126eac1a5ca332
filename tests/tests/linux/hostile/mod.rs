//! A Linux guest whose driver does to its network, its sockets and its folder what no driver may do, while all that serves them is alive: passt, virtiofsd, and
//! the processes by which kvmprof connects.

use kvmprof_lab::{GUEST_NETWORK, virtiofsd};
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program, once};

/// Where the programs lie.
const ADDRESS: u64 = 0x4000_0000;
const MODULES: [&str; 4] = [
    "virtio_mmio",
    "virtio_net",
    "virtiofs",
    "vmw_vsock_virtio_transport",
];
/// The devices by their ids (virtio 1.2, 5), and how many attacks there are on each.
const DEVICES: [&str; 3] = ["1", "19", "26"];
const ATTACKS: usize = 23;

fn run() -> Finished {
    once("hostile", || {
        let kernel = debian("6.12");
        let rings = guest_program("hostile_rings.c", ADDRESS, &[]);
        let sockets = guest_program("sockets.c", ADDRESS, &[]);
        let programs = [("hostile_rings", &rings), ("sockets", &sockets)];
        let guest = guest_builder(include_str!("init.sh"), &programs).modules(&kernel, &MODULES);
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .guest_network()
            .program_with_libraries("virtiofsd", &virtiofsd())
            .program_contents("sockets", &sockets.file)
            .file("guest.cpio", guest.build().unwrap())
            .run(&format!("{GUEST_NETWORK}\n{}", include_str!("driver.sh")))
    })
}

/// Each attack came to its end, and clients had their answers meanwhile.
#[test]
fn kvmprof_goes_on_and_answers_during_each_attack() {
    let run = run();
    let said = run.console("guest").text();
    println!("{said}");
    for device in DEVICES {
        let begin = format!("attacked {device} ");
        let made = said.lines().filter(|line| line.starts_with(&begin));
        let made = made.count();
        assert_eq!(made, ATTACKS, "device {device}");
    }
    assert_eq!(run.text("failures"), "");
    let answers = run.text("answers");
    println!("in hundredths of a second: {}", answers.replace('\n', " "));
    assert!(answers.lines().count() >= 5, "{answers}");
    let (contents, _) = run.recording("guest.kvmprof");
    assert_eq!(contents.closed, Some(contents.account));
    assert!(contents.account.balances(), "{:?}", contents.account);
    assert_eq!(run.status("guest"), 0);
}

/// What the driver did is counted, and told without filling the log.
#[test]
fn what_cannot_be_used_is_reported() {
    let run = run();
    let machine = run.status_document("attacked.json").machine;
    let (network, folder) = (&machine.networks[0], &machine.folders[0]);
    let vsock = machine.vsock.unwrap();
    println!("{network:?}\n{folder:?}\n{vsock:?}");
    for (faults, refused) in [
        (network.queue_faults, network.refused_queues),
        // virtiofsd serves its queues, and ends at what it can't use.
        (folder.failures, folder.refused_queues),
        (vsock.counts.queue_faults, vsock.refused_queues),
    ] {
        assert!(faults > 0 && refused > 0, "{faults} {refused}");
    }
    let said = run.text("guest.stderr");
    println!("{said}");
    assert!(!said.contains("panicked"), "{said}");
    assert!(said.lines().count() < 200, "{said}");
}

/// No process has ended but those that a broken connection ends, and the kernel's own drivers find all devices in order.
#[test]
fn devices_work_for_the_next_driver_after_the_attacks() {
    let run = run();
    let console = run.console("guest");
    let sum = run.text("file.sum");
    for device in ["network ", "folder ", "sockets "] {
        assert_eq!(console.after(device), sum.trim(), "{device}");
    }
    assert_eq!(run.text("taken.sum"), sum);
    let ours = |name: &str| {
        let text = run.text(&format!("{name}.helpers"));
        let names = text.lines().filter(|name| name.starts_with("kvmprof-"));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = ours("before");
    println!("{before:?}");
    for name in ["kvmprof-share", "kvmprof-socket", "kvmprof-vsock"] {
        assert!(before.iter().any(|other| other == name), "{before:?}");
    }
    assert_eq!(ours("after"), before);
}
