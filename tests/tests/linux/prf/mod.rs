//! prf on a real kernel, from the host: its symbols are found at the addresses by KASLR, those of modules too. Then
//! modules are loaded and unloaded, and recorded.

mod modules;

use std::env;
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

/// The client, which runs in the lab: it is not a test by itself.
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
    assert!(counts.kernel() > counts.user && counts.counters[0] == 0);
    let mut out = env::var_os("OUT").unwrap();
    out.push(".symbols");
    fs::write(out, symbols).unwrap();
}

/// A guest of that series of kernels.
fn run(release: &'static str) -> (Finished, &'static str) {
    let finished = once(&format!("prf-{release}"), || {
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
    });
    (finished, release)
}

kvmprof_tests::in_each_kernel! {
    functions_are_at_the_kernels_addresses
    the_kernels_address_was_unknown
    stacks_through_modules_are_whole
}

fn the_kernels_address_was_unknown((run, release): &(Finished, &str)) {
    // The kernel's file may have been read by then, or not.
    let status = run.status_document(&format!("{release}.early"));
    assert!(status.machine.vcpus > 0, "{status:?}");
    assert_eq!(status.machine.linux.and_then(|linux| linux.slide), None);
}

/// While others are loaded and unloaded.
fn stacks_through_modules_are_whole((run, release): &(Finished, &str)) {
    let console = run.console(release).text();
    let of_module: Vec<(&str, u64)> = said(&console)
        .into_iter()
        .filter(|(name, _)| name.contains('['))
        .collect();
    assert!(of_module.len() >= 2, "{of_module:?}");
    modules::check(run, release, &of_module);
}

/// The addresses of functions by the kernel itself.
fn said(text: &str) -> Vec<(&str, u64)> {
    let said: Vec<(&str, u64)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("symbol ")?.split_once(' '))
        .map(|(name, address)| (name, u64::from_str_radix(address, 16).unwrap()))
        .collect();
    assert!(said.len() >= 6, "{text}");
    said
}

/// Every function is at the address that the kernel itself prints.
fn functions_are_at_the_kernels_addresses((run, release): &(Finished, &str)) {
    let symbols = run.text(&format!("{release}.symbols"));
    let console = run.console(release).text();
    assert!(symbols.lines().count() > 10_000, "{symbols}");
    for (name, address) in said(&console) {
        let place = format!("{address:016x}");
        let is_it = |line: &str| line.starts_with(&place) && line.get(19..) == Some(name);
        assert!(symbols.lines().any(is_it), "{release}: {name} at {place}");
    }
}
