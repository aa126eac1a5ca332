//! getpc, pcstat and status on a running guest, as the README shows them.

use std::process::Command;

use kvmprof_tests::{
    Accounts, Boot, Guest, Ran, interrupt, kvmprof, ledger_of, on_kvm, read_status, run,
    run_command, until,
};
use serde_json::Value;

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2"])
}

/// `kvmprof getpc ... | kvmprof pcstat ...`
fn pipeline(guest: &Guest, getpc: &[&str], pcstat: &[&str]) -> Ran {
    let mut first = guest.spawn_command(&[&["getpc"], getpc].concat());
    let stream = first.stdout.take().unwrap();
    let mut second = Command::new(kvmprof());
    let output = second.arg("pcstat").args(pcstat).stdin(stream).output();
    assert!(first.wait().unwrap().success(), "getpc {getpc:?}");
    output.unwrap().into()
}

fn report(guest: &Guest, getpc: &[&str]) -> Value {
    let getpc = [&["--buffers", "10"], getpc, &["1"]].concat();
    let report = pipeline(guest, &getpc, &["--json"]).json();
    assert_eq!(report["problems"], serde_json::json!([]), "{getpc:?}");
    report
}

fn pids(report: &Value) -> Vec<i64> {
    let processes = report["processes"].as_array().unwrap().iter();
    let mut pids: Vec<i64> = processes
        .map(|process| process["pid"].as_i64().unwrap())
        .collect();
    pids.sort_unstable();
    pids
}

fn hits(report: &Value, kind: &str) -> u64 {
    report["types"][kind].as_u64().unwrap()
}

#[test]
fn the_readmes_pipeline_reports_who_ran() {
    on_kvm(|| {
        let guest = guest();
        // On a busy host not all of it is sampled in such a time.
        until("all of it is reported", || {
            let said = pipeline(&guest, &["--all", "2"], &[]).quiet();
            let words = [
                "weaver", "spinner", "carder", "dyer", "101", "201", "PROF_ALL", "1000 Hz",
                "2 vCPUs", "USER", "KERNEL", "KERNELI", "IDLE", "recorded", "stolen",
            ];
            let is_there = |word: &&str| said.contains(*word);
            words.iter().all(is_there).then_some(())
        });
        guest.stop();
    });
}

#[test]
fn every_choice_of_processes_is_reported() {
    on_kvm(|| {
        let guest = guest();
        let all = until("all processes are reported", || {
            let all = report(&guest, &["--all"]);
            let is_there = |pid| pids(&all).contains(pid);
            [101, 102, 103, 201].iter().all(is_there).then_some(all)
        });
        for process in all["processes"].as_array().unwrap() {
            let named = |(pid, _): &&(i64, &str)| process["pid"] == *pid;
            let names = [
                (101, "weaver"),
                (102, "spinner"),
                (103, "carder"),
                (201, "dyer"),
            ];
            if let Some((_, name)) = names.iter().find(named) {
                assert_eq!(process["name"], *name);
            }
        }
        let ledger = ledger_of(&all["ledger"]);
        assert!(ledger.balances(), "{ledger:?}");
        assert_eq!(all["hits"], ledger.recorded + ledger.merged);
        assert_eq!((&all["hz"], &all["vcpus"]), (&1000.into(), &2.into()));

        let until_hit = |choice: &[&str], kinds: [&str; 2]| {
            until("both kinds are hit", || {
                let report = report(&guest, choice);
                let is_hit = |kind| hits(&report, kind) > 0;
                kinds.into_iter().all(is_hit).then_some(report)
            })
        };
        let kernel = until_hit(&["--kernel"], ["KERNEL", "MUSER"]);
        assert_eq!((hits(&kernel, "USER"), hits(&kernel, "MKERNEL")), (0, 0));

        let listed = until_hit(&["--pids", "101,201"], ["MUSER", "MKERNELI"]);
        assert!(pids(&listed).iter().all(|pid| [101, 201].contains(pid)));
        assert_eq!(hits(&listed, "KERNEL"), 0);

        let group = until_hit(&["--group", "200"], ["USER", "MUSER"]);
        assert_eq!(pids(&group), [201]);
        guest.stop();
    });
}

/// head(1) reads a part of a stream, and ends.
#[test]
fn getpc_ends_when_its_reader_leaves() {
    on_kvm(|| {
        let guest = guest();
        for redirected in ["2>&1", "-o /dev/stdout 2>&1", "-o -"] {
            let script = format!(
                "\"$0\" getpc --socket \"$1\" --all {redirected} | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}"
            );
            let mut bash = Command::new("bash");
            bash.args(["-c", &script])
                .arg(kvmprof())
                .arg(guest.socket());
            assert_eq!(run_command(&mut bash).quiet(), "0\n", "{redirected}");
        }
        guest.stop();
    });
}

/// A file instead of a pipe, another rate, and an end by SIGINT.
#[test]
fn getpc_writes_a_file_until_it_is_interrupted() {
    on_kvm(|| {
        let guest = guest();
        let file = guest.folder().join("stream");
        let words = [
            "getpc",
            "--all",
            "--hz",
            "2000",
            "--buffers",
            "10",
            "--output",
        ];
        let getpc = guest.spawn_command(&[&words[..], &[file.to_str().unwrap()]].concat());
        let witness = guest.connect();
        until("getpc has read something", || {
            (Accounts::of(&witness).pcs.recorded > 300).then_some(())
        });
        let ended = interrupt(getpc);
        // On a busy host it may say that it has lost some.
        let says_losses = |line: &str| line.contains(" samples were lost: ");
        assert!(
            ended.status == 0 && ended.stderr.lines().all(says_losses),
            "{ended:?}"
        );
        let mut pcstat = Command::new(kvmprof());
        let report = run_command(pcstat.args(["pcstat", "--json"]).arg(&file)).json();
        assert_eq!(
            (&report["hz"], &report["ledger"]["pending"]),
            (&2000.into(), &0.into())
        );
        assert!(report["ledger"]["recorded"].as_u64().unwrap() > 300);
        guest.stop();
    });
}

/// The output of `status`, for people and for programs.
#[test]
fn status_is_complete() {
    on_kvm(|| {
        let guest = guest();
        let pcs = guest.open();
        let text = guest.command("status", &[]).quiet();
        for word in [
            "demo.elf", "2 vCPUs", "64M", "1000 Hz", "vCPU 0", "vCPU 1", "pcs", "open",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let json = guest.command("status", &["--json"]);
        let status = read_status(&json.stdout);
        assert_eq!(status.machine.vcpus, 2);
        assert!(status.pcs().is_some_and(|pcs| pcs.open));
        drop(pcs);
        let socket = guest.socket();
        guest.stop();
        let ran = run(["status".as_ref(), "--socket".as_ref(), socket.as_os_str()]);
        ran.assert_refused(1, &["No socket at"]);
    });
}
