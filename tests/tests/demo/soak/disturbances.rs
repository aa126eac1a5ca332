//! Disturbances of a guest that continues.

use std::cell::Cell;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use kvmprof_abi::pcs::{PCS_SETBSIZE, PROF_ALL};
use kvmprof_client::Connection;
use kvmprof_recording::file::Recording;
use kvmprof_tests::{Accounts, Boot, Guest, Pcs, recorded, until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use super::Soak;
use super::cgroup::Cgroup;
use crate::kills;

/// Threads that send signals at the same time: kvmprof has to handle 50,000 a second, and one thread alone sent 29,000. Whether these reach that
/// depends on the host, which runs the vCPUs beside them: the soak prints the rate, and asserts none.
const SENDERS: usize = 4;
/// Time between two readings of pcs.
const READING: Duration = Duration::from_millis(2);
/// Maximum random time, in ms.
const MOMENT: u64 = 200;

/// pcs, gathering everything.
fn gathering(soak: &Soak) -> Pcs {
    let pcs = soak.guest.open();
    pcs.ioctl(PCS_SETBSIZE, 65_536);
    pcs.ioctl(PROF_ALL, 0);
    pcs
}

/// Puts a process into a group, if that can be.
fn take(group: &Cgroup, pid: u32) -> bool {
    fs::write(group.processes(), pid.to_string()).is_ok()
}

/// Reads to the end, where records and accounts have to agree.
fn finish(soak: &Soak, pcs: Pcs) {
    pcs.stop();
    soak.guest.until_closed().check();
}

fn moment(soak: &mut Soak) -> Duration {
    Duration::from_millis(soak.random.below(MOMENT))
}

/// There is no reader until samples are lost; then all remaining data is read.
pub fn stalled_reader(soak: &mut Soak) -> Option<&'static str> {
    let pcs = gathering(soak);
    pcs.stall_until("samples are lost", |ledger| ledger.lost > 200);
    soak.accounts();
    finish(soak, pcs);
    None
}

/// Reads at intervals.
pub fn slow_reader(soak: &mut Soak) -> Option<&'static str> {
    let mut pcs = gathering(soak);
    for _ in 0..20 {
        sleep(moment(soak) / 10);
        pcs.read_available();
        soak.accounts();
    }
    finish(soak, pcs);
    None
}

/// Starts a command of kvmprof with the guest's socket and an output.
fn start(soak: &Soak, words: &[&str], output: &Path) -> Child {
    let mut command = kills::start(words, &soak.guest.socket());
    command.arg("--output").arg(output).spawn().unwrap()
}

/// getpc is killed at any moment.
pub fn killed_reader(soak: &mut Soak) -> Option<&'static str> {
    let output = soak.guest.folder().join("stream");
    let getpc = start(soak, &["getpc", "--all"], &output);
    sleep(moment(soak));
    kills::kill(getpc);
    soak.guest.until_closed().check();
    None
}

/// A recorder is killed when its file has data, which can be read up to there.
pub fn killed_recorder(soak: &mut Soak) -> Option<&'static str> {
    let output = soak.guest.folder().join("recording");
    let record = start(soak, &["record"], &output);
    kill_recorder(soak, record, &output, 1);
    None
}

/// Kills a recorder some time after its file has samples.
fn kill_recorder(soak: &mut Soak, record: Child, output: &Path, moments: u32) {
    until("a recording has samples", || {
        let read = Recording::open(output).ok()?.read(|_, _| ()).ok()?;
        (read.account.samples > 0).then_some(())
    });
    sleep(moment(soak) * moments);
    kills::kill(record);
    recorded(output);
    fs::remove_file(output).unwrap();
    without_recorders(soak);
}

/// Waits until kvmprof has noticed the end of a client.
fn without_recorders(soak: &Soak) {
    until("nobody records", || {
        let recorders = soak.guest.status().recorders().count();
        (recorders == 0).then_some(())
    });
}

/// Runs another program, such as mount(8).
fn run(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    let status = command
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// A recorder fills its file system, reports that, and fails.
pub fn full_disk(soak: &mut Soak) -> Option<&'static str> {
    let folder = soak.guest.folder().join("small");
    fs::create_dir_all(&folder).unwrap();
    let place = folder.to_str().unwrap();
    if !run("mount", &["-t", "tmpfs", "-o", "size=16k", "tmpfs", place]) {
        return Some("no file system can be mounted");
    }
    let output = folder.join("recording");
    let words = ["--seconds", "600", "--output", output.to_str().unwrap()];
    let ran = soak.guest.command("record", &words);
    let is_unmounted = run("umount", &[place]);
    ran.assert_refused(1, &["No space"]);
    assert!(is_unmounted, "{place} is still mounted");
    without_recorders(soak);
    None
}

/// kvmprof is stopped while a reader waits.
pub fn stop(soak: &mut Soak) -> Option<&'static str> {
    let mut pcs = gathering(soak);
    let before = pcs.status().ledger.ticks;
    soak.guest.signal(Signal::STOP);
    sleep(moment(soak));
    soak.guest.signal(Signal::CONT);
    pcs.read_until("the clock goes on", |ledger| ledger.ticks > before + 1000);
    soak.accounts();
    finish(soak, pcs);
    None
}

/// Signals without a request are sent continuously, to the process and as kicks to each vCPU's thread, as fast as several threads can send them.
pub fn signals(soak: &mut Soak) -> Option<&'static str> {
    let mut pcs = gathering(soak);
    let begin = Instant::now();
    let guest = &soak.guest;
    let sent: u32 = scope(|scope| {
        let senders = [(); SENDERS].map(|()| scope.spawn(move || send_signals(guest)));
        while !senders.iter().all(ScopedJoinHandle::is_finished) {
            pcs.read_available();
            sleep(READING);
        }
        senders.map(|sender| sender.join().unwrap()).iter().sum()
    });
    let rate = f64::from(sent) / begin.elapsed().as_secs_f64();
    soak.signal_rate = soak.signal_rate.min(rate);
    soak.accounts();
    finish(soak, pcs);
    None
}

/// Sends some thousand signals. Returns the number that the host's kernel has queued; equal ones of the process become one while they are pending.
fn send_signals(guest: &Guest) -> u32 {
    let kicked = KickedThreads::new(guest.pid());
    let mut sent = 0;
    for _ in 0..20 {
        for _ in 0..50 {
            for signal in [Signal::WINCH, Signal::URG, Signal::CONT] {
                guest.signal(signal);
                sent += 1;
            }
        }
        for _ in 0..250 {
            sent += u32::from(kicked.kick());
        }
    }
    sent
}

/// The threads of vCPUs, which are kicked in turn.
struct KickedThreads {
    process: libc::pid_t,
    threads: Vec<libc::pid_t>,
    next: Cell<usize>,
}

impl KickedThreads {
    fn new(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let threads = tasks.map(|task| task.unwrap()).filter(|task| {
            let name = fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.starts_with("vcpu "))
        });
        let threads = threads.map(|task| task.file_name().to_str().unwrap().parse().unwrap());
        Self {
            process: pid.try_into().unwrap(),
            threads: threads.collect(),
            next: Cell::new(0),
        }
    }

    /// Kicks the next one; false if the maximum number of signals is pending.
    fn kick(&self) -> bool {
        let next = self.next.get();
        self.next.set(next + 1);
        let thread = self.threads[next % self.threads.len()];
        let kick = libc::SIGRTMIN();
        // SAFETY: it sends a signal, to a process that takes it.
        unsafe { libc::syscall(libc::SYS_tgkill, self.process, thread, kick) == 0 }
    }
}

/// kvmprof gets no more descriptors while clients connect.
pub fn no_descriptors(soak: &mut Soak) -> Option<&'static str> {
    let mut pcs = gathering(soak);
    let process = Pid::from_raw(i32::try_from(soak.guest.pid()).unwrap());
    let open = fs::read_dir(format!("/proc/{}/fd", soak.guest.pid())).unwrap();
    let limits = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(open.count() as u64 + 2),
        ..limits
    };
    let usual = prlimit(process, Resource::Nofile, few).unwrap();
    // Clients that are accepted, and clients that would have to wait: they disconnect.
    let connect = |_| UnixStream::connect(soak.guest.socket()).unwrap();
    let others: Vec<_> = (0..16).map(connect).collect();
    pcs.read_available();
    soak.accounts();
    drop(others);
    prlimit(process, Resource::Nofile, usual).unwrap();
    until("clients are let in again", || {
        Connection::connect(&soak.guest.socket()).ok()
    });
    pcs.read_available();
    finish(soak, pcs);
    None
}

/// A recorder has little memory for its file's pages and for its own data.
pub fn little_memory(soak: &mut Soak) -> Option<&'static str> {
    let Some(group) = Cgroup::new(24 << 20) else {
        return Some("no cgroup can be made");
    };
    let output = soak.guest.folder().join("recording");
    let record = start(soak, &["record"], &output);
    if !take(&group, record.id()) {
        kills::kill(record);
        return Some("no process can be put into a cgroup");
    }
    kill_recorder(soak, record, &output, 4);
    drop(group);
    None
}

/// kvmprof itself has little memory beside a program that fills the page cache. Its guest's memory can't be reclaimed, all its other memory can,
/// and it continues.
pub fn little_memory_for_all(soak: &mut Soak) -> Option<&'static str> {
    let Some(group) = Cgroup::new(96 << 20) else {
        return Some("no cgroup can be made");
    };
    let folder = soak.guest.folder().join("pressure");
    fs::create_dir_all(&folder).unwrap();
    let recording = folder.join("recording");
    let options = ["--cpus", "2", "--hz", "1000", "--record"].map(Path::new);
    let options = options.into_iter().chain([recording.as_path()]);
    // Before it has its guest's memory.
    let mut guest = Guest::launch(Boot::Demo, options);
    if !take(&group, guest.pid()) {
        return Some("no process can be put into a cgroup");
    }
    let filled = folder.join("filled");
    let mut filler = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=128"])
        .arg(format!("of={}", filled.display()))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_inside = take(&group, filler.id());
    let connection = until("the guest's socket answers", || {
        assert!(!guest.has_ended(), "{}", guest.stderr());
        Connection::connect(&guest.socket()).ok()
    });
    filler.wait().unwrap();
    until("the guest is sampled under pressure", || {
        let accounts = Accounts::of(&connection);
        accounts.check();
        (accounts.clock.sampled > 1000).then_some(())
    });
    drop(connection);
    guest.stop();
    recorded(&recording);
    fs::remove_dir_all(&folder).unwrap();
    (!is_inside).then_some("no second process can be put into a cgroup")
}
