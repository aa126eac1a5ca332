//! The way of somebody who has just got a page: to a second, a process, the heaviest leaf of the call tree and its source line; without a
//! module; and to the same numbers on a terminal, by the command that the page gives.

use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_recording::{Mode, Sample, StackEnd, comm_of};
use serde_json::{Value, json};

use super::compiled::Guest;
use super::devtools::DevTools;
use super::recordings::{Written, stack_of};
use super::run;

const KERNEL: u64 = 0xffff_ffff_8100_0010;

/// A recording of three seconds: of each the ticks of the guest's program in user mode and in the kernel; the rest are another process's.
fn recording(guest: &Guest) -> PathBuf {
    let mut written = Written::with_symbols("ffffffff81000000 T copy\nffffffff81001000 T _end\n");
    let inner = guest.mapped(guest.address("outer") + 8);
    let main = guest.mapped(guest.address("main"));
    let mut time = written.info.began_monotonic_ns;
    for (in_user, in_kernel) in [(600, 200), (500, 300), (700, 100)] {
        for (ticks, pid, kernel, user) in [
            (in_user, 77, &[][..], &[inner, main][..]),
            (in_kernel, 77, &[KERNEL], &[main]),
            (1000 - in_user - in_kernel, 88, &[], &[0x40_1000]),
        ] {
            let frames = [kernel, user].concat();
            for _ in 0..ticks {
                time += 1_000_000;
                let sample = Sample {
                    time,
                    pc: frames[0],
                    pid,
                    tid: pid,
                    comm: comm_of(if pid == 77 { "work" } else { "other" }),
                    address_space: 0x9000,
                    mode: if kernel.is_empty() {
                        Mode::User
                    } else {
                        Mode::Kernel
                    },
                    stack: stack_of(kernel.len(), user.len(), StackEnd::Complete),
                    ..Sample::default()
                };
                written.push(&sample.into(), &frames);
            }
        }
        written.end_block();
    }
    let functions = ["outer", "main"].map(|name| guest.function(name).clone());
    let blocks = guest.blocks("0badc0de", &functions);
    let path = guest.folder.path().join("recording");
    let bytes = [written.finish().0, blocks.concat()].concat();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// What a command of the page prints as JSON.
fn report(command: &str) -> Value {
    let program = Path::new(env!("CARGO_BIN_EXE_kvmprof"));
    let output = Command::new("/bin/sh")
        .args(["-c", &format!("{command} --json")])
        .env("PATH", program.parent().unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_outsider_finds_a_line_and_gets_the_same_numbers_on_a_terminal() {
    let guest = Guest::new();
    let recording = recording(&guest);
    let page = guest.folder.path().join("page.html");
    let root = guest.root();
    let words = ["html", "--sources", "/", "--sysroot"].map(Path::new);
    let files = [root.as_path(), &recording, Path::new("--output"), &page];
    run(words.into_iter().chain(files)).assert_success();
    let mut browser = DevTools::new(guest.folder.path());
    browser.open(&format!("file://{}", page.display()));
    let total = "parseInt(element('total').textContent)";
    assert_eq!(browser.value(total), 3000);

    // A second, by dragging over the timeline.
    let place = |second: u32| {
        format!(
            "(() => {{ const area = element('area').getBoundingClientRect();
               return [area.left + area.width * {second}e9 / (data.width * data.bins), area.top + 5] }})()"
        )
    };
    let [from, to] = [1, 2].map(|second| browser.value(&place(second)));
    browser.drag(&from, &to);
    browser.until("state.time !== ''");
    // A process, by the name of its lane.
    let lane = "[...document.querySelectorAll('#names .process .name')].find(name => name.textContent === 'work 77')";
    browser.value(&format!("{lane}.click()"));
    browser.until("state.pid === '77'");
    let in_second = browser.value(total).as_u64().unwrap();
    assert!((790..=810).contains(&in_second), "{in_second}");

    // The heaviest leaf, and its line.
    browser.value("element('tab-tree').click(); element('heaviest').click()");
    let leaf = browser.value("document.activeElement.ariaLabel");
    assert!(leaf.as_str().unwrap().starts_with("inner: "), "{leaf}");
    let source = browser.value(
        "[...document.querySelectorAll('#details dt')].find(term => term.textContent === 'source').nextSibling.textContent",
    );
    let line = guest.folder.path().join("work.c");
    assert_eq!(source, format!("{}:2", line.display()));
    browser.press_button("Code");
    let hottest = browser.value(
        "[...document.querySelectorAll('#code section:first-child tr')].find(row => row.dataset.ticks > 0).textContent",
    );
    assert!(hottest.as_str().unwrap().contains("inner(x);"), "{hottest}");

    // Without the kernel.
    browser.value(
        "element('tab-tree').click();
         views.tree.openAll(views.tree.root);
         views.tree.go([...views.tree.elements.values()].find(row => row.frame.name === 'copy').frame)",
    );
    browser.press_button("Without its module");
    browser.until("state.not.length === 1");
    let without = browser.value(total).as_u64().unwrap();
    assert!(without < in_second, "{without}");

    let permissions = json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] });
    browser.allow(permissions);
    browser.value("element('copycommand').click()");
    browser.until("element('copycommand').textContent === 'Copied'");
    let command = browser.value("navigator.clipboard.readText()");
    let report = report(command.as_str().unwrap());
    assert_eq!(report["samples"], without, "{command}");
    let row = |name: &str| {
        let rows = report["functions"].as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no {name}: {rows:?}"))["total"].clone()
    };
    let shown = browser.value(
        "(() => { const rows = sumFunctions(sums.stacks, fn => fn);
           return ['main', 'outer', 'inner'].map(name => rows.find(row => functions.name[row.key] === name).total) })()",
    );
    let printed = ["main", "outer", "inner"].map(row);
    assert_eq!(shown, json!(printed), "{command}");
}
