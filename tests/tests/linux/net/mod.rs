//! The network device and the entropy device, as Debian's own drivers see them: over passt and over a tap.

use kvmprof_lab::{InitramfsBuilder, Kernel};
use kvmprof_tests::linux::{Console, Finished, Scenario, debian, once};
use serde_json::Value;

const COMMON: &str = include_str!("common.sh");

/// Bytes of the file that goes there and back.
const FILE: u64 = 1 << 20;
/// Bytes of the file that is fetched while the peer goes.
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
        let passt = kvmprof_lab::passt().unwrap();
        Scenario::new()
            .kernel("vmlinuz", &kernel)
            .program_with_libraries("passt", &passt)
            .module("dummy")
            .module("tun")
            .file("passt.cpio", init(&kernel, include_str!("passt.sh")))
            .file("tap.cpio", init(&kernel, include_str!("tap.sh")))
            .run(include_str!("driver.sh"))
    })
}

/// The status document's part about the network.
fn network(run: &Finished, name: &str) -> Value {
    run.json(name)["machine"]["networks"][0].clone()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// What goes over the network arrives as it was, in both directions, and again when the peer has gone and come back.
fn check_transfers(run: &Finished, name: &str) -> Console {
    let console = run.console(name);
    println!("{}", console.text());
    let sum = |file: &str| run.text(file).trim().to_owned();
    assert_eq!(console.after("fetched "), sum("file.sum"));
    assert_eq!(sum(&format!("{name}.taken.sum")), sum("file.sum"));
    assert!(console.has("interrupted"), "the transfer was over before");
    assert_eq!(console.after("again "), sum("long.sum"));
    assert_eq!(run.status(name), 0);

    let down = network(run, &format!("{name}.down.json"));
    assert_eq!(down["up"], false, "{down}");
    assert_eq!(down["link_losses"], 1, "{down}");
    let end = network(run, &format!("{name}.end.json"));
    println!("{end}");
    assert_eq!(end["up"], true, "{end}");
    assert_eq!(end["link_losses"], 1, "{end}");
    assert!(count(&end["received"]["bytes"]) > FILE + LONG, "{end}");
    assert!(count(&end["sent"]["bytes"]) > FILE, "{end}");
    for none in ["queue_faults", "refused_queues"] {
        assert_eq!(end[none], 0, "{end}");
    }
    assert_eq!(end["sent"]["malformed"], 0, "{end}");
    console
}

/// Whether the driver and the device have agreed on this feature.
fn has(console: &Console, feature: usize) -> bool {
    console.after("features ").as_bytes()[feature] == b'1'
}

/// Features: checksums and TSO over IPv4, of frames that are sent and that are received.
const OFFLOADS: [usize; 4] = [0, 1, 7, 11];

#[test]
fn a_guest_has_a_network_by_passt() {
    let run = run();
    let console = check_transfers(&run, "passt");
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
    // Work was left to the other side: frames are longer than packets of the link.
    let end = network(&run, "tap.end.json");
    for direction in ["sent", "received"] {
        let (frames, bytes) = (&end[direction]["frames"], &end[direction]["bytes"]);
        println!(
            "{direction}: {} bytes a frame",
            count(bytes) / count(frames)
        );
    }
    assert!(count(&end["received"]["bytes"]) / count(&end["received"]["frames"]) > 1514);
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
    let entropy = run.json("passt.end.json")["machine"]["entropy"].clone();
    assert!(count(&entropy["bytes"]) >= 32, "{entropy}");
    assert_eq!(entropy["queue_faults"], 0, "{entropy}");
}
