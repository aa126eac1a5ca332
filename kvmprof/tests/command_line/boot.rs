//! `kvmprof boot` on existing recordings.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use super::{FAILURE, ProgramResult, USAGE, boots, kvmprof, names, recordings};

/// A folder with a folder of three boots before a change, and one of three after it: `slow_init` takes twice as long.
struct Boots(TempDir);

impl Boots {
    fn new() -> Self {
        let boots = Self(tempfile::tempdir().unwrap());
        for (name, slow) in [("before", 40), ("after", 80)] {
            fs::create_dir(boots.0.path().join(name)).unwrap();
            for number in 1..=3 {
                let path = format!("{name}/boot-{number}.kvmprof");
                boots::write(
                    &boots.0.path().join(path),
                    slow + number,
                    20 - number % 2,
                    30,
                );
            }
        }
        boots
    }

    fn run(&self, arguments: &[&str]) -> ProgramResult {
        let mut command = kvmprof(["boot"]);
        let command = command.args(arguments).current_dir(&self.0);
        command.output().unwrap().into()
    }

    fn document(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["--json"]].concat()).document()
    }
}

/// The row of that name.
fn row<'a>(rows: &'a Value, name: &str) -> &'a Value {
    let mut rows = rows.as_array().unwrap().iter();
    rows.find(|row| row["name"] == name).unwrap()
}

fn about(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - expected).abs() < 1e-6, "{value} for {expected}");
}

#[test]
fn only_the_changed_initcall_is_found() {
    let boots = Boots::new();
    let document = boots.document(&["after", "--against", "before"]);
    assert_eq!(document["before"]["boots"], 3);
    let slow = &document["initcalls"][0];
    assert_eq!(slow["name"], "slow_init");
    about(&slow["before"]["ms"], 42.0);
    about(&slow["after"]["ms"], 82.0);
    about(&slow["change_ms"], 40.0);
    assert!(slow["p"].as_f64().unwrap() < 0.001, "{slow}");
    let quick = row(&document["initcalls"], "quick_init");
    about(&quick["change_ms"], 0.0);
    about(&quick["p"], 1.0);
    let initcalls = row(&document["phases"], "initcalls");
    about(&initcalls["change_ms"], 40.0);
    assert!(initcalls["p"].as_f64().unwrap() < 0.001, "{initcalls}");
    about(&row(&document["phases"], "early setup")["p"], 1.0);
    let ran = boots.run(&["after", "--against", "before"]);
    ran.assert_success();
    let marked = ran.stdout.lines().filter(|line| line.contains("* "));
    let marked = marked.filter_map(|line| line.rsplit_once(' '));
    let marked: Vec<&str> = marked.map(|(_, name)| name).collect();
    assert_eq!(
        marked,
        ["initcalls", "slow_init", "together"],
        "{}",
        ran.stdout
    );
}

/// --time takes this time: the samples in it are those of the phase.
#[test]
fn phases_have_start_times() {
    let boots = Boots::new();
    let document = boots.document(&["before"]);
    let begins: Vec<Vec<f64>> = (document["phases"].as_array().unwrap().iter())
        .map(|row| {
            let each = row["each_begins_ms"].as_array().unwrap();
            each.iter().map(|begin| begin.as_f64().unwrap()).collect()
        })
        .collect();
    // Boot 1 has 41 samples of slow_init and 19 of quick_init, with one between them.
    let expected = [
        [0.0, 0.0, 0.0],
        [6.0, 6.0, 6.0],
        [16.0, 16.0, 16.0],
        [76.0, 78.0, 78.0],
        [80.0, 82.0, 82.0],
    ];
    assert_eq!(begins, expected);
    about(&document["phases"][3]["begins"]["ms"], 232.0 / 3.0);
    let ran = boots.run(&["before/boot-1.kvmprof"]);
    ran.assert_success();
    let line = ran.stdout.lines().find(|line| line.ends_with(" initcalls"));
    let time = line.unwrap().split_whitespace().nth(1).unwrap();
    assert_eq!(time, "0.0160:0.0760");
    let mut report = kvmprof(["report", "before/boot-1.kvmprof", "--time", time, "--json"]);
    let ran: ProgramResult = report.current_dir(&boots.0).output().unwrap().into();
    let report = ran.document();
    assert_eq!(report["account"]["samples"], 60);
}

#[test]
fn each_phase_of_each_boot_has_its_flame_graph() {
    let boots = Boots::new();
    let ran = boots.run(&["before", "--flamegraphs", "pictures"]);
    ran.assert_success();
    let pictures = boots.0.path().join("pictures");
    let phases = [
        "early-setup",
        "handover-to-init",
        "initcalls",
        "unpacking",
        "user-space",
    ];
    let expected: Vec<String> = (1..=3)
        .flat_map(|number| phases.map(|phase| format!("boot-{number}-{phase}.svg")))
        .collect();
    assert_eq!(names(&pictures), expected);
    let picture = |name: &str| fs::read_to_string(pictures.join(name)).unwrap();
    let setup = picture("boot-1-early-setup.svg");
    assert!(
        setup.contains("<title>start_kernel (10 ticks, 100.00%, [kernel], kernel)"),
        "{setup}"
    );
    assert!(!setup.contains("slow_init") && setup.contains("early setup: bzImage"));
    // The last sample of an initcall starts the next phase.
    let initcalls = picture("boot-2-initcalls.svg");
    for function in ["slow_init (42 ticks", "quick_init (19 ticks"] {
        assert!(
            initcalls.contains(&format!("<title>{function}")),
            "{initcalls}"
        );
    }
    assert!(picture("boot-3-user-space.svg").contains("<title>init-1 (30 ticks, 100.00%)"));
    // Pictures of recordings of the same name would replace each other; recordings are kept.
    let both = ["before", "after", "--flamegraphs", "pictures"];
    let refused = boots.run(&both);
    assert_eq!(refused.status, USAGE);
    assert!(
        refused.stderr.contains("after/boot-1.kvmprof"),
        "{refused:?}"
    );
    let before = boots.0.path().join("before/boot-1.kvmprof");
    fs::copy(before, pictures.join("boot-1-unpacking.svg")).unwrap();
    let refused = boots.run(&["before", "--flamegraphs", "pictures"]);
    let instead = "is a recording, which would be lost: name another folder with --flamegraphs";
    assert_eq!(refused.status, FAILURE);
    assert!(refused.stderr.contains(instead), "{refused:?}");
}

/// Boots may take hours: the baseline is checked before them.
#[test]
fn the_baseline_is_read_before_the_boots() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("kernel"), kvmprof_test_guest::ELF).unwrap();
    fs::write(path("bad"), "Dear report,").unwrap();
    recordings::ordinary(&path("ordinary"), 5);
    for (against, why) in [
        ("none", "Cannot read none"),
        ("bad", "bad is no recording"),
        ("ordinary", "There is no initcall"),
    ] {
        let mut command = kvmprof(["boot", "--kernel", "kernel", "--against", against]);
        let command = command.args(["--output", "boots", "--memory", "64M"]);
        let ran: ProgramResult = command.current_dir(&folder).output().unwrap().into();
        ran.assert_refused(FAILURE, &[why]);
        assert!(!path("boots").exists(), "{against}");
    }
}
