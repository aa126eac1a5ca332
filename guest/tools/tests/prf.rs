//! Tests of prf's tools with the real device model.

use std::fs;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use clap::{Args, FromArgMatches};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{ALL_VCPUS, MAX_ADDRESSES};
use kvmprof_cli::command_line::{Command, Console};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_devices::profiling::Prf;
use kvmprof_recording::{Mode, Sample, Ticks};
use kvmprof_tools::device::{self, DeviceError, DeviceKind};
use kvmprof_tools::prf::{
    Log, LogEnd, LogError, PrfError, PrfprArguments, Profiler, record_periodically, set_and_show,
    snap,
};

const TABLE: [u64; 3] = [0, 0x1000, 0x2000];

/// The device model behind a lock, as in a server.
struct Device {
    prf: Mutex<Prf>,
    read: Condvar,
    reads: Mutex<usize>,
}

impl Device {
    fn new(most: usize) -> Self {
        let mut prf = Prf::new(1, most);
        prf.set_hz(100);
        Self {
            prf: Mutex::new(prf),
            read: Condvar::new(),
            reads: Mutex::new(0),
        }
    }

    fn loaded() -> Self {
        let device = Self::new(MAX_ADDRESSES);
        Profiler::new(&device).load(&TABLE).unwrap();
        device
    }

    fn lock(&self) -> MutexGuard<'_, Prf> {
        self.prf.lock().unwrap()
    }

    /// Waits for `times` further reads.
    fn until_read(&self, times: usize) {
        let reads = self.reads.lock().unwrap();
        let enough = *reads + times;
        let reached = self.read.wait_while(reads, |reads| *reads < enough);
        drop(reached.unwrap());
    }

    /// Feeds `count` ticks in the kernel at `pc`.
    fn feed(&self, pc: u64, count: usize) {
        for _ in 0..count {
            let sample = Sample {
                mode: Mode::Kernel,
                pc,
                ..Sample::default()
            };
            self.lock().feed(&Ticks {
                sample: Some(sample),
                ..Ticks::default()
            });
        }
    }
}

fn refused(errno: Errno) -> DeviceError {
    DeviceError::Refused {
        device: DeviceKind::Prf,
        errno,
    }
}

impl device::Device for Device {
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = Vec::new();
        let read = self.lock().read(ALL_VCPUS, limit, &mut bytes);
        *self.reads.lock().unwrap() += 1;
        self.read.notify_all();
        read.map(|_| bytes).map_err(refused)
    }

    fn write(&self, data: &[u8]) -> Result<usize, DeviceError> {
        self.lock().write(ALL_VCPUS, data).map_err(refused)
    }

    fn ioctl(
        &self,
        command: u32,
        argument: i64,
        _: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), DeviceError> {
        let reply = self.lock().ioctl(ALL_VCPUS, command, argument);
        let reply = reply.map_err(refused)?;
        assert!(reply.data.len() <= limit);
        Ok((reply.value, reply.data))
    }
}

fn stat(device: &Device, wanted: Option<bool>) -> (String, Result<(), PrfError>) {
    let mut output = Vec::new();
    let result = set_and_show(&Profiler::new(device), wanted, &mut output);
    (String::from_utf8(output).unwrap(), result)
}

/// The sums of all counters of each record in a log.
fn sums(path: &Path) -> Vec<u64> {
    let mut log = Log::open(path).unwrap();
    assert_eq!(log.addresses(), TABLE);
    let mut sums = Vec::new();
    while let Some(record) = log.next_record().unwrap() {
        sums.push(record.counters.iter().sum());
    }
    assert!(!log.is_cut_off());
    sums
}

#[test]
fn every_errno_of_a_write_has_its_own_message() {
    let device = Device::new(4);
    let profiler = Profiler::new(&device);
    let refused = |table: &[u64], expected: &str| {
        let message = profiler.load(table).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    refused(&[0, 1, 2, 3, 4], "has 5, and this prf takes 4");
    refused(&vec![0; MAX_ADDRESSES + 1], "ENOSPC");
    refused(&[0, 1], "has 2, and prf wants 3");
    refused(&[0, 2, 1], "don't ascend");
    profiler.load(&TABLE).unwrap();
    profiler.turn_on().unwrap();
    refused(&TABLE, "prfstat off");
}

#[test]
fn tables_that_fill_the_memory_have_a_message_of_their_own() {
    struct FullOutput;
    impl device::Device for FullOutput {
        fn read(&self, _: usize) -> Result<Vec<u8>, DeviceError> {
            Err(refused(Errno::ENXIO))
        }
        fn write(&self, _: &[u8]) -> Result<usize, DeviceError> {
            Err(refused(Errno::ENOSPC))
        }
        fn ioctl(&self, _: u32, _: i64, _: &[u8], _: usize) -> Result<(i64, Vec<u8>), DeviceError> {
            Ok((0, 3_u32.to_le_bytes().to_vec()))
        }
    }
    let error = Profiler::new(&FullOutput).load(&TABLE).unwrap_err();
    assert!(matches!(error, PrfError::NoRoom { addresses: 3 }));
}

#[test]
fn prfstat_prints_the_new_state() {
    let device = Device::new(MAX_ADDRESSES);
    let (text, result) = stat(&device, Some(true));
    assert_eq!(text, "profiling disabled\n");
    assert!(matches!(result, Err(PrfError::NotLoaded)));
    Profiler::new(&device).load(&TABLE).unwrap();
    for (wanted, state) in [
        (None, "disabled"),
        (Some(true), "enabled"),
        (None, "enabled"),
        (Some(false), "disabled"),
    ] {
        let (text, result) = stat(&device, wanted);
        let expected = format!("profiling {state}\n3 kernel text addresses\n");
        assert_eq!((text, result.is_ok()), (expected, true));
    }
}

#[test]
fn a_clock_that_does_not_fit_gives_an_error() {
    let device = Device::loaded();
    device.lock().set_hz(150);
    assert!(matches!(stat(&device, Some(true)).1, Err(PrfError::Rate)));
}

#[test]
fn prfsnap_turns_on_and_appends() {
    let device = Device::loaded();
    let profiler = Profiler::new(&device);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    for pc in [0x1000, 0x2fff] {
        assert_eq!(snap(&profiler, &path).unwrap(), LogEnd::Cleanly);
        device.feed(pc, 7);
    }
    assert_eq!(snap(&profiler, &path).unwrap(), LogEnd::Cleanly);
    assert_eq!(sums(&path), [0, 7, 14]);
    assert_eq!(profiler.state().unwrap(), (true, true));
}

#[test]
fn without_a_table_no_file_is_made() {
    let device = Device::new(MAX_ADDRESSES);
    let profiler = Profiler::new(&device);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let error = snap(&profiler, &path).unwrap_err();
    assert!(matches!(error, PrfError::NotLoaded));
    let interrupt = Interrupt::default();
    let over = |_| false;
    let error = record_periodically(&profiler, &path, Duration::ZERO, &interrupt, &over);
    assert!(matches!(error, Err(PrfError::NotLoaded)));
    assert!(!path.exists());
}

#[test]
fn prfdc_records_until_it_is_interrupted() {
    let device = Device::loaded();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let interrupt = Interrupt::default();
    let stopper = interrupt.stopper();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            device.until_read(1);
            device.feed(0x1000, 5);
            // The first of these reads may have begun before the ticks.
            device.until_read(2);
            stopper.stop();
        });
        let (profiler, period) = (Profiler::new(&device), Duration::from_millis(1));
        record_periodically(&profiler, &path, period, &interrupt, &|_| false).unwrap();
    });
    let sums = sums(&path);
    assert!(sums.len() >= 3 && sums.is_sorted(), "{sums:?}");
    assert_eq!((sums[0], sums.last()), (0, Some(&5)));
    // prfdc leaves profiling on.
    assert!(device.lock().is_on(ALL_VCPUS));
}

#[test]
fn prfdc_ends_with_a_record_and_needs_a_new_file() {
    let device = Device::loaded();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let record = |path: &Path| {
        let over = |time: i64| time > 0;
        let (profiler, interrupt) = (Profiler::new(&device), Interrupt::default());
        record_periodically(&profiler, path, Duration::MAX, &interrupt, &over)
    };
    record(&path).unwrap();
    assert_eq!(sums(&path), [0]);
    let before = fs::read(&path).unwrap();
    let again = record(&path);
    assert!(matches!(again, Err(PrfError::Log(LogError::Exists { .. }))));
    assert_eq!(fs::read(&path).unwrap(), before);
}

/// The author of a namelist chooses the names in it.
#[test]
fn hostile_names_do_nothing_to_the_terminal() {
    let device = Device::loaded();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    snap(&Profiler::new(&device), Path::new(&path("log"))).unwrap();
    device.feed(TABLE[1], 3);
    device.feed(TABLE[2], 1);
    snap(&Profiler::new(&device), Path::new(&path("log"))).unwrap();
    let names = "0000000000001000 T one\x1b[2J\u{9b}\u{202e}\n0000000000002000 T two\u{200b}\x07\n";
    fs::write(path("System.map"), names).unwrap();
    let program = PrfprArguments::augment_args(clap::Command::new("prfpr"));
    let words = ["prfpr", &path("log"), "0", &path("System.map")];
    let matches = program.clone().try_get_matches_from(words).unwrap();
    let prfpr = PrfprArguments::from_arg_matches(&matches).unwrap();
    let (mut output, mut messages) = (Vec::new(), Vec::new());
    let mut console = Console::new("prfpr", &program, &mut output, &mut messages);
    prfpr.execute(&mut console).unwrap();
    assert_eq!(String::from_utf8_lossy(&messages), "");
    let output = String::from_utf8(output).unwrap();
    let one = "one\u{fffd}[2J\u{fffd}\u{fffd}  75.00";
    let two = "two\u{fffd}\u{fffd}      25.00";
    assert!(output.lines().skip(3).eq([one, two]));
}
