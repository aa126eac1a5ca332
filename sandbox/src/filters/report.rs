//! What happens at a system call that a filter doesn't allow: SIGSYS, a message, and the end of the process.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;

use super::call_name;
use crate::stderr::write_at_once;

/// The process's exit status after such a call: that of a shell for a program that SIGSYS has ended.
pub const STATUS: i32 = 128 + libc::SIGSYS;

/// Bytes of a thread's name, as the kernel has it, with a zero.
const NAME_BYTES: usize = 16;
/// Longest message.
const MESSAGE_BYTES: usize = 256;

static BEFORE: OnceLock<fn()> = OnceLock::new();

thread_local! {
    /// The thread's name. The handler may not ask for it: that would be a system call.
    static NAME: Cell<[u8; NAME_BYTES]> = const { Cell::new([0; NAME_BYTES]) };
}

/// Reads the name of this thread for messages.
pub(super) fn remember_name() {
    let mut name = [0; NAME_BYTES];
    // SAFETY: PR_GET_NAME writes 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    NAME.set(name);
}

/// Installs the handler.
pub(super) fn install(before: fn()) -> io::Result<()> {
    let _ = BEFORE.set(before);
    // SAFETY: zeroes are a valid sigaction; the handler has the form that SA_SIGINFO asks for, and only does what handlers may.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut())
    };
    match installed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The part of `siginfo_t` that SIGSYS has (kernel: include/uapi/asm-generic/siginfo.h).
#[repr(C)]
struct SysInfo {
    _signal: [i32; 4],
    _call_address: u64,
    call: i32,
    _arch: u32,
}

extern "C" fn handle(_signal: i32, info: *const libc::siginfo_t, context: *const libc::c_void) {
    // SAFETY: the kernel delivers a siginfo_t of SIGSYS, and the registers at the call.
    let (call, second) = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        let second = context.uc_mcontext.gregs[libc::REG_RSI as usize];
        ((*info.cast::<SysInfo>()).call, second)
    };
    if let Some(before) = BEFORE.get() {
        before();
    }
    let mut message = Message::default();
    message.add(b"kvmprof: The thread ");
    let name = NAME.get();
    message.add(name.split(|byte| *byte == 0).next().unwrap_or_default());
    message.add(b" made the system call ");
    message.add_number(call.unsigned_abs().into(), 10);
    message.add(b" (");
    message.add(call_name(call.into()).unwrap_or("unknown").as_bytes());
    message.add(b", second argument 0x");
    message.add_number(second.cast_unsigned(), 16);
    message.add(b"), which its filter doesn't allow. kvmprof ends. See docs/sandbox.md\n");
    // This doesn't wait for the reader, who could keep the process from ending.
    write_at_once(message.text());
    // SAFETY: it doesn't return, and what other threads are in the middle of is no matter any more.
    unsafe { libc::_exit(STATUS) }
}

/// A text in a buffer of fixed size: a signal handler may not use the heap.
struct Message {
    bytes: [u8; MESSAGE_BYTES],
    length: usize,
}

impl Default for Message {
    fn default() -> Self {
        Self {
            bytes: [0; MESSAGE_BYTES],
            length: 0,
        }
    }
}

impl Message {
    fn text(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Adds as much of `text` as there is room for.
    fn add(&mut self, text: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.length).zip(text) {
            *place = *byte;
            self.length += 1;
        }
    }

    fn add_number(&mut self, number: u64, base: u64) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut divisor = 1;
        while number / divisor >= base {
            divisor *= base;
        }
        while divisor > 0 {
            // It is below the base, which is 16 at most.
            let digit = usize::try_from(number / divisor % base).unwrap_or(0);
            self.add(&DIGITS[digit..=digit]);
            divisor /= base;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(build: impl FnOnce(&mut Message)) -> String {
        let mut message = Message::default();
        build(&mut message);
        String::from_utf8(message.text().to_vec()).unwrap()
    }

    #[test]
    fn messages_have_numbers_and_an_end() {
        assert_eq!(text(|message| message.add_number(0, 10)), "0");
        assert_eq!(text(|message| message.add_number(59, 10)), "59");
        assert_eq!(text(|message| message.add_number(0xae80, 16)), "ae80");
        let all = text(|message| message.add_number(u64::MAX, 16));
        assert_eq!(all, "ffffffffffffffff");
        let long = text(|message| message.add(&[b'x'; 1000]));
        assert_eq!(long.len(), MESSAGE_BYTES);
    }
}
