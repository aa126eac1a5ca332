//! Samples selected by process, time, mode and function.

use serde_json::Value;

use super::{FAILURE, Folder, USAGE};

#[test]
fn an_empty_selection_is_an_error() {
    let folder = Folder::new();
    for options in [
        &["--pid", "9999"][..],
        &["--time", "100:200"],
        &["--pid", "7", "--time", "0.5:"],
        &["--comm", "work"],
        &["--comm", "worker", "--pid", "9"],
        &["--vcpu", "1"],
        &["--mode", "interrupt", "--grep", "copy"],
        &["--grep", "^nothing$"],
        &["--label", "user=0"],
        &["--tid", "9999"],
        &["--module", "none"],
        &["--not", "mode=user,kernel,interrupt,idle"],
        &["--transform", "focus=nothing"],
        &[
            "--transform",
            "merge=copy_page",
            "--transform",
            "focus=copy_page",
        ],
    ] {
        for command in [
            &["report", "before"][..],
            &["export", "--format", "folded", "before"],
        ] {
            let ran = folder.run(&[command, options].concat());
            ran.assert_refused(FAILURE, &["Nothing in before matches", options[0]]);
            assert_eq!(ran.stdout, "");
        }
    }
    for options in [
        &["--pid", "7,9"][..],
        &["--pid", "7", "--pid", "9"],
        &["--time", ":0.05"],
        &["--comm", "worker", "--comm", "logger"],
        &[
            "--vcpu",
            "0",
            "--mode",
            "kernel,interrupt",
            "--grep",
            "copy|timer",
        ],
    ] {
        folder
            .run(&[&["report", "before"], options].concat())
            .assert_success();
    }
}

#[test]
fn a_table_that_no_recording_has_is_refused() {
    let folder = Folder::new();
    let ran = folder.run(&["report", "before", "--by", "mode,usr"]);
    let known = "line, and no process has a label";
    ran.assert_refused(USAGE, &["neither a table nor a label \"usr\"", known]);
    let ran = folder.run(&["flamegraph", "before", "--by", "usr", "-o", "-"]);
    ran.assert_refused(
        USAGE,
        &["--by has no label \"usr\"", "no process has a label"],
    );
    let ran = folder.run(&["report", "before", "--label", "user"]);
    ran.assert_refused(USAGE, &["a label is wanted, such as user=1000"]);
}

#[test]
fn processes_are_chosen_by_pid_or_name() {
    let folder = Folder::new();
    let by_pid = folder.run(&["report", "before", "--pid", "7"]).stdout;
    assert!(
        by_pid.contains("worker") && !by_pid.contains("logger"),
        "{by_pid}"
    );
    let by_name = folder.run(&["report", "before", "--comm", "worker"]).stdout;
    assert_eq!(by_name.replace("--comm worker", "--pid 7"), by_pid);
}

/// What a filter selects and what it leaves out are all, ticks without a sample among them.
#[test]
fn each_filter_can_be_turned_round() {
    let folder = Folder::new();
    let samples = |filter: &[&str]| -> u64 {
        let ran = folder.run(&[&["report", "before", "--json"], filter].concat());
        ran.assert_success();
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        report["samples"].as_u64().unwrap()
    };
    let all = samples(&[]);
    for filter in [
        "pid=7",
        "tid=7",
        "comm=worker",
        "mode=kernel,idle",
        "module=[kernel]",
        "grep=^copy_",
        "grep=halted",
    ] {
        let only = samples(&[&format!("--{filter}")]);
        let not = samples(&["--not", filter]);
        assert_eq!(only + not, all, "{filter}");
        assert!(only > 0 && not > 0, "{filter}: {only} {not}");
    }
    let copying = ["--grep=copy", "--grep=^copy_page$"].map(|grep| samples(&[grep]));
    let both = samples(&["--grep=copy", "--grep=^copy_page$"]);
    assert_eq!(both, copying[0].min(copying[1]));
    let neither = samples(&["--not=pid=7", "--not=mode=kernel"]);
    let others_in_kernel = samples(&["--mode=kernel", "--not=pid=7"]);
    assert_eq!(neither, all - samples(&["--pid=7"]) - others_in_kernel);
}

#[test]
fn filters_hold_for_every_output() {
    let folder = Folder::new();
    let options = ["--mode", "kernel", "--grep", "^copy_", "--comm", "worker"];
    let run = |words: &[&str]| {
        let ran = folder.run(&[words, &options].concat());
        ran.assert_success();
        ran.stdout
    };
    let report = run(&["report", "before"]);
    assert!(
        report.contains("Only --comm worker --mode kernel --grep ^copy_: 20 samples"),
        "{report}"
    );
    let folded = run(&["export", "--format", "folded", "before"]);
    let expected =
        "worker-7;0x401000;0x401234;entry_SYSCALL_64_[k];ksys_read_[k];copy_page_[k] 20\n";
    assert_eq!(folded, expected);
    let script = run(&["export", "--format", "perf-script", "before"]);
    assert_eq!(script.matches("cpu-clock").count(), 20, "{script}");
    let svg = run(&["flamegraph", "before", "-o", "-"]);
    assert!(svg.contains("all (20 ticks, 100%)"), "{svg}");
    let page = run(&["html", "before", "-o", "-"]);
    assert!(page.contains("Only --comm worker --mode kernel --grep ^copy_ is shown, 20 ticks."));
    let diff = folder.run(
        &[
            &["diff", "before", "after", "--sort", "total"],
            &options[..],
        ]
        .concat(),
    );
    diff.assert_success();
    assert!(
        diff.stdout.contains("100.0 %  100.0 %    +0.0"),
        "{}",
        diff.stdout
    );
}

/// The same frames are gone from each; perf makes its own.
#[test]
fn transforms_hold_for_every_output() {
    let folder = Folder::new();
    let options = [
        "--comm=worker",
        "--grep=^copy_",
        "--transform=merge=ksys_read",
        "--transform=focus=entry_SYSCALL_64",
    ];
    let run = |words: &[&str]| folder.run(&[words, &options].concat());
    let folded = run(&["export", "--format", "folded", "before"]);
    assert_eq!(
        folded.stdout,
        "worker-7;entry_SYSCALL_64_[k];copy_page_[k] 20\n"
    );
    for words in [
        &["report", "--tree", "before"][..],
        &["report", "--by", "vcpu,function", "before"],
        &["flamegraph", "before", "-o", "-"],
        &["html", "before", "-o", "-"],
        &["export", "--format", "perf-script", "before"],
        &["export", "--format", "speedscope", "before"],
        &["export", "--format", "firefox", "before"],
        &["export", "--format", "callgrind", "before"],
        &["diff", "before", "after", "--sort", "total"],
    ] {
        let ran = run(words);
        ran.assert_success();
        assert!(
            ran.stdout.contains("copy_page"),
            "{words:?}: {}",
            ran.stdout
        );
        assert!(
            !ran.stdout
                .replace("merge=ksys_read", "")
                .contains("ksys_read"),
            "{words:?}: {}",
            ran.stdout
        );
    }
    let refused = run(&["export", "--format", "perf-data", "before", "-o", "out"]);
    refused.assert_refused(FAILURE, &["leave --transform out"]);
    let collapsed = folder.run(&[
        "export",
        "--format",
        "folded",
        "before",
        "--pid=7",
        "--transform=collapse-module=[kernel]",
    ]);
    let stacks: Vec<&str> = collapsed.stdout.lines().collect();
    assert!(
        stacks.iter().any(|stack| stack.contains(";[kernel]_[k] ")),
        "{stacks:?}"
    );
    assert!(
        stacks
            .iter()
            .all(|stack| stack.matches("_[k]").count() <= 1),
        "{stacks:?}"
    );
    // Ticks of which no frame is left are there.
    let samples = |words: &[&str]| {
        let ran = folder.run(&[&["report", "--json", "before"], words].concat());
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        report["samples"].as_u64().unwrap()
    };
    let modules = ["[kernel]", "app", "[user]"].map(|module| {
        [
            format!("--transform=collapse-module={module}"),
            format!("--transform=merge={module}"),
        ]
    });
    let nothing: Vec<&str> = modules.iter().flatten().map(String::as_str).collect();
    assert_eq!(samples(&nothing), samples(&[]));
}

#[test]
fn wrong_filters_list_the_choices() {
    let folder = Folder::new();
    for (options, said) in [
        (
            ["--mode", "halted"],
            &["user", "kernel", "interrupt", "idle"][..],
        ),
        (
            ["--grep", "operator("],
            &["no regular expression", "--grep"],
        ),
        (["--grep", "a{999}{999}"], &["no regular expression"]),
        (["--grep", ""], &["--grep", "such as"]),
        (["--not", "7"], &["--not", "mode=idle", "label, module"]),
        (["--not", "mode=halted"], &["--not", "no mode", "interrupt"]),
        (
            ["--transform", "merge"],
            &["such as merge=memcpy", "collapse-module"],
        ),
        (["--transform", "drop=main"], &["such as merge=memcpy"]),
        (["--vcpu", "-1"], &["--vcpu"]),
        (["--vcpu", "70000"], &["--vcpu", "70000"]),
        (["--time", "1"], &["--time", "1.5:4"]),
    ] {
        let ran = folder.run(&[&["report", "before"], &options[..]].concat());
        ran.assert_refused(USAGE, said);
    }
    let ran = folder.run(&["report", "before", "--time", ":1", "--time", "1:"]);
    ran.assert_refused(USAGE, &["--time", "kvmprof diff"]);
}
