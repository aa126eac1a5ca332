//! prf on a real kernel, from the host: its symbols are found where KASLR has put them, those of modules too, and its
//! time is found in the functions that use it. Then modules come and go, and are recorded.

mod modules;

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::ALL_VCPUS;
use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_tests::linux::once;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder};
use kvmprof_tests::{Prf, PrfAccount, until};

pub use modules::functions as functions_of_modules;

/// A kernel's symbols are some MB.
const MAX_SYMBOLS: usize = 64 << 20;
/// Ticks that the client counts.
const TICKS: u64 = 400;

/// The kernel's functions, by address, with how often each was hit.
type Hits = Vec<(u64, String, u64)>;

/// The client, which runs in the lab: it is no test of its own.
#[test]
#[ignore = "runs in the lab, as a part of the other test"]
fn client() {
    let connection = Connection::connect(&PathBuf::from(env::var_os("SOCKET").unwrap())).unwrap();
    let symbols = until("the kernel's symbols are known", || {
        match connection.snapshot(device::KALLSYMS, MAX_SYMBOLS) {
            Ok(text) => Some(String::from_utf8(text).unwrap()),
            Err(error) if error.errno() == Some(Errno::ENXIO) => None,
            Err(error) => panic!("{error}"),
        }
    });
    let lines: Vec<(u64, &str)> = symbols
        .lines()
        .map(|line| (u64::from_str_radix(&line[..16], 16).unwrap(), &line[19..]))
        .collect();
    assert!(lines.is_sorted_by_key(|(address, _)| *address));
    let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
    let table: Vec<u64> = std::iter::once(0)
        .chain(lines.iter().map(|(address, _)| *address))
        .collect();
    prf.load(&table);
    prf.set(1);
    let counts = until("prf has counted", || {
        let counts = prf.counts();
        (counts.sum() >= TICKS).then_some(counts)
    });
    prf.set(0);
    assert!(!PrfAccount::of(&connection, ALL_VCPUS).unwrap().on);
    let mut text = format!(
        "user {}\nidle {}\nbelow {}\n",
        counts.user, counts.idle, counts.counters[0]
    );
    for ((address, name), hits) in lines.iter().zip(&counts.counters[1..]) {
        writeln!(text, "{address:016x} {name} {hits}").unwrap();
    }
    let mut out = env::var_os("OUT").unwrap();
    out.push(".hits");
    fs::write(out, text).unwrap();
}

/// A guest of that series of kernels.
fn run(release: &str) -> Finished {
    once(&format!("prf-{release}"), || {
        let kernel = debian(release);
        let guest = guest_builder(include_str!("init.sh"), &[])
            .modules(&kernel, &modules::MODULES)
            .build()
            .unwrap();
        Scenario::new()
            .program("client", &env::current_exe().unwrap())
            .file("release", release.into())
            .unpacked_kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest)
            .run(include_str!("driver.sh"))
    })
}

/// Each check as a test for each kernel.
macro_rules! tests {
    ($($check:ident)*) => {
        $(mod $check {
            #[test]
            fn in_linux_6_1() {
                super::$check(&super::run("6.1"), "6.1");
            }

            #[test]
            fn in_linux_6_12() {
                super::$check(&super::run("6.12"), "6.12");
            }
        })*
    };
}

tests! {
    functions_are_where_the_kernel_says
    nobody_knew_where_the_kernel_is
    stacks_through_modules_are_whole
    time_is_found_in_the_functions_that_use_it
}

fn nobody_knew_where_the_kernel_is(run: &Finished, release: &str) {
    // The kernel's file may have been read by then, or not.
    let status = run.status_document(&format!("{release}.early"));
    assert!(status.machine.vcpus > 0, "{status:?}");
    assert_eq!(status.machine.linux.and_then(|linux| linux.slide), None);
}

/// While others come and go.
fn stacks_through_modules_are_whole(run: &Finished, release: &str) {
    let console = run.console(release).text();
    let of_module: Vec<(&str, u64)> = said(&console)
        .into_iter()
        .filter(|(name, _)| name.contains('['))
        .collect();
    assert!(of_module.len() >= 2, "{of_module:?}");
    modules::check(run, release, &of_module);
}

/// What the client has found.
fn hits(run: &Finished, release: &str) -> (BTreeMap<String, u64>, Hits) {
    let text = run.text(&format!("{release}.hits"));
    let mut sums = BTreeMap::new();
    let mut hits = Vec::new();
    for line in text.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [name, count] => {
                sums.insert(name.to_owned(), count.parse().unwrap());
            }
            [address, name, count] => hits.push((
                u64::from_str_radix(address, 16).unwrap(),
                name.to_owned(),
                count.parse().unwrap(),
            )),
            _ => panic!("{line}"),
        }
    }
    (sums, hits)
}

/// Where the kernel itself says that functions are.
fn said(text: &str) -> Vec<(&str, u64)> {
    let said: Vec<(&str, u64)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("symbol ")?.split_once(' '))
        .map(|(name, address)| (name, u64::from_str_radix(address, 16).unwrap()))
        .collect();
    assert!(said.len() >= 6, "{text}");
    said
}

/// Every function is where the kernel itself says.
fn functions_are_where_the_kernel_says(run: &Finished, release: &str) {
    let (_, hits) = hits(run, release);
    let console = run.console(release).text();
    assert!(hits.len() > 10_000, "{} functions", hits.len());
    for (name, address) in said(&console) {
        let found = hits
            .iter()
            .any(|(other, other_name, _)| *other == address && other_name == name);
        assert!(found, "{release}: {name} at {address:#x}");
    }
}

/// One vCPU is idle; the other fills memory with zeroes.
fn time_is_found_in_the_functions_that_use_it(run: &Finished, release: &str) {
    let (sums, hits) = hits(run, release);
    let mut top: Vec<_> = hits.iter().filter(|(.., hits)| *hits > 0).collect();
    top.sort_by_key(|(.., hits)| std::cmp::Reverse(*hits));
    println!("{release}: {sums:?}");
    for (address, name, hits) in top.iter().take(8) {
        println!("{release}: {hits:>6} {address:#x} {name}");
    }
    let kernel: u64 = hits.iter().map(|(.., hits)| hits).sum();
    let (user, idle, below) = (sums["user"], sums["idle"], sums["below"]);
    assert!(kernel > user, "{release}: {kernel} {user}");
    assert!(idle > TICKS / 8 && below == 0, "{release}: {idle} {below}");
    let zeroing = ["clear_user", "iov_iter_zero", "rep_stos", "zero"];
    assert!(
        top.iter()
            .take(3)
            .any(|(_, name, _)| zeroing.iter().any(|word| name.contains(word))),
        "{release}: {top:?}"
    );
}
