//! The VMM: this program, started again.

use std::env;
use std::io::{Read, Write, stdin, stdout};
use std::process::{self, Child, Command, Stdio};

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::Kvm;
use kvmprof_tests::linux::{RunningGuest, debian, kernel_knowledge, unpacked};
use kvmprof_tests::registers_in_long_mode;
use vm_memory::{GuestAddress, GuestMemoryBackend};

/// In the process that is the VMM: the kernel's series, and the guest's memory in GiB.
const IS_VMM: &str = "KVMPROF_BENCH_VMM";
/// The offset by KASLR.
pub const SLIDE: u64 = 0x1a00_0000;
/// The vCPU's address.
pub const FUNCTION: &str = "vfs_read";
/// A jump to itself.
const LOOP: [u8; 2] = [0xeb, 0xfe];
const READY: u8 = b'!';

/// The VMM as the benchmark sees it, which is killed when this is dropped.
pub struct Vmm(Child);

impl Vmm {
    /// Starts it with a guest of `gibibytes`.
    pub fn start(series: &str, gibibytes: usize) -> Self {
        let mut child = Command::new(env::current_exe().expect("this program's path"))
            .env(IS_VMM, format!("{series} {gibibytes}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program");
        let mut answer = [0];
        let output = child.stdout.as_mut().expect("its output");
        output.read_exact(&mut answer).expect("a vCPU that runs");
        Self(child)
    }

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
    let (series, gibibytes) = wanted.split_once(' ').expect(IS_VMM);
    let gibibytes: usize = gibibytes.parse().expect(IS_VMM);
    let kernel = debian(series);
    let knowledge = kernel_knowledge(&kernel);
    let symbols = knowledge.linux().expect("a Linux kernel").symbols();
    let guest = RunningGuest::new(&unpacked(&kernel), symbols, SLIDE, gibibytes << 30);
    let function = symbols.address_of(FUNCTION).expect(FUNCTION);
    guest.patch(function, &LOOP);

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
    let mut vcpu = vm.create_vcpu(0).expect("a vCPU");
    let registers = RunningGuest::kernel(function + SLIDE);
    let (general, special) = registers_in_long_mode(&vcpu, &registers);
    vcpu.set_sregs(&special).expect("registers");
    vcpu.set_regs(&general).expect("registers");
    std::thread::spawn(move || {
        loop {
            // Interrupted by the sampler; anything else is an end.
            if let Err(error) = vcpu.run()
                && error.errno() != libc::EINTR
            {
                eprintln!("the vCPU: {error}");
                process::exit(1);
            }
        }
    });
    stdout()
        .write_all(&[READY])
        .and_then(|()| stdout().flush())
        .expect("the benchmark");
    // Ends with the benchmark.
    let _ = stdin().read(&mut [0]);
    process::exit(0);
}
