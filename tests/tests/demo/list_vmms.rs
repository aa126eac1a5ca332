//! The rows of `kvmprof list` by a guest's jail, and by the protection of its memory. The VMMs are processes that make a guest, and wait.

use std::io::{self, Read, Write, pipe};
use std::ptr;
use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VmFd};
use kvmprof_attach::{AttachedMemory, HostKernel, Machine, Obstacle, find_machines};
use kvmprof_introspection::PhysicalMemory;
use kvmprof_tests::{never_bring, not_run, on_kvm, run};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use vm_memory::GuestAddress;

const PAGE: u64 = 4096;

/// A page of memory for a guest. Each process has its own.
#[repr(align(4096))]
struct Page([u8; 4096]);

static MEMORY: Page = Page([0; 4096]);

/// A process with a guest.
struct Vmm(Pid);

impl Vmm {
    /// Starts one, in which `make` makes the guest. It runs in a forked process, and makes only system calls.
    fn start(make: impl FnOnce() -> io::Result<VmFd>) -> io::Result<Self> {
        let (mut hear, mut say) = pipe().unwrap();
        // SAFETY: the child makes its guest, says so, and waits to be killed. It leaves alone what other threads may have locked.
        match unsafe { libc::fork() } {
            -1 => panic!("{}", io::Error::last_os_error()),
            0 => {
                // SAFETY: it takes numbers: the child ends with the test.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let made = make();
                let error = made
                    .as_ref()
                    .err()
                    .map_or(0, |it| it.raw_os_error().unwrap_or(-1));
                let _ = say.write_all(&error.to_le_bytes());
                loop {
                    // SAFETY: it takes nothing.
                    unsafe { libc::pause() };
                }
            }
            child => {
                drop(say);
                let vmm = Self(Pid::from_raw(child).unwrap());
                let mut error = [0; 4];
                hear.read_exact(&mut error).unwrap();
                match i32::from_le_bytes(error) {
                    0 => Ok(vmm),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            }
        }
    }

    fn pid(&self) -> i32 {
        self.0.as_raw_nonzero().get()
    }

    /// Its guest in the list.
    fn found(&self) -> Machine {
        let kernel = HostKernel::open().unwrap();
        let mut machines = find_machines(Ok(&kernel)).machines;
        machines.retain(|machine| machine.pid == self.pid());
        let [machine] = machines.try_into().unwrap();
        machine
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        kill_process(self.0, Signal::KILL).unwrap();
        waitpid(Some(self.0), WaitOptions::empty()).unwrap();
    }
}

fn check(result: impl Into<i64>) -> io::Result<()> {
    match result.into() {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An ordinary guest, with a page of memory.
fn usual_guest() -> io::Result<VmFd> {
    guest_with(MEMORY.0.as_ptr() as u64)
}

/// One with the page of memory at this address.
fn guest_with(address: u64) -> io::Result<VmFd> {
    let guest = Kvm::new()?.create_vm()?;
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: PAGE,
        userspace_addr: address,
    };
    // SAFETY: no vCPU can write to what is there.
    unsafe { guest.set_user_memory_region(region)? };
    Ok(guest)
}

/// Gives the process private mounts.
fn leave_mounts() -> io::Result<()> {
    // SAFETY: it takes a number.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: a string that ends with a zero, and nothing.
    check(unsafe { libc::mount(ptr::null(), c"/".as_ptr(), ptr::null(), flags, ptr::null()) })
}

/// Before 6.8 the host's kernel doesn't show encryption. The VMMs of such guests have /dev/sev open.
#[test]
fn an_encrypted_guest_is_refused() {
    on_kvm(|| {
        let vmm = Vmm::start(|| {
            let guest = usual_guest()?;
            leave_mounts()?;
            let (tmpfs, dev) = (c"tmpfs".as_ptr(), c"/dev".as_ptr());
            // SAFETY: strings that end with a zero, and nothing. The descriptor stays open.
            unsafe {
                check(libc::mount(tmpfs, dev, tmpfs, 0, ptr::null()))?;
                check(libc::open(
                    c"/dev/sev".as_ptr(),
                    libc::O_RDWR | libc::O_CREAT,
                    0o600,
                ))?;
            }
            Ok(guest)
        });
        let vmm = vmm.unwrap();
        assert_eq!(vmm.found().obstacle, Some(Obstacle::Encrypted));
        let pid = vmm.pid().to_string();
        let ran = run(["attach", &pid, "--socket", "/nowhere"]);
        ran.assert_refused(1, &["its memory is encrypted"]);
    });
}

/// A guest whose only page is missing and never filled (userfaultfd(2)).
fn guest_without_pages() -> io::Result<VmFd> {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at a place that the kernel chooses, which nobody touches.
    let memory = unsafe { libc::mmap(ptr::null_mut(), 4096, access, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nobody but the guest has this page.
    unsafe { never_bring(memory as u64, PAGE)? };
    guest_with(memory as u64)
}

/// The command doesn't wait for it.
#[test]
fn missing_userfaultfd_pages_are_unreadable() {
    on_kvm(|| {
        let vmm = match Vmm::start(guest_without_pages) {
            Ok(vmm) => vmm,
            Err(error) => return not_run(&format!("this host has no userfaultfd: {error}")),
        };
        let kernel = Arc::new(HostKernel::open().unwrap());
        let memory = AttachedMemory::open(&vmm.found(), kernel).unwrap();
        assert!(memory.contains(GuestAddress(0)));
        assert_eq!(memory.read_physical(GuestAddress(0), &mut [0; 8]), None);
        // A present page is read.
        let vmm = Vmm::start(usual_guest).unwrap();
        let kernel = Arc::new(HostKernel::open().unwrap());
        let memory = AttachedMemory::open(&vmm.found(), kernel).unwrap();
        assert_eq!(memory.read_physical(GuestAddress(0), &mut [0; 8]), Some(()));
    });
}
