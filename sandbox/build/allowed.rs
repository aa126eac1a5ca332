//! What tables of allowed system calls are made of.

/// A system call that is allowed, whatever its arguments are, or only with some.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// Its number.
    pub call: i64,
    /// One of these has to hold; none: always.
    pub if_any: &'static [Condition],
}

/// What an argument has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    /// Which, from 0.
    pub argument: u8,
    /// The bits that count.
    pub mask: u64,
    /// What they have to be.
    pub value: u64,
}

/// A call with all arguments.
pub(crate) const fn any(call: i64) -> Allowed {
    Allowed { call, if_any: &[] }
}

/// A call with some.
pub(crate) const fn only(call: i64, if_any: &'static [Condition]) -> Allowed {
    Allowed { call, if_any }
}

/// An argument that is `value`. Arguments are compared by their lower 32 bits: all that are tested have no more.
pub(crate) const fn is(argument: u8, value: u64) -> Condition {
    Condition {
        argument,
        mask: 0xffff_ffff,
        value,
    }
}

/// An argument that is `value`, but for the bits of `ignored`.
pub(crate) const fn is_but_for(argument: u8, value: u64, ignored: u64) -> Condition {
    Condition {
        argument,
        mask: 0xffff_ffff & !ignored,
        value,
    }
}

/// An argument without these bits.
pub(crate) const fn without(argument: u8, bits: u64) -> Condition {
    Condition {
        argument,
        mask: bits,
        value: 0,
    }
}

/// An ioctl(2) by its type and number. Its direction and size are the driver's to check, which knows the whole number.
pub(crate) const fn request(kind: u8, number: u8) -> Condition {
    Condition {
        argument: 1,
        mask: 0xffff,
        value: ((kind as u64) << 8) | number as u64,
    }
}
