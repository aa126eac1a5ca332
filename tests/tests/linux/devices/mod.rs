//! The console device, the socket device and the clock, as Debian's own drivers see them.

mod clock;
mod console;

use kvmprof_lab::InitramfsBuilder;
use kvmprof_recording::status::MachineStatus;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program, once};

/// The modules of the guest with sockets, and of those with consoles.
const MODULES: [&str; 3] = ["virtio_mmio", "vmw_vsock_virtio_transport", "ptp_kvm"];
const CONSOLE_MODULES: [&str; 2] = ["virtio_mmio", "virtio_console"];
/// The link address of the program that connects sockets.
const PROGRAM: u64 = 0x4000_0000;

/// All guests, one after the other. The agent's tests use the console's ports on the other kernel.
fn run() -> Finished {
    once("devices", || {
        let kernel = debian("6.12");
        let sockets = guest_program("sockets.c", PROGRAM, &[]);
        let guest = guest_builder(include_str!("init.sh"), &[("sockets", &sockets)]);
        let guest = guest.modules(&kernel, &MODULES);
        let [ports, terminal] = [include_str!("ports.sh"), include_str!("terminal.sh")]
            .map(|script| InitramfsBuilder::new().init(script))
            .map(|guest| guest.modules(&kernel, &CONSOLE_MODULES).build().unwrap());
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .program_contents("sockets", &sockets.file)
            .program_contents(
                "terminal",
                &guest_program("terminal.c", 0x40_0000, &[]).file,
            )
            .file("guest.cpio", guest.build().unwrap())
            .file("demo.elf", kvmprof_demo_guest::ELF.to_vec())
            .file("ports.cpio", ports)
            .file("terminal.cpio", terminal)
            .run(include_str!("driver.sh"))
    })
}

fn machine(run: &Finished, name: &str) -> MachineStatus {
    run.status_document(name).machine
}

#[test]
fn bytes_go_both_ways_over_sockets() {
    let run = run();
    let console = run.console("guest");
    println!("{}", console.text());
    let sum = |file: &str| run.text(&format!("{file}.sum")).trim().to_owned();
    // Connections by the guest, and to it; the sides close their directions one after the other.
    assert_eq!(console.after("in "), sum("file"));
    assert_eq!(console.after("out "), sum("taken"));
    assert_eq!(console.after("served "), sum("file"));
    assert_eq!(console.after("out "), sum("rest"));
    let answer = run.text("answer");
    let port = answer.trim().strip_prefix("OK ").unwrap();
    assert!(port.parse::<u32>().unwrap() >= 1 << 30, "{answer}");
    let refused = console.after("nobody: ");
    assert!(
        refused.contains("reset") || refused.contains("refused"),
        "{refused}"
    );
    assert_eq!(
        (run.text("nobody"), run.text("nonsense")),
        (String::new(), String::new())
    );

    let vsock = machine(&run, "end.json").vsock.unwrap();
    println!("{vsock:?}");
    assert_eq!(vsock.connections, 0, "{vsock:?}");
    let counts = vsock.counts;
    assert_eq!((counts.guest_connections, counts.guest_refused), (1, 1));
    assert_eq!((counts.host_connections, counts.host_refused), (1, 1));
    assert_eq!(vsock.clients_turned_away, 1, "{vsock:?}");
    assert_eq!(counts.received_bytes, 4_000_000, "{vsock:?}");
    assert_eq!(counts.sent_bytes, 6_000_000, "{vsock:?}");
    let faults = [
        counts.malformed,
        counts.credit_violations,
        counts.queue_faults,
        vsock.refused_queues,
    ];
    assert_eq!(faults, [0; 4], "{vsock:?}");
}

#[test]
fn the_guest_has_the_hosts_date() {
    let run = run();
    let console = run.console("guest");
    let date = console.after("date ");
    let (day, seconds) = date.split_once(' ').unwrap();
    assert_eq!(day, "2031-05-06");
    let now: u64 = run.text("now").trim().parse().unwrap();
    let guest: u64 = seconds.parse().unwrap();
    println!(
        "{date}, {now} on its host later; ptp {}",
        console.after("ptp ")
    );
    assert!(guest <= now && now - guest < 3600, "{guest} {now}");
    assert_eq!(console.after("source "), "kvm-clock");
    assert_eq!(console.after("rtc "), "0");
}
