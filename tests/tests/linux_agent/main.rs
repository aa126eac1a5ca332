//! The guest agent: device nodes in Debian's kernels, used from C and from a shell, over the virtio port.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use kvmprof_tests::linux::{Console, Scenario, debian, guest_builder, guest_program};

/// Modules of a stock kernel that the agent needs in a guest.
const MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "fuse", "cuse"];
/// Where the programs are linked to; nothing depends on it.
const ADDRESS: u64 = 0x40_0000;

#[test]
fn nodes_behave_in_linux_6_1() {
    check(&run("6.1"), "6.1.");
}

#[test]
fn nodes_behave_in_linux_6_12() {
    check(&run("6.12"), "6.12.");
}

/// Boots a guest that runs all checks; what it said.
fn run(series: &str) -> Console {
    let kernel = debian(series);
    let program = |source: &str| guest_program(source, ADDRESS, &[]);
    let (pcs, prf) = (program("agent_pcs.c"), program("agent_prf.c"));
    let life = program("agent_life.c");
    let programs = [
        ("agent_pcs", &pcs),
        ("agent_prf", &prf),
        ("agent_life", &life),
    ];
    let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
    let guest = guest_builder(include_str!("init.sh"), &programs)
        .add(pcsd, "/bin/pcsd")
        .modules(&kernel, &MODULES)
        .build()
        .unwrap();
    let finished = Scenario::new()
        .kernel("vmlinuz", &kernel)
        .file("guest.cpio", guest)
        .run(include_str!("driver.sh"));
    assert_eq!(
        finished.status("guest"),
        0,
        "{}",
        finished.text("guest.stderr")
    );
    let limited = finished.console("limited");
    assert!(!limited.has(": failed:"), "{}", limited.text());
    assert!(limited.has("check an allowed open: ok"));
    let refused = finished.text("refused");
    assert!(refused.contains("EBUSY"), "{refused}");
    assert!(!refused.contains("status 0"), "{refused}");
    finished.console("guest")
}

/// The same nodes on the host itself, by kvmprof's socket.
#[test]
fn nodes_behave_over_a_socket() {
    let program = guest_program("agent_pcs.c", ADDRESS, &[]);
    let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
    let finished = Scenario::new()
        .module("cuse")
        .program("pcsd", &pcsd)
        .program_contents("agent_pcs", &program.file)
        .file("demo.elf", kvmprof_demo_guest::ELF.to_vec())
        .run(include_str!("socket.sh"));
    let text = finished.text("checks");
    println!("{text}");
    assert!(text.contains("agent_pcs: ") && text.contains(" 0 failed"));
}

fn check(console: &Console, release: &str) {
    let text = console.text();
    println!("{text}");
    assert!(console.after("release ").starts_with(release));
    let failed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(": failed:"))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    for program in ["agent_pcs", "agent_prf", "agent_life"] {
        assert!(
            text.contains(&format!("{program}: ")),
            "{program} didn't end"
        );
    }
    let passed = text.lines().filter(|line| line.ends_with(": ok")).count();
    assert!(passed >= 110, "{passed} checks");
    for (size, bytes) in [(1, 3), (333, 999), (1024, 3072)] {
        assert_eq!(console.number(&format!("dd {size} ")), bytes);
    }
    for size in [1000, 4097, 200_000] {
        // A read gives what is there, and may end with a buffer.
        let bytes = console.number(&format!("dd {size} "));
        assert!(bytes > 0 && bytes <= 3 * size, "{bytes} of dd by {size}");
    }
    assert!(text.contains("pcsd: 4 nodes for 2 vCPUs at 100 Hz"));
}
