//! A VMM that obeys a test, in a separate process: this test program, started again.
//!
//! Its guest is one vCPU in the kernel of a synthetic Linux guest, in an endless loop.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, stdin};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::os::unix::thread::JoinHandleExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VmFd};
use kvmprof_introspection_fixtures::kernel::{HOT, offsets};
use kvmprof_introspection_fixtures::linux_guest::{IMAGE, LinuxGuest, MEMORY, TASKS};
use kvmprof_tests::registers_in_long_mode;
use vm_memory::{Bytes, GuestAddress};

use super::memory::Memory;
use super::vcpu_thread::{
    ERRORS, Order, SIGNALS, WORK_BEGINS, WORKED, count_signal, duplicate, run,
};

/// Set in the VMM's process.
const IS_VMM: &str = "KVMPROF_TEST_VMM";
/// The prefix of lines for the test.
const MARK: &str = "says: ";
/// Bytes of the guest's tasks and of its CPUs' data, which can be in another file.
pub const REPLACED: u64 = IMAGE - TASKS;
/// A jump to itself.
const LOOP: [u8; 2] = [0xeb, 0xfe];

/// Reports of another process to the test.
pub type Answers = Box<dyn Iterator<Item = String>>;

/// The reports of `child`, which is this program, started again.
pub fn answers_of(child: &mut Child) -> Answers {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Box::new(lines.map_while(Result::ok).filter_map(|line| {
        let (_, answer) = line.split_once(MARK)?;
        Some(answer.to_owned())
    }))
}

/// The VMM as the test sees it, which is killed when this is dropped.
pub struct Vmm {
    child: Child,
    input: ChildStdin,
    answers: Answers,
}

impl Vmm {
    /// Starts it, and waits until its vCPU runs.
    pub fn start() -> Self {
        Self::start_as(&env::current_exe().unwrap(), "guest")
    }

    /// Starts it as `program`, a copy of this one, with `name` for its guest.
    pub fn start_as(program: &Path, name: impl AsRef<OsStr>) -> Self {
        let mut child = Command::new(program)
            .args([
                "--nocapture",
                "--exact",
                "attach_hostile::the_vmm",
                "--",
                "-name",
            ])
            .arg(name)
            .env(IS_VMM, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut vmm = Self {
            input: child.stdin.take().unwrap(),
            answers: answers_of(&mut child),
            child,
        };
        assert_eq!(vmm.answers.next().as_deref(), Some("ready"));
        vmm
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it execute an order, and waits for its completion.
    pub fn tell(&mut self, command: &str) {
        self.begin(command);
        assert_eq!(self.answers.next().as_deref(), Some("done"), "{command}");
    }

    /// Has it execute an order without an end.
    pub fn begin(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// The folders in `/proc` of its threads.
    fn tasks(&self) -> impl Iterator<Item = PathBuf> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks.flatten().map(|task| task.path())
    }

    /// Whether any of its threads is traced.
    pub fn is_traced(&self) -> bool {
        self.tasks().any(|task| {
            let status = fs::read_to_string(task.join("status"));
            status.is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
        })
    }

    /// The run time of its vCPU's thread, in ns.
    pub fn vcpu_time(&self) -> u64 {
        let mut times = self.tasks().filter_map(|task| {
            let name = fs::read_to_string(task.join("comm")).ok()?;
            let times = fs::read_to_string(task.join("schedstat")).ok()?;
            let run: u64 = times.split(' ').next()?.parse().ok()?;
            (name.trim_end() == "vcpu 0").then_some(run)
        });
        times.next().unwrap()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        // It may have ended, and been waited for, already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The main function of the VMM's process; does nothing in any other one.
pub fn be_vmm() {
    if env::var_os(IS_VMM).is_none() {
        return;
    }
    // In a shared memory file, so that the file can be truncated under the guest.
    let memory = Memory::new(MEMORY);
    memory.write(0, &image());
    let mut host = Host::new(memory);
    say("ready");
    for line in stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        host.obey(&words);
        say("done");
    }
}

/// Reports this to the test.
pub fn say(word: &str) {
    println!("\n{MARK}{word}");
}

/// The synthetic guest's memory, with a loop where its vCPU is.
fn image() -> Vec<u8> {
    let guest = LinuxGuest::new(HOT);
    guest.write(IMAGE + offsets::FRAMED, &LOOP);
    let mut bytes = vec![0; MEMORY];
    guest
        .memory
        .read_slice(&mut bytes, GuestAddress(0))
        .unwrap();
    bytes
}

struct Host {
    vm: Option<VmFd>,
    memory: Memory,
    orders: Sender<(Order, Sender<()>)>,
    thread: JoinHandle<()>,
    copies: Vec<File>,
    opened: Option<File>,
    jiffies: Arc<Mutex<Option<u64>>>,
}

impl Host {
    fn new(memory: Memory) -> Self {
        catch_signal();
        let vm = Kvm::new().unwrap().create_vm().unwrap();
        set_slot(&vm, 0, 0, memory.address, memory.length as u64);
        let vcpu = vm.create_vcpu(0).unwrap();
        let registers = registers_in_long_mode(&vcpu, &LinuxGuest::new(HOT).kernel(0));
        let (orders, received) = channel();
        let thread = thread::Builder::new().name("vcpu 0".into());
        let thread = thread.spawn(move || run(vcpu, &received)).unwrap();
        let host = Self {
            vm: Some(vm),
            memory,
            orders,
            thread,
            copies: Vec::new(),
            opened: None,
            jiffies: Arc::new(Mutex::new(Some(1000))),
        };
        host.order(Order::Registers(Box::new(registers)));
        host.keep_time();
        host
    }

    /// Advances the guest's clock, as its timer would.
    fn keep_time(&self) {
        let jiffies = Arc::clone(&self.jiffies);
        let file = self.memory.file.try_clone().unwrap();
        thread::spawn(move || {
            loop {
                if let Some(now) = jiffies.lock().unwrap().as_mut() {
                    *now += 1;
                    let at = IMAGE + offsets::JIFFIES;
                    file.write_all_at(&now.to_le_bytes(), at).unwrap();
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
    }

    fn order(&self, order: Order) {
        let (done, answer) = channel();
        self.orders.send((order, done)).unwrap();
        while answer.recv_timeout(Duration::from_millis(10)).is_err() {
            if self.thread.is_finished() {
                break;
            }
            // SAFETY: the thread is joined by nobody, so that its id is valid; the signal has a handler.
            unsafe { libc::pthread_kill(self.thread.as_pthread_t(), libc::SIGUSR1) };
        }
    }

    fn obey(&mut self, words: &[&str]) {
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        match words[0] {
            "reset" => self.reset(),
            "boot" => self.boot(),
            "boot-other" => self.boot_other(),
            "exec" => panic!("{}", Command::new(words[1]).arg(words[2]).exec()),
            "move-slots" => self.move_slots(number(1)),
            "many-slots" => self.make_slots(number(1)),
            "protect" => self.memory.protect(libc::PROT_NONE),
            "unmap" => self.memory.unmap(),
            "cut" => {
                // Advancing the clock would make the file longer again.
                *self.jiffies.lock().unwrap() = None;
                self.memory.file.set_len(number(1)).unwrap();
            }
            "open" => self.opened = Some(File::open(words[1]).unwrap()),
            "map-opened" => {
                let length = REPLACED.try_into().unwrap();
                let opened = self.opened.as_ref().unwrap();
                self.memory.replace(TASKS, length, opened);
            }
            "alias" => self.alias(),
            "copy" => self.copy(number(1)),
            "work" => self.work(number(1)),
            "hide" => self.order(Order::Hide),
            "show" => self.order(Order::Show),
            "add-vcpu" => drop(self.vm.as_ref().unwrap().create_vcpu(1).unwrap()),
            "starve" => self.order(Order::Starve),
            "close" => self.order(Order::Close),
            "end-thread" => self.order(Order::End),
            "close-vm" => drop(self.vm.take()),
            other => panic!("{other}"),
        }
    }

    /// The vCPU is reset, as by a keyboard controller; memory keeps its contents.
    fn reset(&self) {
        *self.jiffies.lock().unwrap() = None;
        let vm = Kvm::new().unwrap().create_vm().unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        let reset = (vcpu.get_regs().unwrap(), vcpu.get_sregs().unwrap());
        self.order(Order::Registers(Box::new(reset)));
    }

    /// The kernel starts again at its place, with a clock that has begun anew.
    fn boot(&self) {
        const BEGIN: u64 = 100;
        self.memory
            .write(IMAGE + offsets::JIFFIES, &BEGIN.to_le_bytes());
        *self.jiffies.lock().unwrap() = Some(BEGIN);
        let vcpu = Kvm::new().unwrap().create_vm().unwrap();
        let vcpu = vcpu.create_vcpu(0).unwrap();
        let registers = registers_in_long_mode(&vcpu, &LinuxGuest::new(HOT).kernel(0));
        self.order(Order::Registers(Box::new(registers)));
    }

    /// The same of a kernel with another banner.
    fn boot_other(&self) {
        let image = image();
        let banner = b"#1 SMP";
        for (place, _) in image.windows(banner.len()).enumerate() {
            if image[place..].starts_with(banner) {
                self.memory.write(place as u64, b"#2 SMP");
            }
        }
        self.boot();
    }

    /// Has the vCPU's thread sleep and wait, first without signals, and then with consecutive ones, none of which may be lost.
    fn work(&self, rounds: u64) {
        self.order(Order::Work(rounds));
        WORK_BEGINS.store(true, Ordering::SeqCst);
        while WORKED.load(Ordering::SeqCst) < rounds {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ERRORS.load(Ordering::SeqCst), 0);
        let handler: extern "C" fn(i32) = count_signal;
        // SAFETY: the handler only calls what handlers may call.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        for round in 1..=rounds {
            // SAFETY: the thread is joined by nobody, so that its id is valid; the signal has a handler.
            unsafe { libc::pthread_kill(self.thread.as_pthread_t(), libc::SIGUSR2) };
            while SIGNALS.load(Ordering::SeqCst) < round {
                thread::sleep(Duration::from_micros(100));
            }
        }
        assert_eq!(SIGNALS.load(Ordering::SeqCst), rounds);
    }

    /// Removes all memory of the guest and restores it, and removes and adds other slots, this many times.
    fn move_slots(&self, times: u64) {
        let vm = self.vm.as_ref().unwrap();
        let (address, length) = (self.memory.address, self.memory.length as u64);
        for time in 0..times {
            let (slot, place) = (1 + (time % 7) as u32, 1 << 32);
            set_slot(vm, slot, place + time * 0x1000, address, 0x1000);
            set_slot(vm, 0, 0, address, 0);
            set_slot(vm, 0, 0, address, length);
            set_slot(vm, slot, 0, address, 0);
        }
    }

    /// This many additional slots, each of one page, far above the guest's memory.
    fn make_slots(&self, count: u64) {
        let vm = self.vm.as_ref().unwrap();
        for number in 0..count {
            let slot = u32::try_from(16 + number).unwrap();
            set_slot(
                vm,
                slot,
                (1 << 36) + number * 0x2000,
                self.memory.address,
                0x1000,
            );
        }
    }

    /// Slots over other parts of this process: its stack, and unmapped addresses.
    fn alias(&self) {
        let vm = self.vm.as_ref().unwrap();
        let own = std::ptr::from_ref(self) as u64 & !0xfff;
        set_slot(vm, 8, 2 << 32, own, 0x1000);
        set_slot(vm, 9, 3 << 32, 0x1000, 1 << 30);
        set_slot(vm, 10, 4 << 32, 0x7000_0000_0000, 1 << 40);
    }

    /// This many additional descriptors of the guest.
    fn copy(&mut self, count: u64) {
        let vm = self.vm.as_ref().unwrap();
        for _ in 0..count {
            self.copies.push(duplicate(vm));
        }
    }
}

fn set_slot(vm: &VmFd, slot: u32, guest: u64, host: u64, bytes: u64) {
    let region = kvm_userspace_memory_region {
        slot,
        flags: 0,
        guest_phys_addr: guest,
        memory_size: bytes,
        userspace_addr: host,
    };
    // SAFETY: the guest writes to no memory.
    unsafe { vm.set_user_memory_region(region).unwrap() };
}

/// A signal for the vCPU's thread only has to end its system call.
fn catch_signal() {
    extern "C" fn nothing(_: i32) {}
    let handler: extern "C" fn(i32) = nothing;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
}
