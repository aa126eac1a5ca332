//! Linux error numbers in replies (`include/uapi/asm-generic/errno*.h`).

/// A Linux error number: the positive value that a system call leaves in `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($value);)*

            /// The symbol and the usual text, if kvmprof itself returns this number.
            pub const fn describe(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($value => Some((stringify!($name), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    EINTR = 4, "interrupted system call";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "resource temporarily unavailable";
    ENOMEM = 12, "cannot allocate memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "device or resource busy";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    EMFILE = 24, "too many open files";
    ENOSPC = 28, "no space left on device";
    ENOBUFS = 105, "no buffer space available";
    EINPROGRESS = 115, "operation now in progress";
    ECANCELED = 125, "operation canceled";
}

impl core::fmt::Display for Errno {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.describe() {
            Some((name, text)) => write!(formatter, "{text} ({name})"),
            None => write!(formatter, "error {}", self.0),
        }
    }
}

impl core::error::Error for Errno {}
