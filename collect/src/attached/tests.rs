use super::*;
use kvmprof_attach::Obstacle;

fn machine(pid: i32, program: &str, name: Option<&str>) -> Machine {
    Machine {
        pid,
        start_time: 7,
        user: 0,
        program: program.to_owned(),
        name: name.map(str::to_owned),
        descriptor: 11,
        vcpus: Vec::new(),
        memory_bytes: None,
        obstacle: None,
    }
}

fn attached(limit: usize) -> Attached {
    let mut config = Config::default();
    config.attach.guests = vec!["*".to_owned()];
    config.attach.limit = limit;
    Attached::new(&config).unwrap().unwrap()
}

fn by_process(machines: Vec<Machine>) -> BTreeMap<Process, Machine> {
    let machines = machines.into_iter();
    machines
        .map(|machine| ((machine.pid, machine.start_time), machine))
        .collect()
}

#[test]
fn guests_are_matched_by_name_program_or_pid() {
    let patterns = |word: &str| vec![Pattern::new(word).unwrap()];
    let qemu = machine(4711, "qemu-system-x86_64", Some("db-1"));
    for (word, is) in [
        ("*", true),
        ("qemu-*", true),
        ("db-?", true),
        ("4711", true),
        ("471", false),
        ("web-*", false),
    ] {
        assert_eq!(is_meant(&patterns(word), &qemu), is, "{word}");
    }
    // kvmprof's own guests have sockets.
    assert!(!is_meant(&patterns("*"), &machine(1, "kvmprof", None)));
    assert!(Attached::new(&Config::default()).unwrap().is_none());
}

#[test]
fn guests_are_bounded_and_have_names_of_their_own() {
    let mut attached = attached(3);
    let mut encrypted = machine(9, "qemu", None);
    encrypted.obstacle = Some(Obstacle::Encrypted);
    let all = vec![
        machine(5, "qemu", Some("db")),
        machine(6, "qemu", Some("db")),
        machine(7, "a\x1bb", None),
        machine(8, "qemu", None),
        encrypted,
    ];
    attached.choose(by_process(all.clone()));
    let names = |attached: &Attached| -> Vec<String> {
        let guests = attached.guests.values();
        guests.map(|guest| guest.name.clone()).collect()
    };
    assert_eq!(names(&attached), ["db", "db-6", "a\u{fffd}b-7"]);
    assert_eq!((attached.left_out(), attached.logged.len()), (1, 1));
    // One that ends makes room; the others are unchanged.
    attached.choose(by_process(all[1..].to_vec()));
    assert_eq!(names(&attached), ["db-6", "a\u{fffd}b-7", "qemu-8"]);
    assert_eq!((attached.left_out(), attached.logged.len()), (0, 1));
}

#[test]
fn names_of_guests_stay_unique() {
    let mut attached = attached(3);
    let all = [(5, "db"), (6, "db-7"), (7, "db")];
    let all = all.map(|(pid, name)| machine(pid, "qemu", Some(name)));
    attached.choose(by_process(all.to_vec()));
    let names: BTreeSet<&str> = (attached.guests.values())
        .map(|guest| guest.name.as_str())
        .collect();
    assert_eq!(names, ["db", "db-7", "db-7-7"].into());
}

/// One user has more guests than may be followed before another one starts any.
#[test]
fn each_user_has_a_share_of_the_limit() {
    let mut attached = attached(6);
    let guest = |pid, user| Machine {
        user,
        ..machine(pid, "vmm", None)
    };
    let mut all: Vec<Machine> = (100..200).map(|pid| guest(pid, 1000)).collect();
    attached.choose(by_process(all.clone()));
    assert_eq!((attached.guests.len(), attached.left_out()), (6, 94));
    all.extend([guest(900, 64), guest(901, 64), guest(902, 33)]);
    attached.choose(by_process(all.clone()));
    let pids =
        |attached: &Attached| -> Vec<i32> { attached.guests.keys().map(|(pid, _)| *pid).collect() };
    // The remaining ones had been followed.
    assert_eq!(pids(&attached), [100, 101, 102, 900, 901, 902]);
    assert_eq!(attached.left_out(), 97);
    // Nothing changes without a cause.
    attached.choose(by_process(all));
    assert_eq!(pids(&attached), [100, 101, 102, 900, 901, 902]);
}

/// Another process may have the pid when `kvmprof attach` looks.
#[test]
fn the_listed_process_is_the_attached_one() {
    let mut attached = attached(1);
    attached.choose(by_process(vec![machine(5, "qemu", None)]));
    let said = attached.folder.path().join("said");
    let program = attached.folder.path().join("kvmprof");
    let script = format!("#!/bin/sh\necho \"$*\" >{}\n", said.display());
    std::fs::write(&program, script).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, permissions).unwrap();
    let guest = attached.guests.values_mut().next().unwrap();
    guest.attach(&program, &attached.config, 19);
    let child = guest.child.as_mut().unwrap();
    while child.ended().unwrap().is_none() {
        std::thread::yield_now();
    }
    let words = std::fs::read_to_string(said).unwrap();
    assert!(words.starts_with("attach 5:7 --socket "), "{words}");
}

/// The process that attaches to it ends late or never.
#[test]
fn an_ending_guest_delays_no_other() {
    let mut attached = attached(1);
    attached.choose(by_process(vec![machine(5, "qemu", None)]));
    let ready = attached.folder.path().join("ready");
    let script = "trap '' TERM; : >\"$0\"; while :; do sleep 0.05; done";
    let child = Child::start("sh", ["-c", script, ready.to_str().unwrap()]).unwrap();
    while !ready.exists() {
        std::thread::yield_now();
    }
    attached.guests.values_mut().next().unwrap().child = Some(child);
    attached.choose(BTreeMap::new());
    assert!(attached.guests.is_empty());
    assert!(attached.ending[0].child.ended().unwrap().is_none());
    // Later it is killed.
    attached.ending[0].until = Instant::now();
    attached.reap();
    assert!(attached.ending.is_empty());
}

#[test]
fn retries_back_off() {
    let mut attached = attached(1);
    attached.program = "/nowhere/kvmprof".into();
    attached.choose(by_process(vec![machine(5, "qemu", None)]));
    let mut waits = Vec::new();
    for _ in 0..8 {
        let guest = attached.guests.values_mut().next().unwrap();
        guest.attach(&attached.program, &attached.config, 19);
        assert!(guest.child.is_none());
        waits.push(guest.wait.as_secs());
    }
    assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60, 60]);
}
