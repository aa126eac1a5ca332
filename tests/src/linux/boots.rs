//! Boots emulated machines again in which a kernel crashes.

use std::path::Path;
use std::process::Command;

use super::turn;
use crate::not_run::note;

/// Maximum number of boots of a machine whose kernels crash.
const BOOTS: u32 = 6;
/// kvmprof's message about a guest that has crashed.
pub(super) const TRIPLE_FAULT: &str = "The guest crashed: triple fault";
/// Messages of a kernel or of kvmprof about a crashed kernel.
const CRASHES: [&str; 7] = [
    "Kernel panic",
    "Oops: ",
    "BUG: unable to handle",
    "general protection fault",
    TRIPLE_FAULT,
    // Of another VMM, as driver.sh says.
    "the guest has reset itself",
    "The lab machine went down before its command was done",
];

/// Returns the result of `boot`. At times QEMU's emulation fails, and a kernel crashes, the machine's or a guest's
/// (docs/limits.md): then `boot` is called again, and the list of tests that weren't run says so.
///
/// # Panics
/// `boot` fails with what it returns, and no kernel has crashed, or one crashes at each boot.
pub(super) fn until_no_kernel_crashes<T>(mut boot: impl FnMut() -> Result<T, String>) -> T {
    for number in 1.. {
        let failure = match boot() {
            Ok(done) => return done,
            Err(failure) => failure,
        };
        let crash = CRASHES.iter().find(|crash| failure.contains(**crash));
        let Some(crash) = crash.filter(|_| number < BOOTS) else {
            panic!("{failure}");
        };
        println!("{failure}");
        note(&format!(
            "at boot {number} of this scenario a kernel crashed in emulation ({crash}), so it was booted again"
        ));
    }
    unreachable!("the last boot returns or panics")
}

/// Runs the command `arguments` of the lab, and returns its output. `recording` is what it makes.
///
/// # Panics
/// The command fails.
pub fn lab_command(arguments: &[&str], recording: &Path) -> String {
    let lab = kvmprof_lab::build_program("kvmprof-lab").expect("the lab is built");
    until_no_kernel_crashes(|| {
        let _turn = turn();
        let ran = Command::new(&lab)
            .args(arguments)
            .arg("--record")
            .arg(recording)
            .output()
            .expect("the lab starts");
        let [output, said] = [&ran.stdout, &ran.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        if ran.status.success() {
            Ok(output.into_owned())
        } else {
            Err(format!("{said}\n{output}"))
        }
    })
}
