//! Tests of getpc with the real device model: its output is the device's.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{Format, PCS_SETFORMAT, PCS_SETHZ, PROF_ALL, PROF_LIST, kind};
use kvmprof_abi::stream::{StreamRecord, record_size};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_devices::profiling::Pcs;
use kvmprof_recording::{Mode, Sample, Ticks};
use kvmprof_tools::device::{self, DeviceError, DeviceKind};
use kvmprof_tools::getpc::{GetpcError, Plan, Summary, run};
use kvmprof_tools::pcstat::{Profile, read_profile};

/// The device model behind a lock, with blocking reads, as in a server.
struct Device {
    pcs: Mutex<Pcs>,
    changed: Condvar,
    /// The error of `PCS_SETHZ`, if another consumer runs.
    hz_error: Option<Errno>,
    /// Whether reads fail.
    gone: AtomicBool,
}

impl Device {
    fn open(vcpus: u16) -> Self {
        let mut pcs = Pcs::new(vcpus);
        pcs.open(100).unwrap();
        Self {
            pcs: Mutex::new(pcs),
            changed: Condvar::new(),
            hz_error: None,
            gone: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pcs> {
        self.pcs.lock().unwrap()
    }

    /// Waits until gathering has begun, then calls `change`.
    fn once_gathering(&self, change: impl FnOnce(&mut Pcs)) {
        let mut pcs = self
            .changed
            .wait_while(self.lock(), |pcs| !pcs.is_gathering())
            .unwrap();
        change(&mut pcs);
        drop(pcs);
        self.changed.notify_all();
    }

    /// Ends the virtual machine.
    fn end_machine(&self) {
        self.lock().stop();
        self.changed.notify_all();
    }
}

fn refused(errno: Errno) -> DeviceError {
    DeviceError::Refused {
        device: DeviceKind::Pcs,
        errno,
    }
}

impl device::Device for Device {
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError> {
        let mut pcs = self
            .changed
            .wait_while(self.lock(), |pcs| {
                !pcs.readable() && !self.gone.load(Ordering::Relaxed)
            })
            .unwrap();
        if self.gone.load(Ordering::Relaxed) {
            return Err(refused(Errno::EIO));
        }
        let mut bytes = Vec::new();
        // An odd limit, so that buffers and records come in pieces.
        pcs.read(limit.min(1001), &mut bytes).map_err(refused)?;
        Ok(bytes)
    }

    fn ioctl(
        &self,
        command: u32,
        argument: i64,
        data: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), DeviceError> {
        if let (PCS_SETHZ, Some(errno)) = (command, self.hz_error) {
            return Err(refused(errno));
        }
        let reply = self
            .lock()
            .ioctl(command, argument, data)
            .map_err(refused)?;
        assert!(reply.data.len() <= limit);
        self.changed.notify_all();
        Ok((reply.value, reply.data))
    }

    fn write(&self, _: &[u8]) -> Result<usize, DeviceError> {
        Err(refused(Errno::EBADF))
    }
}

fn sample(vcpu: u16, mode: Mode, pid: i32) -> Ticks {
    Ticks {
        vcpu,
        sample: Some(Sample {
            vcpu,
            mode,
            pid,
            pc: 0x1000,
            ..Sample::default()
        }),
        ..Ticks::default()
    }
}

fn feed(pcs: &mut Pcs) {
    for _ in 0..100 {
        pcs.feed(&sample(0, Mode::User, 70));
    }
    for _ in 0..30 {
        pcs.feed(&sample(1, Mode::Kernel, 71));
    }
    pcs.feed(&Ticks {
        idle: 250,
        stolen: 3,
        lost: 2,
        ..Ticks::default()
    });
}

fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

/// Runs `plan` on `device`, with ticks once gathering has begun, until `end`.
fn run_with(
    device: &Device,
    plan: &Plan,
    end: impl FnOnce(&Device) + Send,
) -> (Result<Summary, GetpcError>, Vec<u8>) {
    let mut output = Vec::new();
    let interrupt = Interrupt::default();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            device.once_gathering(feed);
            end(device);
        });
        let names = &mut || vec![(70, name("busy")), (9, name("elsewhere"))];
        run(device, plan, &mut output, interrupt, names)
    });
    (result, output)
}

/// Runs `plan` on `device` without names of processes.
fn run_without_names(
    device: &Device,
    plan: &Plan,
    output: &mut dyn Write,
    interrupt: Interrupt,
) -> Result<Summary, GetpcError> {
    run(device, plan, output, interrupt, &mut Vec::new)
}

fn records(format: Format, mut stream: &[u8]) -> Vec<StreamRecord> {
    let mut records = Vec::new();
    while !stream.is_empty() {
        let (record, size) = StreamRecord::decode(format, stream).unwrap();
        assert_eq!(record_size(format, stream[0]), Some(size));
        stream = &stream[size..];
        records.push(record);
    }
    records
}

fn report(stream: &[u8]) -> Profile {
    read_profile(&mut &*stream, "the stream", None).unwrap()
}

fn everything() -> Plan {
    Plan {
        all: true,
        ..Plan::default()
    }
}

#[test]
fn a_stream_starts_and_ends_as_documented() {
    let device = Device::open(2);
    let (result, stream) = run_with(&device, &everything(), Device::end_machine);
    let summary = result.unwrap();
    let records = records(Format::Native, &stream);
    assert!(matches!(records[0], StreamRecord::Start(_)));
    assert!(matches!(records[1], StreamRecord::Ioctl(call) if call.command == PROF_ALL));
    let is_stop = |record: &StreamRecord| matches!(record, StreamRecord::Stop(_));
    let stop = records.iter().position(is_stop).unwrap();
    let device_only = |record: &StreamRecord| matches!(record, StreamRecord::Device(_));
    assert!(records[2..stop].iter().all(device_only));
    assert!(matches!(records[stop + 1], StreamRecord::Pstat(_)));
    // The name of the sampled process, and no other one.
    assert!(
        matches!(&records[stop + 2..], [StreamRecord::Comm(comm)] if comm.pid == 70 && comm.comm == name("busy"))
    );
    let ledger = summary.ledger;
    assert!(ledger.balances());
    assert_eq!((summary.lost, ledger.ticks, ledger.pending), (2, 385, 0));
    assert_eq!((ledger.recorded, ledger.merged), (130, 250));
    assert_eq!((ledger.stolen, ledger.lost), (3, 2));
    let profile = report(&stream);
    assert_eq!(profile.problems, [] as [String; 0]);
    for (kind, count) in [(kind::USER, 100), (kind::KERNEL, 30), (kind::IDLE, 250)] {
        assert_eq!(profile.tally.count(kind), count, "{kind}");
    }
    assert_eq!(profile.processes[&70].user, 100);
    assert_eq!(profile.name(70), Some("busy"));
}

#[test]
fn a_process_that_ends_during_the_run_has_its_name() {
    let device = Device::open(2);
    let mut output = Vec::new();
    // Names are looked up at the start, with the first samples, with those of the process, and at the end.
    let mut looks = 0;
    let mut names = || {
        looks += 1;
        match looks {
            3 => vec![(71, name("short-lived"))],
            _ => Vec::new(),
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            device.once_gathering(feed);
            device.end_machine();
        });
        let interrupt = Interrupt::default();
        run(&device, &everything(), &mut output, interrupt, &mut names).unwrap();
    });
    let profile = report(&output);
    assert_eq!(profile.name(71), Some("short-lived"));
    assert_eq!((profile.name(70), looks), (None, 4));
}

#[test]
fn a_blocked_read_does_not_keep_a_run_from_ending() {
    let device = Device::open(1);
    let mut output = Vec::new();
    let interrupt = Interrupt::default();
    let stopper = interrupt.stopper();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| device.once_gathering(|_| stopper.stop()));
        run_without_names(&device, &everything(), &mut output, interrupt)
    });
    assert_eq!(result.unwrap().ledger.ticks, 0);
    assert_eq!(report(&output).problems, [] as [String; 0]);
}

#[test]
fn a_run_ends_when_its_time_is_up() {
    let device = Device::open(1);
    let plan = Plan {
        duration: Some(std::time::Duration::from_nanos(1)),
        ..everything()
    };
    let mut output = Vec::new();
    let result = run_without_names(&device, &plan, &mut output, Interrupt::default());
    assert!(result.is_ok());
    assert!(!device.lock().wants_ticks(), "the device was stopped");
}

#[test]
fn classic_streams_have_no_trailer_and_no_loss() {
    let device = Device::open(2);
    let plan = Plan {
        format: Format::Classic,
        pids: vec![70],
        ..Plan::default()
    };
    let (result, stream) = run_with(&device, &plan, Device::end_machine);
    assert_eq!(result.unwrap().lost, 2);
    let records = records(Format::Classic, &stream);
    let commands = records.iter().filter_map(|record| match record {
        StreamRecord::Ioctl(call) => Some(call.command),
        _ => None,
    });
    assert!(commands.eq([PCS_SETFORMAT, PROF_LIST]));
    assert!(matches!(records.last(), Some(StreamRecord::Stop(_))));
    let profile = report(&stream);
    assert_eq!((profile.format, profile.pstat), (Format::Classic, None));
    assert_eq!(profile.tally.count(kind::USER), 100);
    assert_eq!(profile.tally.count(kind::MKERNEL), 30);
    assert_eq!(profile.problems, [] as [String; 0]);
}

#[test]
fn a_failed_setup_writes_nothing_and_names_the_cause() {
    let mut device = Device::open(1);
    device.hz_error = Some(Errno::EBUSY);
    let plan = Plan {
        hz: Some(1000),
        ..everything()
    };
    let mut output = Vec::new();
    let result = run_without_names(&device, &plan, &mut output, Interrupt::default());
    let message = result.unwrap_err().to_string();
    let cause = "another consumer runs on the same clock, or an event makes the ticks (EBUSY)";
    assert_eq!(message, format!("Cannot set the clock to 1000 Hz: {cause}"));
    assert!(output.is_empty());
}

#[test]
fn a_lost_device_is_marked_in_the_stream() {
    let device = Device::open(2);
    let (result, stream) = run_with(&device, &everything(), |device| {
        let pcs = device.lock();
        device.gone.store(true, Ordering::Relaxed);
        drop(pcs);
        device.changed.notify_all();
    });
    let error = result.unwrap_err().to_string();
    assert_eq!(
        error,
        "Cannot read samples; the stream ends before its time"
    );
    let profile = report(&stream);
    assert!(profile.stop.is_some() && profile.pstat.is_none());
    assert!(profile.problems[0].starts_with("No PSTAT record"));
}

/// An output that fails after this many bytes.
struct FullOutput(usize);

impl Write for FullOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_run() {
    let device = Device::open(2);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| device.once_gathering(feed));
        let output = &mut FullOutput(500);
        run_without_names(&device, &everything(), output, Interrupt::default())
    });
    assert!(matches!(result, Err(GetpcError::Write(_))), "{result:?}");
}
