use super::*;
use crate::{ConsumerLedger, StackParts};

/// The members' names and types, on which clients in other languages rely.
#[test]
fn a_document_has_this_form() {
    let ledger = ConsumerLedger {
        ticks: 5,
        recorded: 2,
        pending: 3,
        ..ConsumerLedger::default()
    };
    let sum = ClockLedger {
        ticks: 5,
        sampled: 4,
        lost: 1,
        ..ClockLedger::default()
    };
    let stacks = StackParts {
        kernel: true,
        user: false,
    };
    let status = Status {
        version: "0.1.0".to_owned(),
        machine: MachineStatus {
            kernel: "bzImage".to_owned(),
            memory_bytes: 1 << 20,
            vcpus: 1,
            introspection: "not at all".to_owned(),
            linux: Some(LinuxStatus {
                release: "6.1.0".to_owned(),
                slide: Some(2 << 20),
                gaps: Vec::new(),
            }),
            ..MachineStatus::default()
        },
        sandbox: [("seccomp".to_owned(), "on".to_owned())].into(),
        clock: ClockStatus {
            hz: 100,
            running: true,
            source: "thread".to_owned(),
            registers: "run page".to_owned(),
            halted_ticks: "without a wake-up".to_owned(),
            ledger: sum,
            vcpus: vec![sum],
            ..ClockStatus::default()
        },
        limits: LimitsStatus {
            forgotten_files: 2,
            ..LimitsStatus::default()
        },
        consumers: vec![
            ConsumerStatus::Pcs(PcsStatus::new(true, false, ledger)),
            ConsumerStatus::Prf(PrfStatus::new(3, true, 40, ledger)),
            ConsumerStatus::Recorder(RecorderStatus {
                path: Some("a.kvmprof".to_owned()),
                ..RecorderStatus::new(true, stacks, ledger)
            }),
            ConsumerStatus::Recorder(RecorderStatus {
                pids: vec![7],
                ..RecorderStatus::new(false, stacks, ledger)
            }),
        ],
    };
    let account = r#""ledger":{"discarded":0,"lost":0,"merged":0,"pending":3,"recorded":2,"stolen":0,"ticks":5,"ungathered":0}"#;
    let clock = r#"{"idle":0,"lost":1,"sampled":4,"stolen":0,"ticks":5}"#;
    let expected = [
        r#"{"clock":{"event":null,"halted_ticks":"without a wake-up","hz":100,"jitter":false,"#,
        &format!(r#""ledger":{clock},"registers":"run page","running":true,"source":"thread","unread_processes":0,"vcpus":[{clock}]}},"#),
        &format!(r#""consumers":[{{"gathering":false,{account},"name":"pcs","open":true}},"#),
        &format!(r#"{{"addresses":40,{account},"loaded":true,"minor":3,"name":"prf 3","on":true}},"#),
        &format!(r#"{{{account},"name":"recorder","path":"a.kvmprof","pids":[],"recording":true,"stacks":{{"kernel":true,"user":false}}}},"#),
        &format!(r#"{{{account},"name":"recorder","path":null,"pids":[7],"recording":false,"stacks":{{"kernel":true,"user":false}}}}],"#),
        r#""limits":{"forgotten_address_spaces":0,"forgotten_files":2,"forgotten_modules":0,"forgotten_names":0,"refused_modules":0,"#,
        r#""refused_tables":0,"unnamed_functions":0,"unread_mappings":0},"#,
        r#""machine":{"disks":[],"ended":false,"entropy":null,"folders":[],"held":false,"introspection":"not at all","kernel":"bzImage","#,
        r#""linux":{"release":"6.1.0","slide":2097152},"memory_bytes":1048576,"networks":[],"paused":false,"power_button":false,"resets":0,"#,
        r#""unclaimed_accesses":{"mmio_reads":0,"mmio_writes":0,"port_reads":0,"port_writes":0},"vcpus":1,"virtio":null,"vsock":null},"#,
        r#""sandbox":{"seccomp":"on"},"version":"0.1.0"}"#,
    ]
    .concat();
    assert_eq!(status.to_json().unwrap(), expected);
    assert_eq!(Status::from_json(expected.as_bytes()).unwrap(), status);
}

/// The names of an object's members.
fn members(part: &impl Serialize) -> String {
    let part = serde_json::to_value(part).unwrap();
    let names = part.as_object().unwrap().keys().map(String::as_str);
    names.collect::<Vec<_>>().join(" ")
}

/// Those of the parts that aren't in the document above, on which clients in other languages rely as
/// well.
#[test]
fn parts_have_these_members() {
    let found = [
        members(&VirtioStatus::default()),
        members(&PortStatus::default()),
        members(&DiskStatus::default()),
        members(&NetworkStatus::default()),
        members(&FrameCounts::default()),
        members(&EntropyStatus::default()),
        members(&FolderStatus::default()),
        members(&VsockStatus::default()),
    ];
    let expected = [
        "control_faults ports refused_queues resets",
        "name protocol_faults queue_faults",
        "bytes bytes_read bytes_written discards errors flushes format path queue_faults readonly reads refused serial writes zeroings",
        "link_losses mac peer peer_faults queue_faults received refused_queues resets sent up",
        "bytes dropped frames malformed",
        "bytes queue_faults requests source_errors",
        "failure failures queue_faults readonly refused_queues refused_requests resets restarts source state tag",
        "cid clients_turned_away connections credit_violations guest_connections guest_refused host_connections host_refused \
         malformed queue_faults received_bytes refused_queues resets sent_bytes socket unknown",
    ];
    assert_eq!(found, expected);
}

/// Each kind of consumer is distinguished by its members.
#[test]
fn consumers_are_found_by_their_kind() {
    let status = Status::from_json(
        br#"{ "consumers": [
            { "name": "guest pcs", "open": true, "gathering": false, "ledger": {} },
            { "name": "profil 7", "pid": 7, "state": "on", "kept": true, "ledger": { "ticks": 3 } },
            { "name": "pmc", "processes": 2, "accounts": 1, "kernel": ["cpu-time"], "ledger": {} }
        ] }"#,
    )
    .unwrap();
    let profiles = status.profil().map(|one| (one.pid, one.ledger.ticks));
    assert_eq!(profiles.collect::<Vec<_>>(), [(7, 3)]);
    let (profil, pmc) = (status.profil().next().unwrap(), status.pmc().unwrap());
    assert_eq!(members(profil), "kept ledger name pid state");
    assert_eq!(members(pmc), "accounts kernel ledger name processes");
    assert_eq!(pmc.processes, 2);
    assert_eq!(status.pcs().map(|pcs| pcs.name.as_str()), Some("guest pcs"));
    assert_eq!(Status::default().pmc(), None);
}

#[test]
fn a_document_of_another_version_is_read() {
    let document = br#"{
        "version": "9", "clock": { "hz": 50, "phase": 1, "event": "cycles:1000" }, "extra": [],
        "consumers": [
            { "name": "pmc", "counters": 4, "ledger": { "ticks": 1, "recorded": 1, "spilt": 0 } },
            { "name": "pcs", "open": true, "gathering": true, "format": "native", "ledger": {} }
        ]
    }"#;
    let status = Status::from_json(document).unwrap();
    assert_eq!((status.clock.hz, status.clock.running), (50, false));
    assert_eq!(status.clock.event.as_deref(), Some("cycles:1000"));
    let [pmc, pcs] = status.consumers.as_slice() else {
        panic!("{status:?}");
    };
    assert_eq!((pmc.name(), pmc.ledger().ticks), ("pmc", 1));
    assert!(pmc.ledger().balances());
    assert_eq!(pcs.name(), "pcs");
    assert!(status.pcs().unwrap().gathering);
    assert_eq!(status.prf().count() + status.recorders().count(), 0);
    assert!(Status::from_json(br#"{"clock": {"hz": "fast"}}"#).is_err());
    assert!(Status::from_json(b"no guest").is_err());
}
