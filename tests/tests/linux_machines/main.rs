//! Ways to boot Linux, sizes of memory, numbers of vCPUs, depths of page tables.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use kvmprof_tests::linux::{
    Finished, Program, Scenario, debian, guest_init, guest_program, pcs_kind, unpacked, without_pvh,
};

/// A guest of the scenario, and what it should see of itself.
struct Expected {
    name: &'static str,
    cpus: i32,
    memory_mib: i32,
    /// How much of it the kernel may keep for itself, in MiB.
    kept_mib: i32,
    /// Whether KASLR moves the kernel: it does so as it unpacks itself.
    moved: bool,
}

const GUESTS: [Expected; 4] = [
    Expected {
        name: "elf",
        cpus: 1,
        memory_mib: 128,
        kept_mib: 70,
        moved: false,
    },
    Expected {
        name: "pvh",
        cpus: 4,
        memory_mib: 5120,
        kept_mib: 300,
        moved: false,
    },
    Expected {
        name: "image",
        cpus: 2,
        memory_mib: 512,
        kept_mib: 100,
        moved: true,
    },
    Expected {
        name: "shallow",
        cpus: 1,
        memory_mib: 256,
        kept_mib: 80,
        moved: true,
    },
];

#[test]
fn linux_boots_in_all_ways() {
    let kernel = debian("6.12");
    let hog = guest_program("spin.c", 0x1000_0000, &[]);
    let init = guest_init(include_str!("init.sh"), &[("hog", &hog)]);
    let run = Scenario::new()
        // The largest guest has to fit in.
        .memory(7168)
        .kernel("vmlinuz", &kernel)
        .file("vmlinux", unpacked(&kernel))
        .file("vmlinux-without-pvh", without_pvh(&kernel))
        .file("guest.cpio", init)
        .run(include_str!("driver.sh"));
    for expected in &GUESTS {
        check_machine(&run, expected);
        assert_eq!(run.console(expected.name).after("release "), kernel.version);
        check_samples(&run, expected, &hog);
    }
    check_page_tables(&run);
}

fn check_machine(run: &Finished, expected: &Expected) {
    let name = expected.name;
    assert_eq!(
        run.status(name),
        0,
        "{name}: {}",
        run.text(&format!("{name}.stderr"))
    );
    let console = run.console(name);
    assert_eq!(console.number("cpus "), expected.cpus, "{name}");
    let memory = console.number("memory ") / 1024;
    println!("{name}: {memory} MiB");
    let least = expected.memory_mib - expected.kept_mib;
    assert!(
        (least..=expected.memory_mib).contains(&memory),
        "{name}: {memory} MiB"
    );
    let status = run.json(&format!("{name}.s.status"));
    let introspection = status["machine"]["introspection"].as_str().unwrap();
    let (_, slide) = introspection
        .split_once("slide ")
        .unwrap_or_else(|| panic!("{introspection}"));
    assert!(expected.moved || slide == "0x0", "{name}: {introspection}");
}

/// What the busy process executes is said to be its own.
fn check_samples(run: &Finished, expected: &Expected, hog: &Program) {
    let name = expected.name;
    let stream = run.stream(&format!("{name}.s"));
    stream.check_accounts();
    let pid = run.console(name).number("hog is ");
    let inside: Vec<_> = stream
        .of_kind(pcs_kind::USER)
        .filter(|sample| hog.text.contains(&sample.pc))
        .collect();
    let right = inside.iter().filter(|sample| sample.pid == pid).count();
    println!(
        "{name}: {right} of {} samples of the busy process",
        inside.len()
    );
    assert!(inside.len() >= 10, "{name}: {} samples", inside.len());
    assert!(
        right * 100 >= inside.len() * 99,
        "{name}: {right} of {}",
        inside.len()
    );
    assert_eq!(
        stream.names.get(&pid).map(String::as_str),
        Some("hog"),
        "{name}"
    );
}

/// With five levels where the processor has them, and without where the kernel is told so.
fn check_page_tables(run: &Finished) {
    let host = run.text("host-levels");
    let levels = ["elf", "pvh", "image", "shallow"].map(|name| run.console(name).number("levels "));
    println!(
        "page tables in the lab: {}, in guests: {levels:?}",
        host.trim()
    );
    assert_eq!(levels[3], 4, "no5lvl");
}
