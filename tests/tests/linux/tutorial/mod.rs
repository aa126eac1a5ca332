//! The tutorial for kernel engineers, with a kernel of Debian in the place of the one that they build: each of its commands that can be run
//! without that kernel's tree succeeds.

use kvmprof_lab::virtiofsd;
use kvmprof_tests::linux::{Scenario, debian};

use crate::folders::modules;

const PAGE: &str = include_str!("../../../../docs/tutorials/kernel-engineer.md");

/// The lab has no browser.
const OPEN: &str = " --open";

#[test]
fn the_commands_of_the_tutorial_work() {
    let lines = PAGE.lines().filter_map(|line| line.strip_prefix("    $ "));
    let lines: Vec<String> = lines.map(|line| line.replace(OPEN, "")).collect();
    assert!(lines.len() > 5, "{lines:?}");
    let kernel = debian("6.12");
    let modules = modules(&kernel);
    let run = Scenario::new()
        .memory(3072)
        .kernel("bzImage", &kernel)
        .folder("modules", modules.path())
        .file("release", kernel.version.clone().into())
        .program_with_libraries("virtiofsd", &virtiofsd())
        .file("commands", (lines.join("\n") + "\n").into())
        .run(include_str!("driver.sh"));
    println!("{}", run.text("said"));
    let tree = run.text("tree");
    assert!(tree.contains(" read_zero"), "{tree}");
    assert!(run.text("diff.html").contains("</html>"));
}
