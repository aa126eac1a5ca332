//! The independent clients in Python, written from the wire's pages alone, against a running guest.

use kvmprof_tests::read_status;
use kvmprof_tests::{Boot, Guest, Ran, on_kvm_with_python, python_client, run_command, until};
use serde_json::{Value, json};

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2"])
}

fn client(guest: &Guest, arguments: &[&str]) -> Ran {
    example("pcs_client.py", guest, arguments)
}

fn example(script: &str, guest: &Guest, arguments: &[&str]) -> Ran {
    let ran = run_command(&mut python_client(script, guest, arguments));
    assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
    ran
}

#[test]
fn python_records_what_the_guest_did() {
    on_kvm_with_python(|| {
        let guest = guest();
        for options in [
            &["--buffers", "7"][..],
            &["--classic"],
            &["--limit", "100", "--bsize", "4096"],
        ] {
            let words = [&["record", "--seconds", "1", "--json"], options].concat();
            // On a busy host not all of them run in such a time.
            until("all processes are met", || {
                let result: Value = serde_json::from_str(&client(&guest, &words).stdout).unwrap();
                assert_eq!(result["faults"], json!([]));
                assert_eq!(result["ledger"]["pending"], 0);
                let is_met = |pid| result["pids"][pid]["USER"].as_u64() > Some(0);
                ["101", "102", "103", "201"]
                    .into_iter()
                    .all(is_met)
                    .then_some(())
            });
        }
        let words = ["record", "--seconds", "1", "--json", "--group", "200"];
        until("the group is met", || {
            let result: Value = serde_json::from_str(&client(&guest, &words).stdout).unwrap();
            let pids: Vec<&String> = result["pids"].as_object().unwrap().keys().collect();
            assert!(pids.iter().all(|pid| *pid == "201"), "{result}");
            (!pids.is_empty()).then_some(())
        });
        // A reader that stalls loses samples, if the host is not too busy, and both sides count the same.
        let words = ["record", "--seconds", "1", "--json", "--stall", "1"];
        let result: Value = serde_json::from_str(&client(&guest, &words).stdout).unwrap();
        assert_eq!(result["faults"], json!([]));
        assert_eq!(result["lost_by_headers"], result["ledger"]["lost"]);
        guest.stop();
    });
}

#[test]
fn python_gets_every_error_of_the_pages() {
    on_kvm_with_python(|| {
        let guest = guest();
        let ran = example("page_checks.py", &guest, &["check"]);
        assert!(
            ran.stdout.contains("ok: a second open of pcs: EBUSY"),
            "{ran:?}"
        );
        guest.stop();
    });
}

#[test]
fn python_gets_every_error_of_prf() {
    on_kvm_with_python(|| {
        let guest = guest();
        let ran = example("page_checks.py", &guest, &["check-prf"]);
        assert!(
            ran.stdout.contains("ok: too many addresses: ENOSPC"),
            "{ran:?}"
        );
        guest.stop();
    });
}

#[test]
fn python_sees_the_kernels_functions_by_prf() {
    on_kvm_with_python(|| {
        let guest = guest();
        // The functions in which the demo guest's kernel spends its time, and those outside of the
        // kernel.
        let names = ["compute", "stretch_with_interrupts_off", "user", "idle"];
        until("all of them are sampled", || {
            let ran = example("prf_client.py", &guest, &["sample", "--seconds", "2"]);
            let is_shown = |name: &&str| ran.stdout.lines().any(|line| line.starts_with(*name));
            names.iter().all(is_shown).then_some(())
        });
        let ran = example("prf_client.py", &guest, &["state"]);
        assert!(ran.stdout.starts_with("off\n"), "{ran:?}");
        guest.stop();
    });
}

#[test]
fn protocol_errors_of_python_affect_no_other_client() {
    on_kvm_with_python(|| {
        let guest = guest();
        let ran = example("page_checks.py", &guest, &["malformed"]);
        assert!(
            ran.stdout.contains("ok: the other client at last: ok"),
            "{ran:?}"
        );
        guest.signal(rustix::process::Signal::TERM);
    });
}

/// The names of sampled processes equal the guest's own.
#[test]
fn python_reads_status_and_processes() {
    on_kvm_with_python(|| {
        let guest = guest();
        let mut pcs = guest.open();
        pcs.ioctl(kvmprof_abi::pcs::PROF_ALL, 0);
        pcs.read_ticks(600);
        let processes = client(&guest, &["processes"]).stdout;
        for line in [
            "101\t101\tweaver",
            "102\t102\tspinner",
            "103\t103\tcarder",
            "201\t201\tdyer",
        ] {
            assert!(
                processes.lines().any(|found| found == line),
                "{line}: {processes}"
            );
        }
        let status = read_status(client(&guest, &["status"]).stdout);
        assert_eq!(status.machine.vcpus, 2);
        pcs.stop();
        guest.stop();
    });
}
