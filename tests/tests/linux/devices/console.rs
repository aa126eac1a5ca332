//! The console device: its ports, and the terminal.

use super::run;

/// The reply to a hello without the host's clock and processors: header, version.
const GREETED: &str = "20000000010000000180000000000000010001000100";
/// The replies to an open: header with tag 2 and the errno, and the handle if it is 0.
const OPENED: &str = "04000000020000000280000000000000";
const BUSY: &str = "00000000020000000280000010000000";

#[test]
fn ports_are_connections() {
    let run = run();
    let console = run.console("ports");
    println!("{}", console.text());
    assert_eq!(console.after("names "), "kvmprof.0 kvmprof.1");
    for name in ["greeted", "beside", "again", "new", "polite"] {
        let reply = console.after(&format!("{name} "));
        assert!(reply.starts_with(GREETED), "{name}: {reply}");
    }
    // Closing the port, and the driver's end, free pcs.
    for name in ["opened", "reopened", "free"] {
        let reply = console.after(&format!("{name} "));
        assert!(reply.starts_with(OPENED), "{name}: {reply}");
    }
    assert_eq!(console.after("busy "), BUSY);
    for round in 0..10 {
        let reply = console.after(&format!("round{round} "));
        assert!(reply.starts_with(GREETED), "{round}: {reply}");
        let reply = console.after(&format!("pcs{round} "));
        assert!(reply.starts_with(OPENED), "{round}: {reply}");
    }
    let status = run.status_document("ports.status.json");
    let virtio = status.machine.virtio.unwrap();
    assert_eq!(virtio.refused_queues, 0, "{virtio:?}");
    assert_eq!(virtio.control_faults, 0, "{virtio:?}");
    assert_eq!(virtio.ports[0].protocol_faults, 1, "{virtio:?}");
    assert_eq!(virtio.ports[0].queue_faults, 0, "{virtio:?}");
    assert_eq!(virtio.ports[1].protocol_faults, 0, "{virtio:?}");
    assert_eq!(console.number("hung up after "), 0);
    assert_eq!(run.status("ports"), 0);
}

#[test]
fn hvc0_is_a_terminal() {
    let run = run();
    let console = run.console("terminal");
    let text = console.text();
    let lines: Vec<u32> = text
        .lines()
        .filter_map(|line| line.strip_prefix("line ")?.parse().ok())
        .collect();
    assert!(lines.iter().copied().eq(1..=1000), "{lines:?}");
    assert_eq!(console.after("active "), "hvc0");
    assert_eq!(console.after("size "), "33 111");
    assert_eq!(console.after("later "), "44 122");
    assert_eq!(console.after("typed "), "off");
    assert!(console.has("terminal restored"));
    assert_eq!(run.status("terminal"), 0, "{}", run.text("terminal.stderr"));
}
