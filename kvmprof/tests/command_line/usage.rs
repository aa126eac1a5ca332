//! Wrong uses: each has a message of one line that says what to do, and its own exit status.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use super::not_run::not_run;
use super::own_run::with_own_run;
use super::{FAILURE, SUCCESS, USAGE, kvmprof, run};

/// Wrong command lines, and what their messages contain. `''` is an empty argument.
const WRONG: &str = "\
run => --kernel <FILE>
run --config /nowhere/at-all => Cannot read the options
run --kernel x --on-reset off => restart, exit
control => <ACTION>
control pause => --socket
run --kernel x --clock ticker => use thread, or kernel
run --kernel x --cpus 65 => 65 is not in 1..=64
run --kernel x --clock sundial => thread or kernel
run --kernel x --console printer => stdio, hvc, none or file:PATH
run --kernel x --guest-access status => none, pcs, prf, profil, pmc or all
run --kernel x --jitter --clock kernel => --jitter needs --clock thread
attach 1 --capture kernel --jitter --socket /nowhere => --capture ptrace
run --kernel x --pid-at zz => 'zz'
run --kernel x --wait => --wait without --socket
run --kernel x --hz 0 --record y => A recording needs a clock
run --kernel x --hz 10001 => 1 to 10000
record --hz 0 => needs a clock or an --event
record -F 99 --event exits:1 => give it without --hz
demo --clock ticker => use thread, or kernel
demo --jitter --clock kernel => --jitter needs
demo --seconds 0 => more than 0
demo --socket x --json => --json
getpc -p 1,2,3,4,5,6 => at most 5
getpc -p dd => has to be a number
getpc --hz 0 => 1 to 10000
getpc 0 => more than 0
record -o x --seconds x => number of seconds
record -o x --pid dd => has to be a number
record -o x.gz => without .gz
record --cpus 2 => --kernel
record --until x => --console file:PATH
record --console none => --console file:PATH
record --until x --console stdio => --console file:PATH
record --initrd x => --kernel
record x --socket y => give one of them
record --kernel x y => give one of them
record --kernel x --pid 1 => --pid
record --kernel x --socket y => give one of them
record --kernel x -o - => in a file
record --kernel x --until '' => empty
view --port 65536 => 65536
view --live x y => --live
view --live x --firefox => --firefox
view --record-limit 1M => --live
view --socket x => give --live, too
record -o x --event guest-time => 'guest-time:1ms'
record -o x --event guest-time:1 => from 100us to 10s
record -o x --event exits => 'exits:1'
record -o x --event mmio:0 => 1 to 10000000
top --event cycles:9 => cycles from 10000 to
top --event halts:9 => use exits, port
run --kernel x --event mmio:1 => --record
top --window 1e9 => at most 3600
report x --pid dd => has to be a number
report x --time 4:3 => range of seconds
diff - - => Only one
prfdc log 0 => more than 0
profil => --pid <PID>
profil --pid weaver => has to be a number
profil --pid 0 => above 0
profil --pid 7 --scale 1 => from 2
profil --pid 7 --offset main => an address is needed
profil --pid 7 --offset 0x401000 => --bufsiz <BYTES>
profil --pid 7 --bufsiz 4K => --offset <ADDRESS>
profil --pid 7 --offset 0x0 --bufsiz 8M => at most 4M
profil --pid 7 --function f --offset 0x0 --bufsiz 8 => cannot be used with
profil --pid 7 --scale 0xffff -o x => equally many bytes of code in each count
profil --pid 7 -o - => gprof reads files
pcsample --pid 7 => --nsamples <K>
profil --pid 7 --offset 600000 => with 0x
pcsample --pid 7 -n 0 => a number from 1 to 524288
pcsample --pid 7 --nsamples -1 => a number from 1 to 524288
pmc list --jsno => see kvmprof pmc list --help
sing => 'sing'
";

#[test]
fn wrong_options_end_with_the_documented_status() {
    for line in WRONG.lines() {
        let (words, expected) = line.split_once(" => ").unwrap();
        let words = words.split(' ').map(|word| word.trim_matches('\''));
        run(words).assert_refused(USAGE, &["kvmprof: ", expected, "--help"]);
    }
}

#[test]
fn impossible_memory_sizes_are_usage_errors() {
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
        &["control", "info"][..],
        &["pmc", "list"],
        &["profil", "--pid", "7"],
        &["pcsample", "--pid", "7", "-n", "5"],
    ] {
        for socket in [None, Some("")] {
            let mut command = kvmprof(words);
            with_own_run(&mut command, folder.path());
            if let Some(socket) = socket {
                command.env("KVMPROF_SOCKET", socket);
            }
            let ran = super::ProgramResult::from(command.output().unwrap());
            ran.assert_refused(USAGE, &["--socket PATH", "KVMPROF_SOCKET", "--help"]);
        }
    }
    // The tools take the guest's own nodes then.
    for words in [&["getpc", "-o", "/dev/null"][..], &["prfstat"]] {
        let mut command = kvmprof(words);
        with_own_run(&mut command, folder.path());
        command.env("KVMPROF_SOCKET", "");
        let ran = super::ProgramResult::from(command.output().unwrap());
        ran.assert_refused(FAILURE, &["No device at /dev/", "--socket"]);
    }
}

/// In a process namespace of its own, in which no guest runs.
#[test]
fn without_a_guest_the_message_says_how_to_get_one() {
    if !rustix::process::geteuid().is_root() {
        return not_run("only root can make a process namespace");
    }
    let folder = tempfile::tempdir().unwrap();
    for words in [&["status"][..], &["top"], &["record", "-o", "x"]] {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(env!("CARGO_BIN_EXE_kvmprof"))
            .args(words)
            .env("KVMPROF_SOCKET", "");
        with_own_run(&mut command, folder.path());
        let ran = super::ProgramResult::from(command.output().unwrap());
        ran.assert_refused(USAGE, &["No guest runs", "--kernel", "--help"]);
        let mut words = words.to_vec();
        words.push("nobody");
        let mut command = kvmprof(words);
        with_own_run(&mut command, folder.path());
        let ran = super::ProgramResult::from(command.output().unwrap());
        ran.assert_refused(FAILURE, &["There is no guest nobody"]);
    }
}

/// The short one fits on few screens.
#[test]
fn the_help_of_record_has_groups_and_all_options_on_request() {
    let [short, all] = ["--help", "--help-all"].map(|option| {
        let ran = run(["record", option]);
        ran.assert_success();
        ran.stdout
    });
    assert!(short.lines().count() < 100, "{short}");
    for group in [
        "\nWhen it ends:",
        "\nWhat is sampled:",
        "\nWhat comes of it:",
    ] {
        assert!(short.contains(group) && all.contains(group), "{group}");
    }
    for option in [
        "--seconds <N>",
        "--kernel <FILE>",
        "--root <DIR",
        "--help-all",
    ] {
        assert!(short.contains(option), "{option} isn't in {short}");
    }
    for option in ["--vsock", "--record-limit", "--no-trace"] {
        assert!(all.contains(option) && !short.contains(option), "{option}");
    }
}

/// The words of a shell's command up to the first pipe or the like, without quotes and comments.
fn words(line: &str) -> Vec<OsString> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#' | '|' | '&' | '>') => break,
            (None, ' ') => words.push(String::new()),
            _ => words.last_mut().unwrap().push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words.into_iter().map(OsString::from).collect()
}

/// What the README and the tutorials show can be typed.
#[test]
fn the_first_pages_have_valid_commands_and_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tutorials = std::fs::read_dir(root.join("docs/tutorials")).unwrap();
    let mut pages: Vec<_> = tutorials.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(pages.len(), 3);
    for page in &pages {
        let length = std::fs::read_to_string(page).unwrap();
        assert!(length.split_whitespace().count() < 600, "{page:?}");
    }
    pages.push(root.join("README.md"));
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
        let lines = lines.map(|line| line.trim_start_matches("$ ").trim_start_matches("sudo "));
        let lines = lines.map(|line| line.trim_start_matches("./"));
        let mut count = 0;
        for line in lines.filter(|line| line.starts_with("kvmprof ")) {
            let checked = kvmprof::commands::check(&words(line));
            assert!(checked.is_ok(), "{page:?}: {line}: {checked:?}");
            count += 1;
        }
        assert!(count >= 8, "{page:?}");
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
