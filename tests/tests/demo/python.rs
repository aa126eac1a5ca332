//! The independent clients in Python, written from the wire's pages alone, against a running guest.

use kvmprof_tests::{
    Boot, Guest, on_kvm_with_python, python_client, read_status, run_command, until,
};
use serde_json::{Value, json};

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2"])
}

fn client(guest: &Guest, arguments: &[&str]) -> String {
    example("pcs_client.py", guest, arguments)
}

/// What the script says.
fn example(script: &str, guest: &Guest, arguments: &[&str]) -> String {
    let ran = run_command(&mut python_client(script, guest, arguments));
    assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
    ran.stdout
}

/// A recording of a second, which has no faults.
fn recorded(guest: &Guest, options: &[&str]) -> Value {
    let words = [&["record", "--seconds", "1", "--json"], options].concat();
    let result: Value = serde_json::from_str(&client(guest, &words)).unwrap();
    assert_eq!(result["faults"], json!([]));
    result
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
            // On a busy host not all of them run in such a time.
            until("all processes are met", || {
                let result = recorded(&guest, options);
                assert_eq!(result["ledger"]["pending"], 0);
                let is_met = |pid: &&str| result["pids"][*pid]["USER"].as_u64() > Some(0);
                ["101", "102", "103", "201"]
                    .iter()
                    .all(is_met)
                    .then_some(())
            });
        }
        until("the group is met", || {
            let result = recorded(&guest, &["--group", "200"]);
            let mut pids = result["pids"].as_object().unwrap().keys();
            let is_met = pids.len() > 0;
            assert!(pids.all(|pid| *pid == "201"), "{result}");
            is_met.then_some(())
        });
        // A reader that stalls loses samples, if the host is not too busy, and both sides count the same.
        let result = recorded(&guest, &["--stall", "1"]);
        assert_eq!(result["lost_by_headers"], result["ledger"]["lost"]);
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
            let said = example("prf_client.py", &guest, &["sample", "--seconds", "2"]);
            let is_shown = |name: &&str| said.lines().any(|line| line.starts_with(*name));
            names.iter().all(is_shown).then_some(())
        });
        let said = example("prf_client.py", &guest, &["state"]);
        assert!(said.starts_with("off\n"), "{said}");
        guest.stop();
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
        let processes = client(&guest, &["processes"]);
        for (pid, name) in [
            (101, "weaver"),
            (102, "spinner"),
            (103, "carder"),
            (201, "dyer"),
        ] {
            let line = format!("{pid}\t{pid}\t{name}");
            assert!(
                processes.lines().any(|found| found == line),
                "{line}: {processes}"
            );
        }
        let status = read_status(client(&guest, &["status"]));
        assert_eq!(status.machine.vcpus, 2);
        pcs.stop();
        guest.stop();
    });
}
