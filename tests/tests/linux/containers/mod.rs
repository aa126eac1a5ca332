//! Labels of processes in control groups: of containers, pods and units, of version 2 and, for the processor's controller, 1.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_recording::Sample;
use kvmprof_recording::file::Contents;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program, once};

const ID: &str = "4f1d0a5e9c3b7788a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff";
const OTHER: &str = "00000000000000000000000000000000000000000000000000000000000000aa";
const POD: &str = "1f4e7b1c-3a5d-4c0e-9b11-0a2b3c4d5e6f";
const OF_GROUPS: [&str; 6] = ["cgroup", "container", "runtime", "pod", "qos", "unit"];
const SPIN: u64 = 0x1000_0000;
const STORM: u64 = 0x2000_0000;

kvmprof_tests::in_each_kernel! {
    processes_have_the_labels_of_their_groups
    children_have_no_labels_but_those_of_their_group
    a_process_that_moves_has_other_labels_from_then_on
    containers_are_grouped_and_selected
    a_process_has_its_program_and_its_inner_pid
    all_processes_are_listed
}

fn run(series: &str) -> Finished {
    once(&format!("containers-{series}"), || {
        let spin = guest_program("spin.c", SPIN, &[]);
        let storm = guest_program("passes.c", STORM, &["-DTURN=turn"]);
        let spinning = ["web", "odd", "old", "moves", "root", "inner"];
        let mut programs: Vec<_> = spinning.iter().map(|name| (*name, &spin)).collect();
        programs.extend([("storm", &storm), ("child", &storm)]);
        let init = guest_builder(include_str!("init.sh"), &programs);
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
    for (sample, labels) in web.iter().chain(&inner) {
        let labels = labels.as_ref().unwrap();
        let is_inner = labels["executable"] == "/bin/inner";
        let words = if is_inner { "inner --token 7" } else { "web" };
        assert_eq!(labels["arguments"], words, "{sample:?}");
        assert_eq!(
            labels.get("inner_pid").map(String::as_str),
            is_inner.then_some("1")
        );
        assert_eq!(sample.inner_tid, is_inner.then_some(1), "{sample:?}");
        assert!(labels["started"].parse::<f64>().unwrap() > 0.0);
        assert!(labels["parent"].parse::<i32>().unwrap() > 0);
    }
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
