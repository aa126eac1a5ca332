//! The network device and the entropy device, as Debian's own drivers see them: over passt and over a tap.

use kvmprof_lab::{GUEST_NETWORK, InitramfsBuilder, Kernel};
use kvmprof_recording::status::NetworkStatus;
use kvmprof_tests::linux::{Console, Finished, Scenario, debian, once};

const COMMON: &str = include_str!("common.sh");

/// Bytes of the file that goes to the peer and back.
const FILE: u64 = 1 << 20;
/// Bytes of the file that is fetched while the peer ends.
const LONG: u64 = 48 << 20;

/// A guest's user space with the drivers' modules.
fn init(kernel: &Kernel, script: &str) -> Vec<u8> {
    let modules = ["virtio_mmio", "virtio_net", "virtio-rng"];
    InitramfsBuilder::new()
        .init(&format!("{COMMON}\n{script}"))
        .modules(kernel, &modules)
        .build()
        .unwrap()
}

/// Both guests, one after the other.
fn run() -> Finished {
    once("net", || {
        let kernel = debian("6.12");
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .guest_network()
            .file("passt.cpio", init(&kernel, include_str!("passt.sh")))
            .file("tap.cpio", init(&kernel, include_str!("tap.sh")))
            .run(&format!("{GUEST_NETWORK}\n{}", include_str!("driver.sh")))
    })
}

/// The status document's part about the network.
fn network(run: &Finished, name: &str) -> NetworkStatus {
    run.status_document(name).machine.networks.remove(0)
}

/// Data over the network arrives unchanged, in both directions, and again at a second time. The link goes down with the peer.
fn check_transfers(run: &Finished, name: &str) -> Console {
    let console = run.console(name);
    println!("{}", console.text());
    let sum = |file: &str| run.text(file).trim().to_owned();
    assert_eq!(console.after("fetched "), sum("file.sum"));
    assert_eq!(sum(&format!("{name}.taken.sum")), sum("file.sum"));
    assert_eq!(console.after("again "), sum("long.sum"));
    assert_eq!(run.status(name), 0);

    let down = network(run, &format!("{name}.down.json"));
    assert!(!down.up, "{down:?}");
    assert_eq!(down.link_losses, 1, "{down:?}");
    let end = network(run, &format!("{name}.end.json"));
    println!("{end:?}");
    assert!(end.up, "{end:?}");
    assert!(end.received.bytes > FILE + LONG, "{end:?}");
    assert!(end.sent.bytes > FILE, "{end:?}");
    assert_eq!((end.queue_faults, end.refused_queues), (0, 0), "{end:?}");
    assert_eq!(end.sent.malformed, 0, "{end:?}");
    console
}

/// Whether the driver and the device have negotiated this feature.
fn has(console: &Console, feature: usize) -> bool {
    console.after("features ").as_bytes()[feature] == b'1'
}

/// Features: checksums and TSO over IPv4, of frames that are sent and that are received.
const OFFLOADS: [usize; 4] = [0, 1, 7, 11];

#[test]
fn a_guest_has_a_network_by_passt() {
    let run = run();
    let console = check_transfers(&run, "passt");
    // The second transfer continued after passt's restart.
    assert!(console.has("interrupted"), "the transfer was over before");
    assert_eq!(network(&run, "passt.end.json").link_losses, 1);
    assert_eq!(console.after("address "), "10.0.2.15");
    assert_eq!(console.after("router "), "10.0.2.2");
    assert!(OFFLOADS.iter().all(|feature| !has(&console, *feature)));
}

#[test]
fn a_guest_has_a_network_by_a_tap() {
    let run = run();
    let console = check_transfers(&run, "tap");
    assert_eq!(console.after("mac "), "02:00:00:00:00:07");
    assert!(OFFLOADS.iter().all(|feature| has(&console, *feature)));
    // Segmentation was left to the other side: frames are longer than packets of the link.
    let end = network(&run, "tap.end.json");
    let [sent, received] = [end.sent, end.received].map(|counts| counts.bytes / counts.frames);
    println!("{sent} and {received} bytes a frame, sent and received");
    assert!(received > 1514);
    // It stayed down, though there was a tap of that name again.
    let gone = network(&run, "tap.gone.json");
    assert_eq!((gone.up, gone.link_losses), (false, 1), "{gone:?}");
    let said = run.text("tap.stderr");
    assert!(said.contains("the guest's link stays down"), "{said}");
}

#[test]
fn taps_of_others_are_refused() {
    let run = run();
    for (name, words) in [("busy", "in use by another program"), ("kind", "no tap")] {
        assert_eq!(run.status(name), 1);
        let said = run.text(&format!("{name}.stderr"));
        assert!(said.contains(words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn the_kernel_takes_random_bytes() {
    let run = run();
    let console = run.console("passt");
    assert_eq!(console.after("source "), "virtio_rng.0");
    let random = console.after("random ");
    assert_eq!(random.len(), 64);
    assert_ne!(random, "0".repeat(64));
    let status = run.status_document("passt.end.json");
    let entropy = status.machine.entropy.unwrap();
    assert!(entropy.bytes >= 32, "{entropy:?}");
    assert_eq!(entropy.queue_faults, 0, "{entropy:?}");
}
