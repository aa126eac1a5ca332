//! From exec to the guest's first byte on its serial port.

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::median;

const ROUNDS: usize = 21;
/// Starts after an idle time in which no guest has run and none was sampled.
const RESTED_ROUNDS: usize = 7;
/// That time: after a second, the host's kernel tears down its set-up for the first user of perf events.
const REST: Duration = Duration::from_millis(1500);

/// The baseline, and the same with `--sandbox off`.
const NO_DEVICES: &str = "no devices";
const NO_SANDBOX: &str = "without a sandbox";
/// Limit for the sandbox's addition to a start, in ms.
const SANDBOX_LIMIT_MS: f64 = 1.0;

/// A guest with some devices, and the times of its starts.
struct Case {
    name: &'static str,
    arguments: Vec<String>,
    starts: Vec<f64>,
}

/// Measures and prints, beside a program that does nothing.
pub fn print() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("Cannot make a folder for the guest's image")?;
    let image = folder.path().join("test.elf");
    std::fs::write(&image, kvmprof_test_guest::ELF).context("Cannot write the guest's image")?;
    let network = folder.path().join("network");
    let _peer = UnixListener::bind(&network).context("Cannot make a socket")?;
    let mut cases = cases(folder.path(), &network)?;
    let mut nothings = Vec::new();
    for _ in 0..ROUNDS {
        for case in &mut cases {
            let start = first_byte_ms(&mut guest(&image, &case.arguments))?;
            case.starts.push(start);
        }
        nothings.push(whole_run_ms(&mut Command::new("/bin/true"))?);
    }
    let mut rested = Vec::new();
    for _ in 0..RESTED_ROUNDS {
        thread::sleep(REST);
        rested.push(first_byte_ms(&mut guest(&image, &[]))?);
    }
    println!(
        "start-up, exec to the guest's first serial byte (/bin/true from exec to exit: {:.1} ms):",
        median(&nothings)
    );
    for case in &cases {
        println!("  {:<22} {:.1} ms", case.name, median(&case.starts));
    }
    println!("  {:<22} {:.1} ms", "after a rest", median(&rested));
    check_sandbox(&cases)
}

/// Fails if the sandbox adds more than [`SANDBOX_LIMIT_MS`] to a start, by the median of all rounds; on a busy machine, run it again.
fn check_sandbox(cases: &[Case]) -> anyhow::Result<()> {
    let starts = |name: &str| {
        let case = cases.iter().find(|case| case.name == name);
        case.map_or(&[] as &[f64], |case| case.starts.as_slice())
    };
    let pairs = starts(NO_DEVICES).iter().zip(starts(NO_SANDBOX));
    let added: Vec<f64> = pairs.map(|(with, without)| with - without).collect();
    let added = median(&added);
    println!("  the sandbox adds       {added:.2} ms");
    ensure!(
        added < SANDBOX_LIMIT_MS,
        "The sandbox adds {added:.2} ms to a start, and may add {SANDBOX_LIMIT_MS} ms"
    );
    Ok(())
}

fn cases(folder: &Path, network: &Path) -> anyhow::Result<Vec<Case>> {
    let raw = folder.join("disk");
    let disk = std::fs::File::create(&raw).context("Cannot make a disk")?;
    disk.set_len(16 << 20).context("Cannot make a disk")?;
    let qcow2 = folder.join("disk.qcow2");
    let mut make = Command::new("qemu-img");
    make.args(["create", "-q", "-f", "qcow2"]);
    let has_qcow2 = make.arg(&qcow2).arg("16M").status();
    let raw = ["--disk".to_owned(), raw.display().to_string()];
    let network = ["--net".to_owned(), format!("socket={}", network.display())];
    let mut cases = vec![
        (NO_DEVICES, Vec::new()),
        (NO_SANDBOX, vec!["--sandbox=off".to_owned()]),
        ("--disk, raw", raw.to_vec()),
        ("--net socket=", network.to_vec()),
        ("--disk and --net", [raw, network].concat()),
    ];
    if has_qcow2.is_ok_and(|status| status.success()) {
        let disk = format!("{},format=qcow2", qcow2.display());
        cases.push(("--disk, qcow2", vec!["--disk".to_owned(), disk]));
    } else {
        println!("without qemu-img there is no qcow2 image to start with");
    }
    let cases = cases.into_iter().map(|(name, arguments)| Case {
        name,
        arguments,
        starts: Vec::new(),
    });
    Ok(cases.collect())
}

fn guest(image: &Path, arguments: &[String]) -> Command {
    let mut guest = Command::new(env!("CARGO_BIN_EXE_kvmprof"));
    guest.arg("run").arg("--kernel").arg(image).args([
        "--memory",
        "64M",
        "--cmdline",
        "workload=poweroff",
    ]);
    guest.args(arguments);
    guest
}

fn first_byte_ms(command: &mut Command) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("Cannot run kvmprof")?;
    let mut stdout = child.stdout.take().context("kvmprof has no output")?;
    let read = stdout.read(&mut [0])?;
    let elapsed = start.elapsed();
    std::io::copy(&mut stdout, &mut std::io::sink())?;
    let status = child.wait()?;
    ensure!(read == 1 && status.success(), "The guest said nothing");
    Ok(milliseconds(elapsed))
}

fn whole_run_ms(command: &mut Command) -> anyhow::Result<f64> {
    let start = Instant::now();
    command.status().context("Cannot run /bin/true")?;
    Ok(milliseconds(start.elapsed()))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
