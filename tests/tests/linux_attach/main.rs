//! Guests of other VMMs, attached to: what runs in them is found in their memory alone.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::fs;

use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, guest_program, once};

fn run(series: &str) -> Finished {
    once(&format!("attach-{series}"), || {
        let kernel = debian(series);
        let one = guest_program("spin.c", 0x1000_0000, &[]);
        let two = guest_program("spin.c", 0x2000_0000, &[]);
        let sometimes = guest_program("brief.c", 0x3000_0000, &[]);
        let programs = [("one", &one), ("two", &two), ("sometimes", &sometimes)];
        Scenario::new()
            .kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest_init(include_str!("init.sh"), &programs))
            .file("series", series.into())
            .qemu()
            .run(include_str!("driver.sh"))
    })
}

#[test]
fn it_runs() {
    let run = run("6.1");
    println!("{}", run.text("own_attached.json"));
    println!("{}", run.text("own.list.json"));
    println!("{}", run.text("own_attached.attach.stderr"));
    let _ = fs::metadata(run.path("x"));
}
