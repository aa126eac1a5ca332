//! From exec to the guest's first byte on its serial port.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::median;

const ROUNDS: usize = 21;

/// Measures and prints, beside a program that does nothing.
pub fn print() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("Cannot make a folder for the guest's image")?;
    let image = folder.path().join("test.elf");
    std::fs::write(&image, kvmprof_test_guest::ELF).context("Cannot write the guest's image")?;
    let (mut starts, mut nothings) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut guest = Command::new(env!("CARGO_BIN_EXE_kvmprof"));
        guest.arg("run").arg("--kernel").arg(&image).args([
            "--memory",
            "64M",
            "--cmdline",
            "workload=poweroff",
        ]);
        starts.push(first_byte_ms(&mut guest)?);
        nothings.push(whole_run_ms(&mut Command::new("/bin/true"))?);
    }
    println!(
        "start-up, exec to the guest's first serial byte: {:.1} ms (/bin/true from exec to exit: {:.1} ms)",
        median(&starts),
        median(&nothings)
    );
    Ok(())
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
