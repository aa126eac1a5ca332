//! Ways to boot Linux, sizes of memory, numbers of vCPUs, depths of page tables.

use kvmprof_tests::linux::{
    Finished, Program, Scenario, debian, guest_init, guest_program, once, pcs_kind, unpacked,
    without_pvh,
};

/// A guest of the scenario, and its expected configuration.
struct ExpectedGuest {
    name: &'static str,
    cpus: i32,
    memory_mib: i32,
    /// Maximum memory that the kernel reserves for itself, in MiB.
    kept_mib: i32,
    /// Whether KASLR moves the kernel: it does so while it unpacks itself.
    moved: bool,
}

const GUESTS: [ExpectedGuest; 4] = [
    ExpectedGuest {
        name: "elf",
        cpus: 1,
        memory_mib: 128,
        kept_mib: 70,
        moved: false,
    },
    ExpectedGuest {
        name: "pvh",
        cpus: 4,
        memory_mib: 5120,
        kept_mib: 300,
        moved: false,
    },
    ExpectedGuest {
        name: "image",
        cpus: 2,
        memory_mib: 512,
        kept_mib: 100,
        moved: true,
    },
    ExpectedGuest {
        name: "shallow",
        cpus: 1,
        memory_mib: 256,
        kept_mib: 80,
        moved: true,
    },
];

/// The machine that has run all guests, and the one called `name`.
fn run(name: &str) -> (Finished, &'static ExpectedGuest) {
    let expected = GUESTS.iter().find(|guest| guest.name == name).unwrap();
    let finished = once("machines", || {
        let kernel = debian("6.12");
        let init = guest_init(include_str!("init.sh"), &[("hog", &hog())]);
        Scenario::new()
            .five_levels()
            // The largest guest has to fit in.
            .memory(7168)
            .kernel("vmlinuz", &kernel)
            .file("vmlinux", unpacked(&kernel))
            .file("vmlinux-without-pvh", without_pvh(&kernel))
            .file("guest.cpio", init)
            .run(include_str!("driver.sh"))
    });
    (finished, expected)
}

/// A process that is busy all the time.
fn hog() -> Program {
    guest_program("spin.c", 0x1000_0000, &[])
}

kvmprof_tests::in_each_kernel! {
    of { elf("elf") pvh("pvh") image("image") shallow("shallow") }
    guests_have_the_configured_machine
    samples_have_their_process
}

fn guests_have_the_configured_machine((run, expected): &(Finished, &ExpectedGuest)) {
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
    let (release, slide) = run.placement(&format!("{name}.s.status"));
    assert_eq!(console.after("release "), release, "{name}");
    assert_eq!(release, debian("6.12").version, "{name}");
    let slide = slide.unwrap();
    assert!(expected.moved || slide == 0, "{name}: {slide:#x}");
}

/// Samples in the busy process's code have its pid.
fn samples_have_their_process((run, expected): &(Finished, &ExpectedGuest)) {
    let (name, text) = (expected.name, hog().text);
    let stream = run.stream(&format!("{name}.s"));
    stream.check_accounts();
    let pid = run.console(name).number("hog is ");
    let inside: Vec<_> = stream
        .of_kind(pcs_kind::USER)
        .filter(|sample| text.contains(&sample.pc))
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

/// With five levels, since the processor has them, if the kernel unpacks itself, which is when it enables the fifth, and has no option
/// against it.
#[test]
fn page_tables_have_the_configured_depth() {
    let (run, _) = run("image");
    let levels = |name| run.console(name).number("levels ");
    assert_eq!(run.text("host-levels").trim(), "5");
    assert_eq!(levels("image"), 5);
    assert_eq!(levels("elf"), 4);
    assert_eq!(levels("shallow"), 4, "no5lvl");
}
