//! The entries of tables of system calls.

/// A system call that is allowed, with any arguments or with some only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllowedCall {
    /// The call's number.
    pub call: i64,
    /// One of these conditions has to hold. If there are none, the call is always allowed.
    pub if_any: &'static [Condition],
}

/// A system call that fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefusedCall {
    /// The call's number.
    pub call: i64,
    /// The arguments with which it fails.
    pub when: Refusal,
    /// The error, a value of errno(3).
    pub error: i32,
}

/// The arguments with which a call fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// All.
    Always,
    /// Those for which one of these conditions holds.
    If(&'static [Condition]),
    /// Those for which none of these conditions holds.
    Unless(&'static [Condition]),
}

/// A condition for an argument: its masked value has to be equal to a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    /// The argument's index, from 0.
    pub argument: u8,
    /// The bits that are compared.
    pub mask: u64,
    /// The value that these bits have to have.
    pub value: u64,
}

/// A call that is allowed with any arguments.
pub(crate) const fn any(call: i64) -> AllowedCall {
    AllowedCall { call, if_any: &[] }
}

/// A call that is allowed if one of these conditions holds.
pub(crate) const fn only(call: i64, if_any: &'static [Condition]) -> AllowedCall {
    AllowedCall { call, if_any }
}

/// The argument is `value`. Only the low 32 bits are compared: the kernel uses no more of the arguments that are tested.
pub(crate) const fn is(argument: u8, value: u64) -> Condition {
    Condition {
        argument,
        mask: 0xffff_ffff,
        value,
    }
}

/// The argument has none of these bits.
pub(crate) const fn without(argument: u8, bits: u64) -> Condition {
    Condition {
        argument,
        mask: bits,
        value: 0,
    }
}

/// The request of an ioctl(2) has this type and number. Its direction and size aren't compared: the driver compares the whole request.
pub(crate) const fn request(kind: u8, number: u8) -> Condition {
    Condition {
        argument: 1,
        mask: 0xffff,
        value: ((kind as u64) << 8) | number as u64,
    }
}

/// The argument has all of these bits.
pub(crate) const fn with(argument: u8, bits: u64) -> Condition {
    Condition {
        argument,
        mask: bits,
        value: bits,
    }
}
