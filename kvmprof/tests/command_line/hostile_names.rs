//! A recording in which every name is hostile is the input of every command in every format, alone and with another one. No text acts on a
//! terminal or has an additional line, each document is well-formed, and a browser that opens the pages and pictures only displays them.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::ValueEnum;
use kvmprof_abi::text::is_visible;
use kvmprof_report::export::Format;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use tempfile::TempDir;

use super::devtools::DevTools;
use super::hostile_recording::{FILES, FORGED, evil, faults, recording};
use super::{FAILURE, ProgramResult, SUCCESS, kvmprof};

/// A folder with recordings of hostile names: one, a truncated one, two boots, and faults of guest memory.
struct HostileFolder(TempDir);

impl HostileFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bytes = recording(true);
        let boot = recording(false);
        let faults = faults();
        let contents = [&bytes, &bytes[..bytes.len() - 20], &boot, &boot, &faults];
        for (name, contents) in FILES.iter().zip(contents) {
            fs::write(folder.path().join(name), contents).unwrap();
        }
        Self(folder)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = kvmprof(words);
        command.current_dir(&self.0);
        command
    }

    fn run(&self, words: &[&str]) -> ProgramResult {
        let ran: ProgramResult = self.command(words).output().unwrap().into();
        assert_eq!(ran.status, 0, "{words:?}: {ran:?}");
        let begins = |line: &str| line.starts_with("kvmprof: ") || line.starts_with("  ");
        assert!(ran.stderr.lines().all(begins), "{ran:?}");
        let acts = |character: char| character != '\n' && !is_visible(character);
        assert!(!ran.stderr.contains(acts), "{ran:?}");
        ran
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Everything printed for people.
    fn tables(&self) -> Vec<Vec<&'static str>> {
        let [one, other, boot, again, faults] = FILES;
        let by = "mode,vcpu,process,thread,module,function,line,user";
        let apart: Vec<&str> = by.split(',').flat_map(|table| ["--by", table]).collect();
        vec![
            vec!["report", one],
            vec!["report", one, other],
            [&["report", one][..], &apart].concat(),
            [&["report", one, other][..], &apart].concat(),
            vec!["report", one, "--by", by],
            vec!["report", one, other, "--by", by],
            vec!["report", one, "--callers", "_raw_spin_lock"],
            vec!["report", one, other, "--callees", "kernel_init"],
            vec!["report", one, "--tasks"],
            vec!["report", one, "--exits"],
            vec!["report", faults, "--faults"],
            vec!["report", faults, faults, "--faults"],
            vec!["stalls", one],
            vec!["diff", one, other],
            vec!["boot", boot],
            vec!["boot", boot, again],
            vec!["boot", boot, "--against", again],
        ]
    }
}

/// Checks the visible output of a command: nothing in it acts, and no name makes a line.
#[track_caller]
fn assert_harmless(words: &[&str], text: &str) {
    let acts = |character: char| !matches!(character, '\n' | '\t') && !is_visible(character);
    for line in text.lines() {
        assert!(!line.contains(acts), "{words:?}: {line:?}");
        assert!(!line.trim_start().starts_with(FORGED), "{words:?}: {text}");
    }
}

#[test]
fn tables_and_documents_have_names_as_text() {
    let scene = HostileFolder::new();
    for words in scene.tables() {
        let ran = scene.run(&words);
        assert_harmless(&words, &ran.stdout);
        // The expected text is there.
        assert!(ran.stdout.contains("<img"), "{words:?}: {}", ran.stdout);
        let words = [words.as_slice(), &["--json"]].concat();
        let ran = scene.run(&words);
        assert_harmless(&words, &ran.stdout);
        serde_json::from_str::<Value>(&ran.stdout).unwrap();
    }
    // It has no JSON.
    let words = ["report", FILES[0], "--tree"];
    let ran = scene.run(&words);
    assert_harmless(&words, &ran.stdout);
    assert!(ran.stdout.contains("<img"), "{}", ran.stdout);
}

#[test]
fn exports_are_well_formed_and_nothing_acts_on_a_terminal() {
    let scene = HostileFolder::new();
    for format in Format::value_variants() {
        let name = format.to_possible_value().unwrap().get_name().to_owned();
        let words = ["export", FILES[0], "--format", &name, "--output"];
        let ran = on_terminal(&mut scene.command(&[words.as_slice(), &["exported"]].concat()));
        let next = format.reading_command(Path::new("exported"));
        assert!(
            ran.stdout.contains(&next) || ran.stderr.contains(&next),
            "{ran:?}"
        );
        assert!(scene.path("exported").metadata().unwrap().len() > 0);
        let ran = on_terminal(&mut scene.command(&[words.as_slice(), &["-"]].concat()));
        assert_harmless(&words, &ran.stdout);
        match format {
            Format::Pprof => ran.assert_refused(FAILURE, &["a terminal", "pprof", "--output"]),
            Format::PerfData => assert_eq!(ran.status, FAILURE, "{ran:?}"),
            _ => {
                assert_eq!(ran.status, SUCCESS, "{ran:?}");
                assert!(ran.stdout.contains("<img"), "{ran:?}");
            }
        }
        let exported = fs::read(scene.path("exported")).unwrap();
        match format {
            Format::Firefox | Format::Speedscope => {
                serde_json::from_slice::<Value>(&exported).unwrap();
            }
            Format::Folded => {
                let text = String::from_utf8(exported).unwrap();
                assert_harmless(&words, &text);
                let counts = text
                    .lines()
                    .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
                assert_eq!(counts.sum::<u64>(), 113, "{text}");
            }
            Format::PerfScript | Format::Callgrind => {
                assert_harmless(&words, &String::from_utf8(exported).unwrap());
            }
            Format::Pprof | Format::PerfData => {}
        }
    }
}

/// Runs a command whose standard output is a terminal.
fn on_terminal(command: &mut Command) -> ProgramResult {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap();
    let terminal = File::options().write(true).open(name.to_str().unwrap());
    let child = command.stdout(terminal.unwrap()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    // The command's end is closed with it: then a read fails (EIO).
    command.stdout(Stdio::null());
    let mut shown = Vec::new();
    let _ = File::from(controller).read_to_end(&mut shown);
    let ran: ProgramResult = child.wait_with_output().unwrap().into();
    // The terminal ends lines by two characters.
    let stdout = String::from_utf8(shown).unwrap().replace("\r\n", "\n");
    ProgramResult { stdout, ..ran }
}

/// All pages and pictures of the recordings: their files.
fn documents(scene: &HostileFolder) -> Vec<String> {
    let [one, other, boot, _, faults] = FILES;
    let mut files = Vec::new();
    let mut draw = |words: &[&str], end: &str| {
        let file = format!("{}.{end}", files.len());
        scene.run(&[words, &["--output", &file]].concat());
        files.push(file);
    };
    for recordings in [&[one][..], &[one, other]] {
        draw(&[&["html"], recordings].concat(), "html");
        draw(&[&["flamegraph"], recordings].concat(), "svg");
        draw(&[&["flamegraph", "--icicle"], recordings].concat(), "svg");
        draw(
            &[&["flamegraph", "--by", "user,thread"], recordings].concat(),
            "svg",
        );
    }
    draw(&["html", faults], "html");
    draw(&["flamegraph", "--by", "container", faults], "svg");
    draw(&["flamegraph", "--tasks", one], "svg");
    draw(&["diff", one, other], "svg");
    draw(&["diff", one, other, "--icicle"], "svg");
    scene.run(&["boot", boot, "--flamegraphs", "boots"]);
    scene.run(&["diff", one, other, "--html", "diff.html"]);
    files.push("diff.html".to_owned());
    for entry in fs::read_dir(scene.path("boots")).unwrap() {
        let file = format!("{}.svg", files.len());
        fs::rename(entry.unwrap().path(), scene.path(&file)).unwrap();
        files.push(file);
    }
    files
}

/// Uses a document: all choices of the page, its views, lanes and chips, and frames of the page or the picture.
pub const USE: &str = "
    for (const list of document.querySelectorAll('select')) {
      for (const option of [...list.options, list.options[0]]) {
        list.value = option.value
        list.dispatchEvent(new Event('change', { bubbles: true }))
      }
    }
    for (const one of ['[role=tab]', '#graph .frame', '#tree tbody tr', '#names button', '#chips button', '#frames g'].flatMap(all => [...document.querySelectorAll(all)])) {
      for (const kind of ['mouseover', 'pointermove', 'focusin', 'click']) one.dispatchEvent(new MouseEvent(kind, { bubbles: true }))
    }";

#[test]
fn a_browser_does_nothing_but_show_pages_and_pictures() {
    let scene = HostileFolder::new();
    let files = documents(&scene);
    let mut browser = DevTools::new(scene.0.path());
    let mut deeds = |file: &str| {
        let url = format!("file://{}", scene.path(file).display());
        browser.deeds(&url, USE)
    };
    assert!(files.len() > 12);
    for file in files {
        let found = deeds(&file);
        assert!(found.is_empty(), "{file}: {found:#?}");
    }
    // It detects what isn't text.
    fs::write(
        scene.path("control.html"),
        format!("<!DOCTYPE html><p>{}", evil("control")),
    )
    .unwrap();
    let seen = format!("{:?}", deeds("control.html"));
    for kind in [
        "Page.javascriptDialogOpening",
        "Page.frameRequestedNavigation",
        "Network.requestWillBeSent",
    ] {
        assert!(seen.contains(kind), "{kind}: {seen}");
    }
}

/// The page has a policy as well: markup by mistake would not run.
#[test]
fn nothing_runs_in_a_page_but_its_own_script() {
    let scene = HostileFolder::new();
    scene.run(&["html", FILES[0], "--output", "page.html"]);
    let page = fs::read_to_string(scene.path("page.html")).unwrap();
    let mistake =
        "</header><script>alert('a script')</script><p onclick=alert('a handler') id=hit>x</p>";
    fs::write(
        scene.path("mistake.html"),
        page.replace("</header>", mistake),
    )
    .unwrap();
    let url = format!("file://{}", scene.path("mistake.html").display());
    let use_it = "
        if (!document.querySelector('#graph .frame')) alert('nothing is drawn')
        document.getElementById('hit').click()
        let refused = false
        try { document.body.innerHTML = '<img src=x onerror=alert(1)>' } catch { refused = true }
        if (!refused) alert('text became markup')";
    let deeds = DevTools::new(scene.0.path()).deeds(&url, use_it);
    let dialogs: Vec<&Value> = (deeds.iter())
        .filter(|event| event["method"] == "Page.javascriptDialogOpening")
        .collect();
    assert!(dialogs.is_empty(), "{dialogs:#?}");
    // The browser reports what it has refused.
    assert!(
        deeds
            .iter()
            .any(|event| event["method"] == "Log.entryAdded"),
        "{deeds:#?}"
    );
}
