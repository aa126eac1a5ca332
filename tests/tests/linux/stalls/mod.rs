//! Stalls of a Debian guest in `kvmprof stalls`: a lock that two processes compete for, a log that is written with interrupts off, and a host that
//! runs something else. The recording itself is the reference.

use std::collections::BTreeMap;

use kvmprof_recording::{IPL_MASKED, Mode, Preemption, Sample};
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, guest_program, once};
use kvmprof_tests::share;
use serde_json::Value;

const SUCCESS: u8 = 0;
/// The link address of the program that competes for a spin lock.
const SPIN_LOCK: u64 = 0x1000_0000;

pub fn run() -> Finished {
    once("stalls", || {
        let spin = guest_program("spin_lock.c", SPIN_LOCK, &[]);
        let guest = guest_init(include_str!("init.sh"), &[("spin_lock", &spin)]);
        Scenario::new()
            .unpacked_kernel("vmlinuz", &debian("6.12"))
            .file("guest.cpio", guest)
            .run(include_str!("driver.sh"))
    })
}

/// Rows of a table.
fn rows(run: &Finished, table: &str) -> Vec<Value> {
    rows_of(run, "guest.stalls.json", table)
}

fn rows_of(run: &Finished, document: &str, table: &str) -> Vec<Value> {
    let document = run.json(document);
    let rows = document["stalls"][table].as_array();
    rows.unwrap_or_else(|| panic!("{table} in {document}"))
        .clone()
}

fn sum(rows: &[Value], member: &str) -> u64 {
    rows.iter().map(|row| row[member].as_u64().unwrap()).sum()
}

#[test]
fn waits_for_a_lock_have_the_function_that_takes_it() {
    let run = &run();
    assert_eq!(run.status("guest"), SUCCESS, "{}", run.text("guest.stderr"));
    println!("{}", run.text("guest.stalls"));
    let (contents, samples) = run.recording("guest.kvmprof");
    let kernel = Symbols::parse(&contents.symbols);
    let is_waiting = |sample: &Sample| {
        sample.mode == Mode::Kernel && kernel.find(sample.pc) == Some("rwsem_spin_on_owner")
    };
    let waiting = samples.iter().filter(|(sample, _)| is_waiting(sample));
    let waiting = waiting.count() as u64;
    assert!(
        waiting >= 20,
        "only {waiting} samples wait for the file's lock"
    );
    let rows = rows(run, "waits");
    let of_file: Vec<Value> = rows
        .into_iter()
        .filter(|row| row["kind"] == "read-write-semaphore")
        .collect();
    let all = sum(&of_file, "samples");
    assert!(all >= waiting, "{all} of {waiting}: {of_file:?}");
    let most = &of_file[0];
    let function = most["function"].as_str().unwrap();
    assert!(function.ends_with("file_write_iter"), "{most}");
    assert!(
        most["samples"].as_u64().unwrap() * 10 >= all * 9,
        "{of_file:?}"
    );
}

#[test]
fn stretches_with_interrupts_off_agree_with_the_log() {
    let run = &run();
    let (_, samples) = run.recording("guest.kvmprof");
    let is_off = |sample: &Sample| sample.ipl == IPL_MASKED && sample.mode != Mode::Idle;
    let off = samples.iter().filter(|(sample, _)| is_off(sample));
    let off = off.count() as u64;
    let document = run.json("guest.stalls.json");
    assert_eq!(document["stalls"]["samples_with_interrupts_off"], off);
    let rows = rows(run, "interrupts_off");
    assert_eq!(document["stalls"]["stretches"], rows.len());
    assert_eq!(sum(&rows, "samples"), off);
    for row in &rows {
        let (seen, at_most) = (row["seen_ns"].as_u64(), row["at_most_ns"].as_u64());
        assert!(seen < at_most, "{row}");
    }
    // The longest ones first. Each line of the log takes milliseconds.
    assert!(rows.is_sorted_by_key(|row| std::cmp::Reverse(row["seen_ns"].as_u64())));
    let of_log = |row: &Value| {
        let text = row.to_string();
        ["console", "io_serial", "serial8250"]
            .iter()
            .any(|part| text.contains(part))
    };
    assert!(rows.iter().take(10).any(of_log), "{:?}", &rows[..10]);
}

#[test]
fn every_stolen_tick_is_in_the_table() {
    let run = &run();
    let document = run.json("guest.stalls.json");
    let stolen = document["account"]["stolen"].as_u64().unwrap();
    assert!(stolen > 0, "{document}");
    let rows = rows(run, "stolen");
    assert_eq!(sum(&rows, "ticks"), stolen);
    let of_dd = rows
        .iter()
        .filter(|row| row["last_seen"]["process"] == "dd");
    assert!(of_dd.count() > 0, "{rows:?}");
}

/// The samples of the kernel in `function`.
fn samples_in<'a>(
    samples: &'a [(Sample, Vec<u64>)],
    kernel: &'a Symbols,
    function: &'a str,
) -> impl Iterator<Item = &'a Sample> {
    let samples = samples.iter().map(|(sample, _)| sample);
    samples.filter(move |sample| {
        sample.mode == Mode::Kernel && kernel.find(sample.pc) == Some(function)
    })
}

/// Only the two writers take the file's lock: each waits for the other one, which runs on the other vCPU.
#[test]
fn a_contended_lock_has_its_address_and_owner() {
    let run = &run();
    let (contents, samples) = run.recording("guest.kvmprof");
    let kernel = Symbols::parse(&contents.symbols);
    let waiting: Vec<&Sample> = samples_in(&samples, &kernel, "rwsem_spin_on_owner").collect();
    let known: Vec<_> = (waiting.iter())
        .filter_map(|sample| Some((*sample, sample.lock?)))
        .collect();
    println!("{} of {} locks are known", known.len(), waiting.len());
    // On a busy host the lock often changes its owner after the waiting vCPU was stopped.
    assert!(known.len() >= 10 && share(known.len() as u64, waiting.len() as u64) >= 0.2);
    let mut by_address: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut right, mut on_other) = (0, 0);
    for (sample, lock) in &known {
        *by_address.entry(lock.address).or_default() += 1;
        let owner = lock.owner.unwrap();
        let is_right = owner.comm.starts_with(b"dd\0")
            && owner.tid != sample.tid
            // Or on none: the other writer may have been put to sleep meanwhile.
            && owner.vcpu != Some(sample.vcpu);
        on_other += u64::from(owner.vcpu == Some(1 - sample.vcpu));
        right += u64::from(is_right);
        if !is_right {
            println!("  {} on {}: {lock:?}", sample.tid, sample.vcpu);
        }
    }
    println!("{by_address:x?}, {right} right");
    let most = *by_address.values().max().unwrap();
    assert!(share(most, known.len() as u64) >= 0.95, "{by_address:?}");
    assert!(share(right, known.len() as u64) >= 0.95, "{right}");
    assert!(share(on_other, known.len() as u64) >= 0.5, "{on_other}");
    let rows = rows(run, "locks");
    assert_eq!(sum(&rows, "samples"), {
        let all = samples.iter().filter(|(sample, _)| sample.lock.is_some());
        all.count() as u64
    });
    assert_eq!(rows[0]["kind"], "read-write-semaphore");
    let address = rows[0]["address"].as_str().unwrap();
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16);
    assert_eq!(by_address[&address.unwrap()], most);
    assert_eq!(rows[0]["owner"]["name"], "dd");
}

/// Only both threads take the one lock of a file's record locks.
#[test]
fn a_contended_spin_lock_has_its_address() {
    let run = &run();
    let (contents, samples) = run.recording("spin.kvmprof");
    let kernel = Symbols::parse(&contents.symbols);
    let names = |address: &u64| kernel.find(*address).unwrap_or_default();
    let is_waiting = |(sample, stack): &&(Sample, Vec<u64>)| {
        sample.mode == Mode::Kernel
            && names(&sample.pc).ends_with("queued_spin_lock_slowpath")
            && (stack.iter().map(names)).any(|name| name == "fcntl_getlk")
    };
    let waiting: Vec<&Sample> = (samples.iter().filter(is_waiting))
        .map(|(sample, _)| sample)
        .collect();
    let known: Vec<_> = (waiting.iter()).filter_map(|sample| sample.lock).collect();
    println!("{} of {} locks are known", known.len(), waiting.len());
    // At some instructions of its loop the waiting vCPU has the address in no register.
    assert!(known.len() >= 10 && share(known.len() as u64, waiting.len() as u64) >= 0.2);
    assert!(known.iter().all(|lock| lock.owner.is_none()));
    let mut by_address: BTreeMap<u64, u64> = BTreeMap::new();
    for lock in &known {
        *by_address.entry(lock.address).or_default() += 1;
    }
    let (address, most) = (by_address.iter().max_by_key(|(_, count)| **count)).unwrap();
    println!("{by_address:x?}");
    assert!(share(*most, known.len() as u64) >= 0.95, "{by_address:x?}");
    let rows = rows_of(run, "spin.stalls.json", "locks");
    let first = &rows[0];
    assert_eq!(first["kind"], "spin-lock");
    assert_eq!(first["address"], format!("{address:#018x}"));
    // Those that were woken by an interrupt wait for it, too.
    let locks = samples.iter().filter_map(|(sample, _)| sample.lock);
    let all = locks.filter(|lock| lock.address == *address).count();
    assert_eq!(first["samples"], all);
    // It is allocated; locks in the kernel's image are variables.
    assert_eq!(first["variable"], Value::Null);
    for document in ["spin.stalls.json", "guest.stalls.json"] {
        for row in rows_of(run, document, "locks") {
            let address = row["address"].as_str().unwrap();
            let is_in_image = ("0xffffffff80000000".."0xffffffffc0000000").contains(&address);
            assert_eq!(row["variable"].is_string(), is_in_image, "{row}");
        }
    }
}

/// A task that waits for a semaphore in a loop has preemption off (`rwsem_optimistic_spin`), and so has one that copies written data
/// (`kmap_atomic` in `copy_page_from_iter_atomic`); one that checks for a page, or fills a program's memory with zeros, has not.
#[test]
fn preemption_is_off_where_the_kernel_forbids_it() {
    let run = &run();
    let (contents, samples) = run.recording("guest.kvmprof");
    let kernel = Symbols::parse(&contents.symbols);
    let part = |functions: &[&str], preemption: Preemption| {
        let found = functions.iter();
        let all: Vec<&Sample> = found
            .flat_map(|function| samples_in(&samples, &kernel, function))
            .collect();
        let such = all.iter().filter(|sample| sample.preemption == preemption);
        let (such, all) = (such.count() as u64, all.len() as u64);
        println!("{functions:?}: {preemption:?} in {such} of {all}");
        assert!(all >= 20, "{functions:?}: {all}");
        share(such, all)
    };
    assert!(part(&["rwsem_spin_on_owner"], Preemption::Off) >= 0.99);
    assert!(part(&["rep_movs_alternative"], Preemption::Off) >= 0.9);
    let on = ["fault_in_readable", "rep_stos_alternative"];
    assert!(part(&on, Preemption::On) >= 0.95);
    let of = |mode: Mode| {
        samples
            .iter()
            .filter(move |(sample, _)| sample.mode == mode)
    };
    assert!(of(Mode::User).all(|(sample, _)| sample.preemption == Preemption::On));
    assert!(of(Mode::Interrupt).all(|(sample, _)| sample.preemption == Preemption::Off));
    let is_off =
        |sample: &Sample| sample.preemption == Preemption::Off && sample.mode != Mode::Idle;
    let off = samples.iter().filter(|(sample, _)| is_off(sample));
    let off = off.count() as u64;
    let document = run.json("guest.stalls.json");
    assert_eq!(document["stalls"]["samples_with_preemption_off"], off);
    let rows = rows(run, "preemption_off");
    assert_eq!(sum(&rows, "samples"), off);
    assert!(rows.is_sorted_by_key(|row| std::cmp::Reverse(row["seen_ns"].as_u64())));
}
