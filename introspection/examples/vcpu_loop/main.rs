//! A vCPU loop that samples the pid, the name and the call stack of what its guest runs, a hundred times a second. What a VMM has anyway is in `machine.rs`.

mod machine;

use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, thread};

use kvm_ioctls::VcpuExit;
use kvmprof_introspection::{GuestKnowledge, Stack, VcpuIntrospector, select_registers};
use kvmprof_recording::StackParts;
use machine::{Failure, machine};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

/// Runs the guest of `image`, and prints so many samples of it.
fn run(image: &[u8], samples: usize) -> Result<(), Failure> {
    let (memory, mut vcpu) = machine(image)?;
    let knowledge = Arc::new(GuestKnowledge::from_image(image)?);
    let mut introspector = VcpuIntrospector::new(knowledge, 0);
    let mut stack = Stack::default();
    let (kernel, user) = (true, true);
    let mut taken = 0;
    while taken < samples {
        match vcpu.run() {
            // A signal has ended KVM_RUN between two instructions of the guest.
            Err(error) if error.errno() == libc::EINTR => {
                let registers = select_registers(&vcpu.get_regs()?, &vcpu.get_sregs()?);
                let found = introspector.identify(&memory, &registers, false, false);
                let parts = StackParts { kernel, user };
                introspector.unwind(&memory, &registers, parts, None, &mut stack);
                let name = String::from_utf8_lossy(&found.comm);
                let (name, frames) = (name.trim_end_matches('\0'), stack.frames());
                println!("{} {name} {frames:x?}", found.pid);
                taken += 1;
            }
            Err(error) => return Err(error.into()),
            Ok(VcpuExit::Shutdown) => return Err("the guest has crashed".into()),
            Ok(VcpuExit::IoIn(_, data)) => data.fill(0xff),
            Ok(_) => {}
        }
    }
    Ok(())
}

extern "C" fn handle(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Runs the guest on a thread that is interrupted a hundred times a second.
fn main() -> Result<(), Failure> {
    let mut words = env::args_os().skip(1);
    let image = fs::read(words.next().ok_or("vcpu_loop IMAGE [SAMPLES]")?)?;
    let samples = words.next().map(|it| it.to_string_lossy().parse());
    let samples = samples.transpose()?.unwrap_or(usize::MAX);
    register_signal_handler(SIGRTMIN(), handle)?;
    let vcpu = thread::spawn(move || run(&image, samples));
    while !vcpu.is_finished() {
        thread::sleep(Duration::from_millis(10));
        vcpu.kill(SIGRTMIN())?;
    }
    vcpu.join().map_err(|_| "the vCPU's thread has panicked")?
}
