//! A guest of QEMU whose memory slots change while it is attached to, by ptrace and by the host's kernel simultaneously: memory is plugged
//! in, a balloon takes pages away, and the memory is unplugged again. The first memory is a file, the plugged-in memory is huge pages.

use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program, once};

use super::{COMMON, ONE, TWO, check_pids, check_whole_stacks, of_program};
use crate::named::{NamedSample, read};
use crate::prf::functions_of_modules;

const MIB: u64 = 1 << 20;
const MORE: u64 = 256 * MIB;

fn run() -> Finished {
    once("attach-slots", || {
        let kernel = debian("6.12");
        let one = guest_program("spin.c", ONE, &[]);
        let two = guest_program("spin.c", TWO, &[]);
        let programs = [("one", &one), ("two", &two)];
        let guest = guest_builder(include_str!("slots_init.sh"), &programs);
        let guest = guest.modules(&kernel, &["virtio_balloon", "brd"]);
        Scenario::new()
            .memory(4096)
            .kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest.build().unwrap())
            .qemu()
            .run(&format!("{COMMON}\n{}", include_str!("slots.sh")))
    })
}

/// The guest's memory as the host sees it, in bytes.
fn listed(run: &Finished, name: &str) -> u64 {
    let guest = run.listed(&format!("{name}.list.json"), "name", "qemu");
    guest["memory_bytes"].as_u64().unwrap()
}

#[test]
fn added_and_removed_memory_is_noticed() {
    let run = run();
    println!("{}", run.console("qemu").text());
    println!("{}", run.text("qmp"));
    let [before, grown, shrunk] = ["before", "grown", "shrunk"].map(|name| listed(&run, name));
    assert_eq!((grown, shrunk), (before + MORE, before));
}

/// The second process is in the plugged-in memory, by its page tables, and has its stack there.
#[test]
fn samples_are_right_while_slots_change() {
    let run = run();
    for name in ["traced", "copied"] {
        let (_, samples) = run.attached(name);
        for (program, start) in [("one", ONE), ("two", TWO)] {
            let of_program = of_program(&samples, start);
            check_pids(name, &of_program, run.pid("qemu", program), 30, 99);
            check_whole_stacks(name, program, of_program);
        }
    }
}

/// The third process reads a disk of a module, whose functions are at the addresses that the guest's kernel prints.
#[test]
fn functions_of_modules_have_their_names() {
    let run = run();
    let text = run.console("qemu").text();
    let said: Vec<(u64, &str)> = text
        .lines()
        .filter_map(|line| {
            let (address, name) = line.strip_prefix("function ")?.split_once(' ')?;
            Some((u64::from_str_radix(address, 16).ok()?, name.trim_end()))
        })
        .collect();
    assert!(!said.is_empty(), "{text}");
    let dd = run.pid("qemu", "dd");
    for name in ["traced", "copied"] {
        let (contents, _) = run.recording(&format!("{name}.kvmprof"));
        let functions = functions_of_modules(&contents.symbols);
        for (address, function) in &said {
            let expected = format!("{function} [brd]");
            assert_eq!(functions.get(address), Some(&expected), "{name}");
        }
        let (_, seen) = read(&run, &format!("{name}.kvmprof"));
        let of_reader = seen.iter().filter(|seen| seen.sample.pid == dd);
        let all = of_reader.clone().count();
        let is_in = |seen: &&NamedSample| seen.kernel.iter().any(|frame| frame.module == "[brd]");
        let in_module = of_reader.filter(is_in).count();
        println!("{name}: {in_module} of {all} samples of the reader lead through the module");
        assert!(in_module >= 10);
    }
}

/// The plugged-in memory was taken from the host's huge pages, or reserved in them.
#[test]
fn some_memory_is_in_huge_pages() {
    let run = run();
    let text = run.text("huge");
    let pages = |name: &str| -> u64 {
        let number = text.lines().find_map(|line| line.strip_prefix(name));
        number.unwrap().trim().parse().unwrap()
    };
    let taken = pages("Total") - pages("Free") + pages("Rsvd");
    assert!(taken >= MORE / (2 * MIB), "{text}");
    assert!(pages("Free") < pages("Total"), "{text}");
}

#[test]
fn the_guest_ends_without_errors() {
    let run = run();
    assert_eq!(run.status("qemu"), 0, "{}", run.text("qemu.stderr"));
    assert!(
        !run.text("qmp").contains("\"error\""),
        "{}",
        run.text("qmp")
    );
}
