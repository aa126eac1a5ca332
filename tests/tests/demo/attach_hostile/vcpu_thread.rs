//! The thread of the VMM's vCPU.

use std::fs::File;
use std::io::{Write, pipe};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvm_ioctls::VcpuFd;
use kvmprof_tests::never_bring;

/// `include/uapi/linux/kvm.h`
const KVM_RUN: libc::Ioctl = 0xae80;

/// An order to the vCPU's thread between two runs.
pub enum Order {
    /// Continue with these registers.
    Registers(Box<(kvm_regs, kvm_sregs)>),
    /// Sleep and wait this many times, and count results that differ from the expected ones.
    Work(u64),
    /// Replace the vCPU's descriptor by something else, or restore the vCPU.
    Hide,
    Show,
    /// Continue, with a stack whose missing pages are never filled.
    Starve,
    /// Close the vCPU and continue without it.
    Close,
    /// End the thread.
    End,
}

/// Whether no other thread sends signals any more, finished rounds of work, wrong results, and received signals.
pub static WORK_BEGINS: AtomicBool = AtomicBool::new(false);
pub static WORKED: AtomicU64 = AtomicU64::new(0);
pub static ERRORS: AtomicU64 = AtomicU64::new(0);
pub static SIGNALS: AtomicU64 = AtomicU64::new(0);

pub extern "C" fn count_signal(_: i32) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Waits in three ways that the kernel restarts by itself if no signal handler interrupts them: the thread doesn't notice that it was stopped.
fn work(rounds: u64) {
    // The signals that made it take the order are handled then.
    while !WORK_BEGINS.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    let (reader, mut writer) = pipe().unwrap();
    let writer = thread::spawn(move || {
        for round in 0..rounds {
            thread::sleep(Duration::from_millis(1));
            writer.write_all(&round.to_le_bytes()).unwrap();
        }
    });
    for round in 0..rounds {
        let mut read = [0; 8];
        let millisecond = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        // By libc: rustix calls ppoll(2), which the kernel doesn't go on with by restart_syscall(2), as it does with poll(2).
        // SAFETY: the buffer and the time are alive, and are as long as is said.
        let ended = unsafe {
            [
                libc::poll(std::ptr::null_mut(), 0, 1) == 0,
                libc::nanosleep(&raw const millisecond, std::ptr::null_mut()) == 0,
                libc::read(reader.as_raw_fd(), read.as_mut_ptr().cast(), 8) == 8,
                u64::from_le_bytes(read) == round,
            ]
        };
        let errors = ended.iter().filter(|ended| !**ended).count();
        ERRORS.fetch_add(errors as u64, Ordering::SeqCst);
        WORKED.fetch_add(1, Ordering::SeqCst);
    }
    writer.join().unwrap();
}

/// The main function of the vCPU's thread: it continues whatever the guest does.
pub fn run(vcpu: VcpuFd, orders: &Receiver<(Order, Sender<()>)>) {
    let mut vcpu = Some(vcpu);
    let mut hidden = None;
    loop {
        match vcpu.as_mut() {
            // The guest's exits have no effect, and neither have failures; its thread is as busy as a real one.
            Some(vcpu) => {
                let _ = vcpu.run();
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
        if let Ok((order, done)) = orders.try_recv() {
            match (order, &vcpu) {
                (Order::Registers(registers), Some(vcpu)) => {
                    vcpu.set_sregs(&registers.1).unwrap();
                    vcpu.set_regs(&registers.0).unwrap();
                }
                (Order::Registers(_), None) => {}
                (Order::Work(rounds), _) => {
                    // Signals arrive until then.
                    done.send(()).unwrap();
                    work(rounds);
                    continue;
                }
                (Order::Hide, Some(vcpu)) => {
                    let copy = duplicate(vcpu);
                    replace(vcpu, &File::open("/dev/null").unwrap());
                    hidden = Some(copy);
                }
                (Order::Show, Some(vcpu)) => {
                    hidden.take().iter().for_each(|copy| replace(vcpu, copy))
                }
                (Order::Hide | Order::Show, None) => {}
                (Order::Starve, Some(vcpu)) => {
                    done.send(()).unwrap();
                    starve(vcpu);
                }
                (Order::Starve, None) => {}
                (Order::Close, _) => vcpu = None,
                (Order::End, _) => return,
            }
            done.send(()).unwrap();
        }
    }
}

/// Runs the vCPU forever, without a stack below this function's own. Writes there wait for a page.
#[inline(never)]
fn starve(vcpu: &VcpuFd) {
    const PAGE: usize = 4096;
    const BELOW: usize = 64 * PAGE;
    let here = 0_u8;
    let address = (&raw const here).addr();
    // Its own frame and those of its callees until then are above the page's end, and little else is.
    if !(1200..1800).contains(&(address % PAGE)) {
        let more = std::hint::black_box([0_u8; 64]);
        starve(vcpu);
        std::hint::black_box(more);
        return;
    }
    let low = address - address % PAGE - BELOW;
    // SAFETY: only this thread's functions below this one use these pages, and there are none any more.
    unsafe {
        libc::madvise(low as *mut _, BELOW, libc::MADV_DONTNEED);
        never_bring(low as u64, BELOW as u64).unwrap();
        loop {
            // By hand: it takes no stack.
            std::arch::asm!(
                "syscall", inlateout("rax") libc::SYS_ioctl => _, in("rdi") i64::from(vcpu.as_raw_fd()),
                in("rsi") KVM_RUN, in("rdx") 0_u64, out("rcx") _, out("r11") _
            );
        }
    }
}

/// Another descriptor of the same.
pub fn duplicate(original: &impl AsRawFd) -> File {
    // SAFETY: it is open; the new descriptor is this one's alone.
    let copy = unsafe { libc::fcntl(original.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) };
    assert!(copy >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: as above.
    unsafe { File::from_raw_fd(copy) }
}

/// Makes the descriptor `place` a duplicate of `other`.
fn replace(place: &impl AsRawFd, other: &File) {
    // SAFETY: both are open, and stay so; who uses `place` stands it.
    let result = unsafe { libc::dup3(other.as_raw_fd(), place.as_raw_fd(), libc::O_CLOEXEC) };
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
}
