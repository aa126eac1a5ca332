//! The guest agent: device nodes in Debian's kernels, used from C and from a shell, over the virtio port.

use std::env;

use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program, once};

/// Modules of a stock kernel that the agent needs in a guest.
const MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "fuse", "cuse"];
/// Where the programs are linked to; nothing depends on it.
const ADDRESS: u64 = 0x40_0000;

kvmprof_tests::in_each_kernel! {
    nodes_behave
    reads_of_any_size_return_available_data
    each_side_has_its_own_pcs
}

/// A guest with that series of kernels that has run all its checks.
fn run(series: &str) -> Finished {
    once(&format!("agent-{series}"), || {
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
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .file("series", series.into())
            .file("guest.cpio", guest)
            .run(include_str!("driver.sh"))
    })
}

fn each_side_has_its_own_pcs(run: &Finished) {
    // A host that is too slow for the rate is reported before.
    let beside = run.text("beside");
    assert_eq!(beside.lines().last(), Some("status 0"), "{beside}");
    let guest = run.console("guest");
    for check in [
        "an open after the host has gathered",
        "an open while the host gathers",
    ] {
        assert!(guest.has(&format!("check {check}: ok")), "{}", guest.text());
    }
}

/// Kills of pcsd without `KVMPROF_KILLS`.
const KILLS: &str = "2";

/// The same nodes on the host itself, by kvmprof's socket; then pcsd is killed at random times.
fn run_over_a_socket() -> Finished {
    once("agent-socket", || {
        let kills = env::var("KVMPROF_KILLS").unwrap_or_else(|_| KILLS.to_owned());
        let program = guest_program("agent_pcs.c", ADDRESS, &[]);
        let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
        Scenario::new()
            .module("cuse")
            .file("kills", kills.into_bytes())
            .program("pcsd", &pcsd)
            .program_contents("agent_pcs", &program.file)
            .file("demo.elf", kvmprof_demo_guest::ELF.to_vec())
            .run(include_str!("socket.sh"))
    })
}

#[test]
fn nodes_vanish_with_a_killed_agent() {
    let finished = run_over_a_socket();
    println!(
        "{} kills of pcsd; its last reader: {}",
        finished.text("kills").trim(),
        finished.text("reader").trim()
    );
    assert!(!finished.text("reader").is_empty());
    let status = finished.status_document("freed");
    assert!(status.pcs().is_some_and(|pcs| !pcs.open), "{status:?}");
}

#[test]
fn nodes_behave_over_a_socket() {
    let finished = run_over_a_socket();
    let text = finished.text("checks");
    println!("{text}");
    assert!(text.contains("agent_pcs: ") && text.contains(" 0 failed"));
}

/// Each check in the guest has a line of its own.
fn nodes_behave(run: &Finished) {
    let console = run.console("guest");
    let text = console.text();
    println!("{text}");
    assert_eq!(run.status("guest"), 0, "{}", run.text("guest.stderr"));
    let failed = console.failed_checks();
    assert!(failed.is_empty(), "{failed:#?}");
    for program in ["agent_pcs", "agent_prf", "agent_life"] {
        assert!(
            text.contains(&format!("{program}: ")),
            "{program} didn't end"
        );
    }
    let passed = text.lines().filter(|line| line.ends_with(": ok")).count();
    assert!(passed >= 110, "{passed} checks");
    let series = run.text("series");
    assert!(console.after("release ").starts_with(&format!("{series}.")));
    assert!(text.contains("pcsd: 6 nodes for 2 vCPUs at 100 Hz"));
}

fn reads_of_any_size_return_available_data(run: &Finished) {
    let console = run.console("guest");
    for (size, bytes) in [(1, 3), (333, 999), (1024, 3072)] {
        assert_eq!(console.number(&format!("dd {size} ")), bytes);
    }
    for size in [1000, 4097, 200_000] {
        // A read returns the available data, and may end with a buffer.
        let bytes = console.number(&format!("dd {size} "));
        assert!(bytes > 0 && bytes <= 3 * size, "{bytes} of dd by {size}");
    }
}
