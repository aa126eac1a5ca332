//! The VMM: this program, started again, or several of them.

use std::env;
use std::io::{Read, Write, stdin, stdout};
use std::process::{self, Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuFd};
use kvmprof_tests::linux::{RunningGuest, debian, kernel_knowledge, unpacked};
use kvmprof_tests::registers_in_long_mode;
use rustix::time::{ClockId, clock_gettime};
use vm_memory::{GuestAddress, GuestMemoryBackend};

/// In the process that is the VMM: the kernel's series, the guest's memory in GiB, and the number of VMMs.
const IS_VMM: &str = "KVMPROF_BENCH_VMM";
/// The offset by KASLR.
pub const SLIDE: u64 = 0x1a00_0000;
/// The vCPU's address.
pub const FUNCTION: &str = "vfs_read";
/// A jump to itself.
const LOOP: [u8; 2] = [0xeb, 0xfe];
/// One with an exit after each round: `mov ecx, 4000`; `dec ecx`; `jnz`; `out 0x80, al`; `jmp` to the start.
const ROUNDS: [u8; 13] = [
    0xb9, 0xa0, 0x0f, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xe6, 0x80, 0xeb, 0xf3,
];
/// Minimum time that a vCPU runs before it sleeps, in ns.
const TURN: u64 = 2_000_000;
const READY: u8 = b'!';

/// The VMM as the benchmark sees it, which is killed when this is dropped.
pub struct Vmm(Child);

impl Vmm {
    /// Starts `count` VMMs, each with a guest of `gibibytes`. Together the guests keep one processor busy.
    pub fn start(series: &str, gibibytes: usize, count: usize) -> Self {
        let mut child = Command::new(env::current_exe().expect("this program's path"))
            .env(IS_VMM, format!("{series} {gibibytes} {count}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program");
        let mut answers = vec![0; count];
        let output = child.stdout.as_mut().expect("its output");
        output.read_exact(&mut answers).expect("vCPUs that run");
        Self(child)
    }

    /// The pid of the first one.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        // It may have ended, and been waited for, already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this process is the VMM.
pub fn is_wanted() -> bool {
    env::var_os(IS_VMM).is_some()
}

/// The main function of the VMM's process.
pub fn run() -> ! {
    let wanted = env::var(IS_VMM).expect(IS_VMM);
    let wanted: Vec<&str> = wanted.split(' ').collect();
    let [series, gibibytes, count] = wanted[..] else {
        panic!("{IS_VMM}");
    };
    let number = |text: &str| text.parse::<usize>().expect(IS_VMM);
    let (gibibytes, count) = (number(gibibytes), number(count));
    let kernel = debian(series);
    let knowledge = kernel_knowledge(&kernel);
    let symbols = knowledge.linux().expect("a Linux kernel").symbols();
    let guest = RunningGuest::new(&unpacked(&kernel), symbols, SLIDE, gibibytes << 30);
    let function = symbols.address_of(FUNCTION).expect(FUNCTION);
    let code = if count == 1 { &LOOP[..] } else { &ROUNDS };
    guest.patch(function, code);
    // The others have copies of this memory, whose pages they share.
    for _ in 1..count {
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            0 => break,
            child => assert_ne!(child, -1, "a process"),
        }
    }

    let vm = Kvm::new().and_then(|kvm| kvm.create_vm()).expect("KVM");
    let memory = guest.memory.get_host_address(GuestAddress(0));
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: (gibibytes as u64) << 30,
        userspace_addr: memory.expect("memory") as u64,
    };
    // SAFETY: the memory is there until this process ends.
    unsafe { vm.set_user_memory_region(region).expect("memory") };
    let vcpu = vm.create_vcpu(0).expect("a vCPU");
    let registers = RunningGuest::kernel(function + SLIDE);
    let (general, special) = registers_in_long_mode(&vcpu, &registers);
    vcpu.set_sregs(&special).expect("registers");
    vcpu.set_regs(&general).expect("registers");
    std::thread::spawn(move || run_vcpu(vcpu, count as u64));
    stdout()
        .write_all(&[READY])
        .and_then(|()| stdout().flush())
        .expect("the benchmark");
    // Ends with the benchmark.
    let _ = stdin().read(&mut [0]);
    process::exit(0);
}

/// Runs a vCPU for one of `count` parts of the time.
fn run_vcpu(mut vcpu: VcpuFd, count: u64) {
    let time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
    };
    let mut begin = time();
    loop {
        // Interrupted by the sampler, or at the end of a round; anything else is an end.
        if let Err(error) = vcpu.run()
            && error.errno() != libc::EINTR
        {
            eprintln!("the vCPU: {error}");
            process::exit(1);
        }
        let turn = time() - begin;
        if turn > TURN {
            sleep(Duration::from_nanos(turn * (count - 1)));
            begin = time();
        }
    }
}
