//! Labels of processes in control groups: of containers, pods and units, of version 2 and, for the processor's controller, 1.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_lab::debian_package;
use kvmprof_recording::file::Contents;
use kvmprof_recording::{Mode, Sample};
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_program, once, with_libraries,
};

const ID: &str = "4f1d0a5e9c3b7788a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff";
const OTHER: &str = "00000000000000000000000000000000000000000000000000000000000000aa";
const POD: &str = "1f4e7b1c-3a5d-4c0e-9b11-0a2b3c4d5e6f";
const OF_GROUPS: [&str; 6] = ["cgroup", "container", "runtime", "pod", "qos", "unit"];
const SPIN: u64 = 0x1000_0000;
const STORM: u64 = 0x2000_0000;
const CONTAINED: u64 = 0x3000_0000;

kvmprof_tests::in_each_kernel! {
    processes_have_the_labels_of_their_groups
    children_have_no_labels_but_those_of_their_group
    a_process_that_moves_has_other_labels_from_then_on
    containers_are_grouped_and_selected
    a_process_has_its_program_and_its_inner_pid
    threads_in_containers_of_runc_have_the_ids_that_they_see
    containers_of_runc_have_their_own_labels
    all_processes_are_listed
}

fn run(series: &str) -> Finished {
    once(&format!("containers-{series}"), || {
        let spin = guest_program("spin.c", SPIN, &[]);
        let storm = guest_program("passes.c", STORM, &["-DTURN=turn"]);
        let contained = guest_program("contained.c", CONTAINED, &[]);
        let spinning = ["web", "odd", "old", "moves", "root", "inner"];
        let mut programs: Vec<_> = spinning.iter().map(|name| (*name, &spin)).collect();
        programs.extend([("storm", &storm), ("child", &storm)]);
        programs.push(("contained", &contained));
        let runc = debian_package("runc").unwrap().join("usr/sbin/runc");
        let init = guest_builder(include_str!("init.sh"), &programs).add(runc, "/bin/runc");
        let libraries = [("libc6", "libc.so.6"), ("libseccomp2", "libseccomp.so.2")];
        let init = with_libraries(init, debian_package, &libraries);
        Scenario::new()
            .kernel("vmlinuz", &debian(series))
            .file("guest.cpio", init.build().unwrap())
            .run(include_str!("driver.sh"))
    })
}

type Labels = BTreeMap<String, String>;

/// The labels of the sampled process at the time of the sample.
fn labels<'c>(contents: &'c Contents, sample: &Sample) -> Option<&'c Labels> {
    let own = contents.labels.iter().filter(|one| one.pid == sample.pid);
    let before = own.clone().filter(|one| one.time <= sample.time);
    let found = before.max_by_key(|one| one.time);
    let found = found.or_else(|| own.min_by_key(|one| one.time));
    found.map(|found| &found.labels)
}

/// The samples of threads called `comm`, with the labels of their control groups.
fn of(run: &Finished, comm: &str) -> Vec<(Sample, Option<Labels>)> {
    let labelled = with_labels(run, comm).into_iter();
    let of_groups = labelled.map(|(sample, labels)| {
        let of_groups = labels.map(|mut labels| {
            labels.retain(|key, _| OF_GROUPS.contains(&key.as_str()));
            labels
        });
        (sample, of_groups)
    });
    of_groups.collect()
}

/// The samples of threads called `comm`, with their labels.
fn with_labels(run: &Finished, comm: &str) -> Vec<(Sample, Option<Labels>)> {
    let (contents, samples) = run.recording("guest.kvmprof");
    let samples = samples.into_iter().map(|(sample, _)| sample);
    let own = samples
        .filter(|sample| sample.comm.split(|byte| *byte == 0).next() == Some(comm.as_bytes()));
    let labelled = own.map(|sample| {
        let labels = labels(&contents, &sample).cloned();
        (sample, labels)
    });
    let labelled: Vec<_> = labelled.collect();
    println!("{comm}: {} samples", labelled.len());
    assert!(labelled.len() >= 20, "{comm}");
    labelled
}

fn expected(labels: &[(&str, &str)]) -> Labels {
    let labels = labels.iter();
    labels
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn of_pod() -> Labels {
    let slice = format!("kubepods-burstable-pod{}.slice", POD.replace('-', "_"));
    let scope = format!("cri-containerd-{ID}.scope");
    expected(&[
        (
            "cgroup",
            &format!("/kubepods.slice/kubepods-burstable.slice/{slice}/{scope}"),
        ),
        ("container", ID),
        ("runtime", "containerd"),
        ("pod", POD),
        ("qos", "burstable"),
        ("unit", &scope),
    ])
}

fn in_docker(id: &str) -> Labels {
    expected(&[
        ("cgroup", &format!("/docker/{id}")),
        ("container", id),
        ("runtime", "docker"),
    ])
}

/// The labels of podman's container whose id begins with `letter`.
fn in_podman(letter: char) -> Labels {
    let id = format!("{letter}{:063}", 0);
    let scope = format!("libpod-{id}.scope");
    expected(&[
        ("cgroup", &format!("/machine.slice/{scope}")),
        ("container", &id),
        ("runtime", "podman"),
        ("unit", &scope),
    ])
}

fn processes_have_the_labels_of_their_groups(run: &Finished) {
    let web = [
        ("cgroup", "/system.slice/web.service"),
        ("unit", "web.service"),
    ];
    for (comm, labels) in [
        ("web", expected(&web)),
        ("old", in_docker(OTHER)),
        ("odd", expected(&[("cgroup", "/odd\"\u{1b}[1m")])),
        ("root", expected(&[("cgroup", "/")])),
    ] {
        for (sample, found) in of(run, comm) {
            assert_eq!(found.as_ref(), Some(&labels), "{sample:?}");
        }
    }
}

/// A process may end before its labels were read, as some of those do that `storm` starts: under its own name, until they execute `child`.
fn children_have_no_labels_but_those_of_their_group(run: &Finished) {
    let pod = of_pod();
    for comm in ["storm", "child"] {
        let all = of(run, comm);
        let labelled = all.iter().filter_map(|(_, labels)| labels.as_ref());
        let labelled: Vec<_> = labelled.collect();
        println!("{comm}: {} of {} have labels", labelled.len(), all.len());
        assert!(labelled.iter().all(|labels| **labels == pod));
        assert!(labelled.len() * 2 >= all.len());
    }
}

fn a_process_that_moves_has_other_labels_from_then_on(run: &Finished) {
    let mut moves = of(run, "moves");
    moves.sort_by_key(|(sample, _)| sample.time);
    let groups: Vec<_> = moves
        .into_iter()
        .map(|(_, labels)| labels.unwrap())
        .collect();
    let before = groups.iter().take_while(|group| **group == in_docker(ID));
    let before = before.count();
    assert!(before > 0 && before < groups.len());
    assert!(
        groups[before..]
            .iter()
            .all(|group| *group == in_docker(OTHER))
    );
}

/// Two processes have been in the container with the one id, and three in that with the other.
fn containers_are_grouped_and_selected(run: &Finished) {
    let (contents, samples) = run.recording("guest.kvmprof");
    let of_container = |id: &str| {
        let is_in = |sample: &Sample| {
            let labels = labels(&contents, sample);
            labels.is_some_and(|labels| labels.get("container").is_some_and(|own| own == id))
        };
        samples.iter().filter(|(sample, _)| is_in(sample)).count() as u64
    };
    let rows = |name: &str| {
        let document = run.json(name);
        let rows = document["labels"]["container"].as_array().unwrap().clone();
        let rows = rows.iter().map(|row| {
            let value = row["value"].as_str().unwrap_or_default().to_owned();
            (value, row["samples"].as_u64().unwrap())
        });
        rows.collect::<BTreeSet<_>>()
    };
    let all = rows("containers.json");
    for id in [ID, OTHER] {
        let row = (id.to_owned(), of_container(id));
        assert!(all.contains(&row), "{row:?}: {all:?}");
    }
    let one = rows("one.json");
    assert_eq!(one, [(ID.to_owned(), of_container(ID))].into());
}

fn a_process_has_its_program_and_its_inner_pid(run: &Finished) {
    let web = with_labels(run, "web");
    let inner = with_labels(run, "inner");
    let mut starting = 0;
    for (sample, labels) in web.iter().chain(&inner) {
        let labels = labels.as_ref().unwrap();
        let is_inner = labels["executable"] == "/bin/inner";
        let words = if is_inner { "inner --token 7" } else { "web" };
        match labels.get("arguments") {
            Some(arguments) => assert_eq!(arguments, words, "{sample:?}"),
            // execve(2) gives a process its name before its command line.
            None => {
                assert_eq!(sample.mode, Mode::Kernel, "{sample:?}");
                starting += 1;
            }
        }
        assert_eq!(
            labels.get("inner_pid").map(String::as_str),
            is_inner.then_some("1")
        );
        assert_eq!(sample.inner_tid, is_inner.then_some(1), "{sample:?}");
        assert!(labels["started"].parse::<f64>().unwrap() > 0.0);
        assert!(labels["parent"].parse::<i32>().unwrap() > 0);
    }
    println!("{starting} samples are of the start of a program");
    assert!(starting * 20 <= web.len() + inner.len());
    // The children of the storm have it as their parent, each with a start of its own.
    let (mut children, mut starts) = (0, BTreeSet::new());
    let storm = with_labels(run, "storm");
    let storms: BTreeSet<i32> = storm.iter().map(|(sample, _)| sample.pid).collect();
    for (_, labels) in with_labels(run, "child") {
        let Some(labels) = labels else {
            continue;
        };
        children += 1;
        starts.insert(labels["started"].clone());
        if labels["executable"] == "/bin/child" {
            let parent = labels["parent"].parse::<i32>().unwrap();
            assert!(storms.contains(&parent) || parent == 1, "{labels:?}");
        }
    }
    println!(
        "{children} samples of children with {} starts",
        starts.len()
    );
    assert!(starts.len() > 1);
}

/// A sample of the program `contained`, and what the thread's name says: the letter of its container, and its own ids there.
struct Contained {
    sample: Sample,
    letter: char,
    pid: i32,
    tid: i32,
    labels: Option<Labels>,
}

/// The samples of the program `contained`, in the order of their times.
fn contained(run: &Finished) -> Vec<Contained> {
    let (contents, samples) = run.recording("guest.kvmprof");
    let named = |sample: Sample| {
        let name = sample.comm.split(|byte| *byte == 0).next()?;
        let (pid, tid) = std::str::from_utf8(name.get(1..)?).ok()?.split_once('/')?;
        Some(Contained {
            letter: name[0].into(),
            pid: pid.parse().ok()?,
            tid: tid.parse().ok()?,
            labels: labels(&contents, &sample).cloned(),
            sample,
        })
    };
    let samples = samples.into_iter().map(|(sample, _)| sample);
    let mut contained: Vec<_> = samples.filter_map(named).collect();
    contained.sort_by_key(|one| one.sample.time);
    contained
}

/// Also those of children, which live for a moment, one after another.
fn threads_in_containers_of_runc_have_the_ids_that_they_see(run: &Finished) {
    let mut threads: BTreeMap<(char, i32, i32), u64> = BTreeMap::new();
    let mut of_children = 0;
    for Contained {
        sample,
        letter,
        pid,
        tid,
        labels,
    } in contained(run)
    {
        assert_eq!(sample.inner_tid, Some(tid), "{sample:?}");
        let inner = labels.as_ref().map(|labels| labels["inner_pid"].clone());
        let is_child = letter == 'a' && pid > 1;
        // A child may have ended before its labels were read.
        assert!(inner == Some(pid.to_string()) || inner.is_none() && is_child);
        match is_child {
            true => of_children += 1,
            false => *threads.entry((letter, pid, tid)).or_default() += 1,
        }
    }
    println!("{threads:?}, {of_children} of children");
    assert!(of_children >= 20);
    // Each container has a first process of two threads, and runc executes another one in the first container.
    let letters: String = threads.keys().map(|(letter, ..)| letter).collect();
    assert_eq!(letters, "aabbccee");
    assert!(
        threads
            .keys()
            .all(|(letter, pid, _)| *letter == 'e' || *pid == 1)
    );
}

/// The container `b` ends, with its group, before `c` starts. The process `e`, which runc has executed in `a`, moves to another group then.
fn containers_of_runc_have_their_own_labels(run: &Finished) {
    let (mut all, mut labelled, mut moved) = (0, 0, false);
    let mut groups_of_executed = BTreeSet::new();
    for one in contained(run) {
        all += 1;
        let Some(mut labels) = one.labels else {
            continue;
        };
        labelled += 1;
        labels.retain(|key, _| OF_GROUPS.contains(&key.as_str()));
        let expected = match one.letter {
            'e' => {
                moved |= labels == in_docker(OTHER);
                groups_of_executed.insert(moved);
                if moved {
                    in_docker(OTHER)
                } else {
                    in_podman('a')
                }
            }
            letter => in_podman(letter),
        };
        assert_eq!(labels, expected, "{:?}", one.sample);
    }
    println!("{labelled} of {all} samples have labels");
    assert!(labelled * 2 >= all);
    assert_eq!(groups_of_executed, [false, true].into());
}

/// Also those that sleep, and were never sampled.
fn all_processes_are_listed(run: &Finished) {
    let document = run.json("processes.json");
    let all = document["processes"].as_array().unwrap();
    let named = |name: &str| {
        let found = all.iter().find(|process| process["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {document}"))
    };
    let (inner, outer) = (named("inner"), named("unshare"));
    assert_eq!(inner["parent"], outer["pid"]);
    assert_eq!(inner["labels"]["inner_pid"], "1");
    assert_eq!(
        (&inner["state"], &outer["state"]),
        (&"R".into(), &"S".into())
    );
    for process in [inner, outer] {
        assert_eq!(process["labels"]["container"], ID, "{process}");
        let arguments = process["labels"]["arguments"].as_str().unwrap();
        assert!(arguments.ends_with("inner --token 7"), "{process}");
    }
    assert_eq!(named("web")["labels"]["unit"], "web.service");
    // Threads of the kernel are processes of it, without a program.
    let kernels = named("kthreadd");
    assert!(kernels["pid"] == 2 && kernels["labels"].get("executable").is_none());
    let text = run.text("processes.txt");
    println!("{text}");
    let line = text
        .lines()
        .find(|line| line.ends_with("  inner --token 7"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[1..=2], ["1", "R"]);
    assert_eq!(words[4], &ID[..12], "{words:?}");
}
