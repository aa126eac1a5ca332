//! Wrong uses: each is one line that says what to do, and an exit status of its own.

use super::not_run::not_run;
use super::own_run::with_own_run;
use super::{FAILURE, Folder, SUCCESS, USAGE, kvmprof, recordings, run};
use kvmprof_recording::Mode;

#[test]
fn wrong_options_end_with_the_status_that_the_help_says() {
    for (words, expected) in [
        (&["run"][..], "--kernel <FILE>"),
        (
            &["run", "--config", "/nowhere/at-all"],
            "Cannot read the options",
        ),
        (
            &["run", "--kernel", "x", "--on-reset", "off"],
            "restart, exit",
        ),
        (&["control"], "<ACTION>"),
        (&["control", "pause"], "--socket"),
        (
            &["run", "--kernel", "x", "--jitter", "--clock", "ticker"],
            "--jitter needs --clock thread",
        ),
        (&["run", "--kernel", "x", "--pid-at", "zz"], "'zz'"),
        (
            &["run", "--kernel", "x", "--wait"],
            "--wait without --socket",
        ),
        (
            &["run", "--kernel", "x", "--hz", "0", "--record", "y"],
            "A recording needs a clock",
        ),
        (&["run", "--kernel", "x", "--hz", "10001"], "1 to 10000"),
        (&["record", "--hz", "0"], "needs a clock or an --event"),
        (
            &["record", "-F", "99", "--event", "exits:1"],
            "give it without --hz",
        ),
        (&["demo", "--jitter", "--clock", "ticker"], "--jitter needs"),
        (&["demo", "--jitter", "--clock", "kernel"], "--jitter needs"),
        (&["demo", "--seconds", "0"], "more than 0"),
        (&["demo", "--socket", "x", "--json"], "--json"),
        (&["getpc", "-p", "1,2,3,4,5,6"], "at most 5"),
        (&["getpc", "-p", "dd"], "has to be a number"),
        (&["getpc", "--hz", "0"], "1 to 10000"),
        (&["getpc", "0"], "more than 0"),
        (
            &["record", "-o", "x", "--seconds", "x"],
            "number of seconds",
        ),
        (&["record", "-o", "x", "--pid", "dd"], "has to be a number"),
        (&["record", "-o", "x.gz"], "without .gz"),
        (&["record", "--cpus", "2"], "--kernel"),
        (&["record", "--until", "x"], "--kernel"),
        (&["record", "--kernel", "x", "--pid", "1"], "--pid"),
        (
            &["record", "--kernel", "x", "--socket", "y"],
            "give one of them",
        ),
        (&["record", "--kernel", "x", "-o", "-"], "in a file"),
        (&["record", "--kernel", "x", "--until", ""], "empty"),
        (&["view", "--port", "65536"], "65536"),
        (
            &["record", "-o", "x", "--event", "guest-time"],
            "'guest-time:1ms'",
        ),
        (
            &["record", "-o", "x", "--event", "guest-time:1"],
            "from 100us to 10s",
        ),
        (&["record", "-o", "x", "--event", "exits"], "'exits:1'"),
        (&["record", "-o", "x", "--event", "mmio:0"], "1 to 10000000"),
        (&["top", "--event", "cycles:9"], "cycles from 10000 to"),
        (&["top", "--event", "halts:9"], "use exits, port"),
        (&["run", "--kernel", "x", "--event", "mmio:1"], "--record"),
        (&["top", "--window", "1e9"], "at most 3600"),
        (&["report", "x", "--pid", "dd"], "has to be a number"),
        (&["report", "x", "--time", "4:3"], "range of seconds"),
        (&["diff", "-", "-"], "Only one"),
        (&["prfdc", "log", "0"], "more than 0"),
        (&["profil"], "--pid <PID>"),
        (&["profil", "--pid", "weaver"], "has to be a number"),
        (&["profil", "--pid", "0"], "above 0"),
        (&["profil", "--pid", "7", "--scale", "1"], "from 2"),
        (
            &["profil", "--pid", "7", "--offset", "main"],
            "an address is needed",
        ),
        (
            &["profil", "--pid", "7", "--offset", "0x401000"],
            "--bufsiz <BYTES>",
        ),
        (
            &["profil", "--pid", "7", "--bufsiz", "4K"],
            "--offset <ADDRESS>",
        ),
        (
            &["profil", "--pid", "7", "--offset", "0x0", "--bufsiz", "8M"],
            "at most 4M",
        ),
        (
            &[
                "profil",
                "--pid",
                "7",
                "--function",
                "f",
                "--offset",
                "0x0",
                "--bufsiz",
                "8",
            ],
            "cannot be used with",
        ),
        (
            &["profil", "--pid", "7", "--scale", "0xffff", "-o", "x"],
            "equally many bytes of code in each count",
        ),
        (&["profil", "--pid", "7", "-o", "-"], "gprof reads files"),
        (&["pcsample", "--pid", "7"], "--nsamples <K>"),
        (&["profil", "--pid", "7", "--offset", "600000"], "with 0x"),
        (
            &["pcsample", "--pid", "7", "-n", "0"],
            "a number from 1 to 524288",
        ),
        (
            &["pcsample", "--pid", "7", "--nsamples", "-1"],
            "a number from 1 to 524288",
        ),
        (&["pmc", "list", "--jsno"], "see kvmprof pmc list --help"),
        (&["sing"], "'sing'"),
    ] {
        run(words).assert_refused(USAGE, &["kvmprof: ", expected, "--help"]);
    }
}

#[test]
fn memory_that_is_no_machine_is_a_wrong_option() {
    if !std::path::Path::new("/dev/kvm").exists() {
        return not_run("this host has no /dev/kvm, which is looked for first");
    }
    for memory in ["1", "1M", "33554433"] {
        let ran = run([
            "run",
            "--console",
            "none",
            "--kernel",
            "/dev/null",
            "--memory",
            memory,
        ]);
        ran.assert_refused(USAGE, &["memory"]);
    }
}

#[test]
fn without_a_socket_the_commands_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for words in [
        &["status"][..],
        &["top"],
        &["record", "-o", "x"],
        &["profil", "--pid", "7"],
        &["pcsample", "--pid", "7", "-n", "5"],
    ] {
        for socket in [None, Some("")] {
            let mut command = kvmprof(words);
            with_own_run(&mut command, folder.path());
            if let Some(socket) = socket {
                command.env("KVMPROF_SOCKET", socket);
            }
            let ran = super::Ran::from(command.output().unwrap());
            ran.assert_refused(USAGE, &["--socket PATH", "KVMPROF_SOCKET", "--help"]);
        }
    }
    // The tools take the guest's own nodes then.
    for words in [&["getpc", "-o", "/dev/null"][..], &["prfstat"]] {
        let mut command = kvmprof(words);
        with_own_run(&mut command, folder.path());
        command.env("KVMPROF_SOCKET", "");
        let ran = super::Ran::from(command.output().unwrap());
        ran.assert_refused(FAILURE, &["No device at /dev/", "--socket"]);
    }
}

#[test]
fn every_command_that_talks_to_a_guest_takes_a_socket() {
    for words in [
        &["status"][..],
        &["top"],
        &["record", "-o", "/dev/null"],
        &["profil", "--pid", "7"],
        &["pcsample", "--pid", "7", "-n", "5"],
        &["getpc", "-o", "/dev/null"],
        &["prfld"],
        &["prfstat"],
        &["prfdc", "/nonexistent/log"],
        &["prfsnap", "/nonexistent/log"],
    ] {
        for option in ["-s", "--socket"] {
            let ran = run(words.iter().chain(&[option, "/nonexistent/socket"]));
            ran.assert_refused(FAILURE, &["No socket at /nonexistent/socket"]);
        }
    }
}

#[test]
fn a_part_without_anything_in_it_is_told() {
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

#[test]
fn wrong_filters_say_what_there_is() {
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

#[test]
fn recordings_are_counted_together() {
    let folder = Folder::new();
    let ran = folder.run(&["report", "before", "after", "--json"]);
    ran.assert_success();
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    // 140 samples and idle ticks in one, 200 in the other.
    assert_eq!(document["samples"], 340);
    assert_eq!(document["recordings"][1]["file"], "after");
    assert_eq!(document["recordings"][1]["account"]["ticks"], 206);
    assert_eq!(document["account"]["ticks"], 146 + 206);
    let copy = document["functions"].as_array().unwrap().iter();
    let copy = copy.filter(|row| row["name"] == "copy_page");
    assert_eq!(
        copy.map(|row| row["self"].clone()).collect::<Vec<_>>(),
        [100]
    );
    for words in [
        &["flamegraph", "before", "after", "-o", "-"][..],
        &["html", "before", "after", "-o", "-"],
    ] {
        folder.run(words).assert_success();
    }
    std::fs::hard_link(folder.path("before"), folder.path("same")).unwrap();
    for same in ["before", "same"] {
        let ran = folder.run(&["report", "before", same]);
        ran.assert_refused(FAILURE, &[&format!("{same} is named twice"), "count twice"]);
    }
    folder
        .run(&["report", "-", "-"])
        .assert_refused(FAILURE, &["named twice"]);
    let ran = folder.run(&["report", "before", "after", "--pid", "99"]);
    ran.assert_refused(FAILURE, &["Nothing in before after matches --pid"]);
    folder.run(&["report"]).assert_refused(USAGE, &["FILE"]);
}

#[test]
fn changes_have_a_document_and_a_page() {
    let folder = Folder::new();
    let ran = folder.run(&["diff", "before", "after", "--json", "--top", "1"]);
    ran.assert_success();
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["before"]["samples"], 140);
    assert_eq!(document["after"]["samples"], 200);
    let first = &document["functions"][0];
    assert_eq!(
        (&first["name"], &first["before"]["samples"]),
        (&"copy_page".into(), &20.into())
    );
    assert_eq!(first["after"]["samples"], 80);
    // It runs once in each, for all of its ticks.
    assert_eq!(first["significant"], false);
    assert!(first["p"].as_f64().unwrap() > 0.05);
    assert_eq!(
        document["rows_left_out"],
        document["compared"].as_u64().unwrap() - 1
    );
    let page = folder.run(&[
        "diff", "before", "after", "--html", "-", "--title", "Slower",
    ]);
    page.assert_success();
    assert!(page.stdout.contains("<h1>Slower</h1>") && page.stdout.contains("\"comparison\":true"));
    for options in [
        &["--output", "x", "--html", "y"][..],
        &["--html", "y", "--json"],
        &["--force"],
    ] {
        let ran = folder.run(&[&["diff", "before", "after"], options].concat());
        ran.assert_refused(USAGE, &[]);
    }
    let ran = folder.run(&["diff", "before", "after", "--html", "after", "--force"]);
    ran.assert_refused(FAILURE, &["after is the recording that is read"]);
}

#[test]
fn two_times_of_a_recording_are_compared() {
    let folder = Folder::new();
    // The worker is first in user mode for 60 ms, then in the kernel.
    let words = [
        "diff",
        "before",
        "--time",
        ":0.06",
        "--time",
        "0.06:0.08",
        "--json",
    ];
    let ran = folder.run(&words);
    ran.assert_success();
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["before"]["time"]["end"], 0.06);
    assert_eq!(document["after"]["time"]["begin"], 0.06);
    let samples = |side: &str| document[side]["samples"].as_u64().unwrap();
    assert!(
        samples("before") >= 59 && samples("after") >= 19,
        "{document}"
    );
    let functions = document["functions"].as_array().unwrap();
    let copy = functions
        .iter()
        .find(|row| row["name"] == "copy_page")
        .unwrap();
    assert_eq!(copy["before"]["samples"], 0);
    assert!(copy["change"]["value"].as_f64().unwrap() > 0.9);
    let page = folder.run(&[
        "diff",
        "before",
        "--time",
        ":0.06",
        "--time",
        "0.06:0.08",
        "--html",
        "-",
    ]);
    page.assert_success();
    assert!(
        page.stdout
            .contains("<h1>before 0.06:0.08 against before :0.06</h1>")
    );
    for options in [
        &["before"][..],
        &["before", "--time", "0:1"],
        &[
            "before", "after", "--time", "0:1", "--time", "0:1", "--time", "0:1",
        ],
    ] {
        let ran = folder.run(&[&["diff"], options].concat());
        ran.assert_refused(USAGE, &["--time"]);
    }
    let ran = folder.run(&["diff", "-", "--time", "0:1", "--time", "1:2"]);
    ran.assert_refused(USAGE, &["standard input"]);
}

#[test]
fn a_json_document_has_the_tables_that_were_asked_for() {
    let folder = Folder::new();
    let document = |options: &[&str]| -> serde_json::Value {
        let ran = folder.run(&[&["report", "before", "--json"], options].concat());
        ran.assert_success();
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let tables = [
        "modes",
        "vcpus",
        "processes",
        "threads",
        "modules",
        "functions",
        "lines",
    ];
    let all = document(&[]);
    assert_eq!(all["schema"], 1);
    assert!(tables.iter().all(|table| !all[table].is_null()), "{all}");
    assert_eq!(all["modes"]["user"], 60);
    assert_eq!(all["rows_left_out"]["functions"], 0);
    let some = document(&["--by", "mode,function", "--top", "2"]);
    for table in tables {
        let is_there = ["modes", "functions"].contains(&table);
        assert_eq!(some.get(table).is_some(), is_there, "{table}: {some}");
    }
    assert_eq!(some["functions"].as_array().unwrap().len(), 2);
    // A program gets all of them without --top.
    let functions = all["functions"].as_array().unwrap().len();
    assert_eq!(some["rows_left_out"]["functions"], functions - 2);
}

#[test]
fn documents_for_programs_are_whole_and_tables_for_people_short() {
    const FUNCTIONS: u64 = 30;
    let folder = Folder::new();
    let address = |number| 0xffff_ffff_8100_0000 + number * 0x100;
    let symbols: String = (0..=FUNCTIONS)
        .map(|number| format!("{:x} T function_{number}\n", address(number)))
        .collect();
    let mut written = recordings::Written::with_symbols(&symbols);
    for number in 0..FUNCTIONS {
        let frames: &[u64] = &[address(number)];
        written.samples(2, (7, &b"worker"[..]), Mode::Kernel, (frames, &[]));
    }
    written.write(&folder.path("many"));
    let rows = |words: &[&str]| {
        let ran = folder.run(words);
        ran.assert_success();
        let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        document["functions"].as_array().unwrap().len() as u64
    };
    for words in [&["report", "many"][..], &["diff", "many", "many"]] {
        let rows = |more: &[&str]| rows(&[words, &["--json"], more].concat());
        assert_eq!(rows(&[]), FUNCTIONS, "{words:?}");
        assert_eq!(rows(&["--top", "20"]), 20, "{words:?}");
        let table = folder.run(words).stdout.matches("function_").count();
        assert!(table <= 20, "{words:?}: {table}");
    }
}

#[test]
fn help_needs_nothing() {
    for words in [
        &["--help"][..],
        &["--version"],
        &["record", "--help"],
        &["prfld", "-h"],
    ] {
        let ran = run(words);
        assert_eq!(
            (ran.status, ran.stderr.as_str()),
            (SUCCESS, ""),
            "{words:?}"
        );
    }
    assert_eq!(run([] as [&str; 0]).status, USAGE);
}
