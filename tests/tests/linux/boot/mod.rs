//! Boots of a Debian kernel, whose times of initcalls agree with the kernel's own (`initcall_debug`).

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use kvmprof_recording::file::Unobserved;
use kvmprof_report::boot::{Boot, Call, CallKind, INITCALL_PREFIX, Levels, Phase};
use kvmprof_report::export::Source;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, kernel_knowledge, once};
use kvmprof_tests::{kvmprof, run_command};
use serde_json::Value;

/// Number of boots.
const BOOTS: usize = 3;
/// Minimum time in ns of initcalls that are compared with the kernel's own measurement.
const LEAST_NS: u64 = 5_000_000;

fn run() -> Finished {
    once("boot", || {
        Scenario::new()
            .kernel("vmlinuz", &debian("6.12"))
            .file("boots", BOOTS.to_string().into_bytes())
            .file("guest.cpio", guest_init(include_str!("init.sh"), &[]))
            .run(include_str!("driver.sh"))
    })
}

/// The levels of the kernel's initcalls in its image.
fn levels() -> Levels {
    let knowledge = kernel_knowledge(&debian("6.12"));
    Levels::from_symbols(
        knowledge
            .linux()
            .unwrap()
            .symbols()
            .names_with(INITCALL_PREFIX),
    )
}

/// The boot with this number, from 1.
fn boot(run: &Finished, number: usize) -> Boot {
    let path = run.path(&format!("boots/boot-{number}.kvmprof"));
    let source = Source::open(&path, &[]).unwrap();
    Boot::read(&source, &levels(), &Unobserved).unwrap()
}

/// The kernel's own times of each boot, in ns, for the initcalls since it has a clock.
fn measured(run: &Finished) -> Vec<BTreeMap<String, u64>> {
    let text = run.text("boot.stdout");
    let (mut boots, mut has_clock) = (vec![BTreeMap::new()], false);
    for line in text.lines() {
        if line.starts_with("workload running") {
            boots.push(BTreeMap::new());
            has_clock = false;
        }
        // Until then the kernel measures in ticks of its own timer, of which it misses some on a busy host.
        if line.contains("Switched to clocksource") && !std::mem::replace(&mut has_clock, true) {
            boots.last_mut().unwrap().clear();
        }
        // The initcall during which the kernel switches clocks starts by one clock and ends by another.
        if line.contains("initcall clocksource_done_booting") {
            continue;
        }
        // initcall NAME MICROSECONDS
        let Some((name, time)) = line
            .strip_prefix("initcall ")
            .and_then(|call| call.split_once(' '))
        else {
            continue;
        };
        let Ok(time) = time.trim_end().parse::<u64>() else {
            continue;
        };
        *boots
            .last_mut()
            .unwrap()
            .entry(name.to_owned())
            .or_insert(0) += time * 1000;
    }
    // After the last boot comes the command's own table.
    assert!(boots.len() > BOOTS, "{} boots were measured", boots.len());
    boots.truncate(BOOTS);
    boots
}

/// The call of the initcall `name`, if it was sampled.
fn call<'a>(boot: &'a Boot, name: &str) -> Option<&'a Call> {
    let mut calls = boot.calls.iter();
    calls.find(|call| call.kind == CallKind::Initcall && call.function == name)
}

/// The kernel reads the time slightly before the first instruction and after the last one, by another clock; and a busy host reads the time of a
/// sample late.
fn tolerance(measured: u64, tick: u64) -> u64 {
    tick + measured / 100
}

/// All are, except for a few samples whose time a busy host has read late: by more than a tick, but by no more than the longest time without a
/// sample.
#[test]
fn the_kernels_time_of_an_initcall_is_within_its_bounds() {
    let run = run();
    let (mut held, mut late, mut hidden) = (0, 0, 0);
    for (index, measured) in measured(&run).iter().enumerate() {
        let boot = boot(&run, index + 1);
        let latest = boot.longest_unseen_ns;
        for (name, &time) in measured {
            let tolerance = tolerance(time, boot.tick_ns);
            let Some(call) = call(&boot, name) else {
                // It has no tick, and no look found its thread waiting in it.
                assert!(
                    time <= latest + tolerance,
                    "{name}: {time}, {latest} at most"
                );
                hidden += 1;
                continue;
            };
            let (least, most) = (call.at_least_ns, call.at_most_ns);
            let outside = least.saturating_sub(time).max(time.saturating_sub(most));
            println!("boot {}: {name}: {least} to {most} for {time}", index + 1);
            assert!(outside <= latest + tolerance, "{name}");
            if outside <= tolerance {
                held += 1;
            } else {
                late += 1;
            }
        }
    }
    println!("{held} within their bounds, {late} by a late sample not, {hidden} not seen");
    assert!(held >= 5 * BOOTS && held >= 9 * late, "{held} and {late}");
}

/// Of three boots, and only with samples that are close enough: on a busy host, many are missing.
#[test]
fn times_of_initcalls_agree_with_the_kernel() {
    let run = run();
    let measured = measured(&run);
    let boots: Vec<Boot> = (1..=BOOTS).map(|number| boot(&run, number)).collect();
    let mean = |times: &mut dyn Iterator<Item = u64>| times.sum::<u64>() / BOOTS as u64;
    let names: BTreeSet<&String> = measured.iter().flat_map(BTreeMap::keys).collect();
    let (mut close, mut far) = (0, 0);
    for name in names {
        let times = measured.iter().map(|times| times.get(name).copied());
        let calls = boots.iter().map(|boot| call(boot, name));
        let (Some(times), Some(calls)) = (
            times.collect::<Option<Vec<u64>>>(),
            calls.collect::<Option<Vec<&Call>>>(),
        ) else {
            continue;
        };
        let time = mean(&mut times.iter().copied());
        if time <= LEAST_NS {
            continue;
        }
        let here = mean(&mut calls.iter().map(|call| call.time_ns));
        let [least, most]: [u64; 2] = [
            mean(&mut calls.iter().map(|call| call.at_least_ns)),
            mean(&mut calls.iter().map(|call| call.at_most_ns)),
        ];
        let is_within = here.abs_diff(time) <= time / 10;
        println!("{name}: {time} ns by the kernel, {here} here, {least} to {most}: {is_within}");
        if most - least <= time / 10 {
            assert!(is_within, "{name}: {here} ns for {time}");
            close += 1;
        } else {
            far += usize::from(!is_within);
        }
    }
    println!(
        "{close} as close as a tenth; of the others, {far} are farther from what the kernel says"
    );
    assert!(close >= 3, "{close} as close as a tenth");
}

#[test]
fn a_boot_has_its_phases_in_order() {
    let run = run();
    for number in 1..=BOOTS {
        let boot = boot(&run, number);
        println!("{:?}", boot.phases);
        for (before, after) in boot.phases.iter().zip(&boot.phases[1..]) {
            assert!(
                before.0 <= before.1 && before.1 == after.0,
                "{:?}",
                boot.phases
            );
        }
        for phase in [Phase::Initcalls, Phase::UserSpace] {
            let index = Phase::ALL.iter().position(|other| *other == phase);
            let (begin, end) = boot.phases[index.unwrap()];
            assert!(end > begin, "{phase:?}");
        }
        assert!(!boot.calls.is_empty());
    }
}

/// The command's own output, and its later reports of the recordings.
#[test]
fn the_command_prints_phases_and_initcalls_with_their_levels() {
    let run = run();
    assert_eq!(run.status("boot"), 0, "{}", run.text("boot.stderr"));
    let text = run.text("boot.stdout");
    let (_, table) = text.rsplit_once("workload running").unwrap();
    println!("{table}");
    for word in [
        &format!("{BOOTS} boots, "),
        "unpacking",
        "early setup",
        "initcalls",
        "user space",
    ] {
        assert!(table.contains(word), "{word}");
    }
    let levels = table.lines().filter(|line| line.ends_with(')')).count();
    assert!(levels >= 3, "{levels} initcalls with a level");
    let boots = run.path("boots");
    let mut command = Command::new(kvmprof());
    command
        .arg("boot")
        .arg(&boots)
        .arg("--json")
        .arg("--against")
        .arg(&boots);
    let ran = run_command(&mut command);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    let calls = document["initcalls"].as_array().unwrap();
    assert!(!calls.is_empty());
    for call in calls {
        assert_eq!(
            (call["change_ms"].as_f64(), call["p"].as_f64()),
            (Some(0.0), Some(1.0))
        );
    }
}
