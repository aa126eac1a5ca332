use std::io::Read;
use std::path::Path;

use super::*;
use crate::backoff::Backoff;
use crate::config::Capture;
use kvmprof_attach::Obstacle;

fn machine(pid: i32, program: &str, name: Option<&str>) -> Machine {
    Machine {
        pid,
        start_time: 7,
        user: 0,
        program: program.to_owned(),
        name: name.map(str::to_owned),
        manager: None,
        labels: BTreeMap::new(),
        descriptor: 11,
        vcpus: Vec::new(),
        memory_bytes: None,
        obstacle: None,
    }
}

fn following(limit: usize) -> Guests {
    let mut config = Config::default();
    config.attach.guests = vec!["*".to_owned()];
    config.attach.limit = limit;
    Guests::new(config)
}

fn by_process(machines: Vec<Machine>) -> BTreeMap<Process, Machine> {
    let machines = machines.into_iter();
    machines
        .map(|machine| (process_of(&machine), machine))
        .collect()
}

#[test]
fn guests_are_meant_by_name_program_or_pid() {
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
    // kvmprof's own have sockets.
    assert!(!is_meant(&patterns("*"), &machine(1, "kvmprof", None)));
}

#[test]
fn guests_are_bounded_and_have_names_of_their_own() {
    let mut guests = following(3);
    let mut encrypted = machine(9, "qemu", None);
    encrypted.obstacle = Some(Obstacle::Encrypted);
    let all = vec![
        machine(5, "qemu", Some("db")),
        machine(6, "qemu", Some("db")),
        machine(7, "a\x1bb", None),
        machine(8, "qemu", None),
        encrypted,
    ];
    guests.choose(by_process(all.clone()));
    let names = |guests: &Guests| -> Vec<String> {
        let named = guests.guests.values();
        named.map(|guest| guest.name.clone()).collect()
    };
    assert_eq!(names(&guests), ["db", "db-6", "a\u{fffd}b-7"]);
    assert_eq!((guests.left_out, guests.warnings.len()), (1, 1));
    // One that goes makes room; the others stay as they are.
    guests.choose(by_process(all[1..].to_vec()));
    assert_eq!(names(&guests), ["db-6", "a\u{fffd}b-7", "qemu-8"]);
    assert_eq!((guests.left_out, guests.warnings.len()), (0, 1));
}

#[test]
fn nobody_takes_anothers_name() {
    let mut guests = following(3);
    let all = [(5, "db"), (6, "db-7"), (7, "db")];
    let all = all.map(|(pid, name)| machine(pid, "qemu", Some(name)));
    guests.choose(by_process(all.to_vec()));
    let names: BTreeSet<&str> = (guests.guests.values())
        .map(|guest| guest.name.as_str())
        .collect();
    assert_eq!(names, ["db", "db-7", "db-7-2"].into());
}

/// A user has more guests than may be followed before another one starts any.
#[test]
fn each_user_has_a_share_of_the_limit() {
    let mut guests = following(6);
    let guest = |pid, user| Machine {
        user,
        ..machine(pid, "vmm", None)
    };
    let mut all: Vec<Machine> = (100..200).map(|pid| guest(pid, 1000)).collect();
    guests.choose(by_process(all.clone()));
    assert_eq!((guests.guests.len(), guests.left_out), (6, 94));
    all.extend([guest(900, 64), guest(901, 64), guest(902, 33)]);
    guests.choose(by_process(all.clone()));
    let pids =
        |guests: &Guests| -> Vec<i32> { guests.guests.keys().map(|process| process.pid).collect() };
    // Those that are left had been followed.
    assert_eq!(pids(&guests), [100, 101, 102, 900, 901, 902]);
    assert_eq!(guests.left_out, 97);
    // Nothing changes without a reason.
    guests.choose(by_process(all));
    assert_eq!(pids(&guests), [100, 101, 102, 900, 901, 902]);
}

/// A program in `folder` that stands for kvmprof.
fn stand_in(folder: &Path, script: &str) -> PathBuf {
    let program = folder.join("kvmprof");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, permissions).unwrap();
    program
}

/// All that is told until there is an end of an attempt.
fn until_ended(guests: &mut Guests) -> Vec<(LauncherMessage, Option<OwnedFd>)> {
    let mut all = Vec::new();
    while !matches!(all.last(), Some((LauncherMessage::Ended { .. }, _))) {
        match guests.next_told() {
            Some(told) => all.push(told),
            None => {
                std::thread::yield_now();
                guests.reap();
            }
        }
    }
    all
}

/// Has no time come for another search, which would find this host's guests.
fn look_at(guests: &mut Guests, machines: Vec<Machine>) {
    guests.choose(by_process(machines));
    guests.next_look = Instant::now() + Backoff::LOCAL.longest();
    guests.look();
}

/// Another process may have the pid when `kvmprof attach` looks. What it is to do is in the rules, and what it has said and recorded is told.
#[test]
fn the_process_that_was_found_is_attached_to_as_the_rules_say() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo recording; echo \"$*\" >&2; exit 3";
    for (capture, phase) in [(Capture::Ptrace, " --jitter"), (Capture::Kernel, "")] {
        let mut guests = following(1);
        guests.rules.attach.capture = capture;
        guests.rules.hz = 23;
        guests.rules.user_stacks = false;
        guests.program = stand_in(folder.path(), script);
        let mut labelled = machine(5, "qemu", Some("db"));
        labelled.labels = [("tenant".to_owned(), "a\x1bb".to_owned())].into();
        look_at(&mut guests, vec![labelled]);
        let mut told = until_ended(&mut guests).into_iter();
        let process = Process {
            pid: 5,
            start_time: 7,
        };
        let (guest, pipe) = told.next().unwrap();
        let told_guest = LauncherMessage::Guest {
            process,
            name: "db".to_owned(),
            labels: [("tenant".to_owned(), "a\u{fffd}b".to_owned())].into(),
        };
        assert_eq!(guest, told_guest);
        let mut recording = String::new();
        let mut pipe = std::fs::File::from(pipe.unwrap());
        pipe.read_to_string(&mut recording).unwrap();
        assert_eq!(recording, "recording\n");
        let word = capture.word();
        let said = format!(
            "attach 5:7 --record /dev/stdout --stacks kernel --hz 23 --capture {word}{phase}"
        );
        let has_failed = true;
        let ended = LauncherMessage::Ended {
            process,
            has_failed,
            said,
        };
        assert_eq!(told.next().unwrap().0, ended);
        assert!(told.next().is_none());
    }
}

/// They come by a pipe of their own, and what doesn't count them is tried again later.
#[test]
fn exits_are_counted_if_the_rules_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        "case $1 in exits) echo blocks; echo \"$*\" >&2; exit 1;; *) exec sleep 600;; esac";
    let mut guests = following(1);
    guests.rules.attach.exits = true;
    guests.program = stand_in(folder.path(), script);
    look_at(&mut guests, vec![machine(5, "qemu", Some("db"))]);
    let mut told = Vec::new();
    while told.len() < 3 {
        guests.reap();
        told.extend(guests.next_told());
        std::thread::yield_now();
    }
    let process = Process {
        pid: 5,
        start_time: 7,
    };
    let why = "Guest db: kvmprof exits has ended: exits 5:7 --blocks";
    let [(guest, Some(_)), (exits, Some(pipe)), (warning, None)] =
        <[_; 3]>::try_from(told).unwrap()
    else {
        panic!("other files");
    };
    assert!(matches!(guest, LauncherMessage::Guest { .. }));
    assert_eq!(exits, LauncherMessage::Exits { process });
    assert_eq!(warning, LauncherMessage::Warning(why.to_owned()));
    let mut blocks = String::new();
    std::fs::File::from(pipe)
        .read_to_string(&mut blocks)
        .unwrap();
    assert_eq!(blocks, "blocks\n");
    let guest = guests.guests.values_mut().next().unwrap();
    assert!(guest.child.is_some() && guest.exits.is_none() && !guest.exits_again.is_due());
}

/// What attaches to it takes its time to end, or never does.
#[test]
fn a_guest_that_goes_holds_nobody_up() {
    let mut guests = following(1);
    guests.choose(by_process(vec![machine(5, "qemu", None)]));
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = "trap '' TERM; : >\"$0\"; while :; do sleep 0.05; done";
    let child = Child::start("sh", ["-c", script, ready.to_str().unwrap()]).unwrap();
    while !ready.exists() {
        std::thread::yield_now();
    }
    guests.guests.values_mut().next().unwrap().child = Some(child);
    guests.choose(BTreeMap::new());
    assert!(guests.guests.is_empty());
    assert!(guests.ending[0].child.ended().unwrap().is_none());
    // Later it is killed.
    guests.ending[0].until = Instant::now();
    guests.reap();
    assert!(guests.ending.is_empty());
}

#[test]
fn a_failure_is_tried_again_later_each_time() {
    let mut guests = following(1);
    guests.program = "/nowhere/kvmprof".into();
    let mut waits = Vec::new();
    for _ in 0..8 {
        look_at(&mut guests, vec![machine(5, "qemu", None)]);
        let told = until_ended(&mut guests);
        assert!(matches!(
            &told[..],
            [(LauncherMessage::Ended { has_failed: true, said, .. }, None)] if said.contains("Cannot run /nowhere/kvmprof")
        ));
        let guest = guests.guests.values_mut().next().unwrap();
        assert!(!guest.again.is_due());
        let left = guest.again.until.saturating_duration_since(Instant::now());
        waits.push(left.as_millis().div_ceil(1000));
        guest.again.until = Instant::now();
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    let guest = guests.guests.values_mut().next().unwrap();
    // One that has lasted begins anew, and so does one that has done all that it could.
    let longest = Backoff::LOCAL.longest();
    guest.again.begun = Instant::now().checked_sub(longest).unwrap();
    let first = Duration::from_secs(1);
    for has_succeeded in [false, true] {
        guest.again.end(has_succeeded);
        assert!(guest.again.until <= Instant::now() + first);
        guest.again.begin();
    }
}
