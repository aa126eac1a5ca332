//! `cargo lab linux`: the main job on real input, on any machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use kvmprof_lab::{InitramfsBuilder, Kernel, Lab};

/// Booting both machines takes some 10 s; much more is a fault.
const BOOT_LIMIT: Duration = Duration::from_secs(90);

/// First process of the profiled guest: the workload, then its own `ps` less
/// the kernel's threads.
const GUEST_INIT: &str = "\
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
busy_loop &
part_time &
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
sleep 100000 &
usleep 300000
echo processes:
ps -o pid,ppid,comm | awk '$2 != 2'
echo workload running
while :; do sleep 100000; done
";

/// Busy all the time, in user mode.
const BUSY_LOOP: &str = "#!/bin/sh\nwhile :; do :; done\n";

/// Busy for a while, then asleep for a while.
const PART_TIME: &str = "\
#!/bin/sh
while :; do
    count=0
    while [ $count -lt 3000 ]; do count=$((count + 1)); done
    sleep 0.1
done
";

/// What runs in the lab: the guest under kvmprof, and a client beside it.
/// Arguments: virtual CPUs of the guest, seconds.
const LAB_SCRIPT: &str = r#"
cpus=$1 seconds=$2 console=/tmp/console log=/tmp/kvmprof.log
kvmprof run --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus "$cpus" --jitter \
    --cmdline 'console=ttyS0 quiet panic=-1' --socket /run/kvmprof.sock \
    --console "file:$console" >$log 2>&1 &
machine=$!
until grep -q '^workload running' $console 2>/dev/null; do
    if [ ! -e /proc/$machine/exe ]; then
        wait $machine
        echo "kvmprof ended with status $? before its guest was up:" >&2
        tail -n 40 $console $log >&2
        exit 1
    fi
    usleep 50000
done
echo "$(uname -r) runs kvmprof, which runs a guest whose own ps says:"
sed -n '/^processes:/,/^workload running/p' $console | tr -d '\r' | sed '1d;$d'
echo
kvmprof getpc --socket /run/kvmprof.sock --all "$seconds" >/tmp/samples || { cat $log >&2; exit 1; }
kvmprof pcstat </tmp/samples
status=$?
kill $machine
wait $machine
exit $status
"#;

/// Profile a real Debian kernel in the lab.
#[derive(Debug, Args)]
pub(crate) struct LinuxArguments {
    /// Kernel to be profiled, a vmlinuz [default: Debian's 6.12 cloud kernel]
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// For how long, in the lab's own time
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Virtual CPUs of the profiled guest
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// The kvmprof program, statically linked [default: built from this source]
    #[arg(long, value_name = "PATH")]
    kvmprof: Option<PathBuf>,
}

impl LinuxArguments {
    /// Profiles; the result is the exit status.
    pub(crate) fn run(self) -> Result<u8> {
        let kernel = match &self.kernel {
            Some(image) => Kernel::from_image(image)?,
            None => kvmprof_lab::kernels()?
                .pop()
                .context("There is no Debian kernel to profile")?,
        };
        let kvmprof = match self.kvmprof {
            Some(path) => path,
            None => kvmprof_lab::build_program("kvmprof")?,
        };
        eprintln!(
            "lab: profiling Linux {} for {} s",
            kernel.version, self.seconds
        );
        let guest = InitramfsBuilder::new()
            .init(GUEST_INIT)
            .contents("/bin/busy_loop", 0o755, BUSY_LOOP)
            .contents("/bin/part_time", 0o755, PART_TIME)
            .build()?;
        let (cpus, seconds) = (self.cpus.to_string(), self.seconds.to_string());
        let outcome = Lab::new()
            .add(kvmprof, "/lab/kvmprof")
            .add(kernel.image, "/lab/vmlinuz")
            .contents("/lab/guest.cpio", 0o644, guest)
            .command(["sh", "-c", LAB_SCRIPT, "sh", &cpus, &seconds])
            .forward_output()
            // Lab time may pass more slowly than this host's.
            .timeout(BOOT_LIMIT + 4 * Duration::from_secs(self.seconds))
            .run()?;
        Ok(outcome.status)
    }
}
