//! The memory of the caller to which a command's third argument points.

use kvmprof_abi::commands::{Argument, INT, argument as argument_of};

use crate::cuse::protocol::Piece;

/// The next step of an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The kernel first has to fetch this memory, or prepare to store to it.
    Fetch {
        /// The memory that the command reads.
        reads: Option<Piece>,
        /// The memory to which the command stores.
        stores: Option<Piece>,
    },
    /// The command can be executed, with the data that was fetched.
    Go {
        /// The third argument if it is a number.
        argument: i64,
        /// Maximum number of bytes that the command stores.
        limit: usize,
    },
}

/// The next step of `command`, whose third argument is `argument`, after the kernel has fetched `data` and prepared to store `out_size`
/// bytes.
pub(super) fn step(device: u16, command: u32, argument: u64, data: &[u8], out_size: usize) -> Step {
    let piece = |length: usize| {
        Some(Piece {
            address: argument,
            length,
        })
    };
    let pointer = |limit: usize| Step::Go { argument: 0, limit };
    match argument_of(device, command) {
        Some(Argument::ReadsList(most)) => match list_length(data, most) {
            Some(length) => Step::Fetch {
                reads: piece(length),
                stores: None,
            },
            None => pointer(0),
        },
        Some(Argument::Reads(length)) if data.len() < length => Step::Fetch {
            reads: piece(length),
            stores: None,
        },
        Some(Argument::Reads(_)) => pointer(0),
        Some(Argument::Replaces(length)) if data.len().min(out_size) < length => Step::Fetch {
            reads: piece(length),
            stores: piece(length),
        },
        Some(Argument::Stores(length)) if out_size < length => Step::Fetch {
            reads: None,
            stores: piece(length),
        },
        Some(Argument::Replaces(length) | Argument::Stores(length)) => pointer(length),
        Some(Argument::Number | Argument::Data) | None => Step::Go {
            argument: int(argument),
            limit: 0,
        },
    }
}

/// The number of bytes of a list of at most `most` numbers to fetch; `None` if all have been fetched, or if the device refuses the count anyway.
fn list_length(data: &[u8], most: usize) -> Option<usize> {
    let Some((count, rest)) = data.split_first_chunk::<INT>() else {
        return Some(INT);
    };
    let count = usize::try_from(i32::from_ne_bytes(*count)).ok()?;
    // Memory that was fetched once isn't fetched again, whatever its count is by now.
    let missing = rest.is_empty() && (1..=most).contains(&count);
    missing.then_some(INT * (1 + count))
}

/// The `int` that a caller passed. ioctl(2) takes a long, whose upper half is undefined if an `int` was passed.
fn int(argument: u64) -> i64 {
    let [a, b, c, d, ..] = argument.to_le_bytes();
    i32::from_le_bytes([a, b, c, d]).into()
}

#[cfg(test)]
mod tests {
    use kvmprof_abi::wire::device;
    use kvmprof_abi::{pcs, pmc, prf, profil};

    use super::*;

    fn go(argument: i64, limit: usize) -> Step {
        Step::Go { argument, limit }
    }

    #[test]
    fn integers_keep_their_sign_by_value_and_by_pointer() {
        for argument in [0xffff_ffff, u64::MAX, 0x1234_ffff_ffff] {
            let step = step(device::PCS, pcs::BUF_INCR, argument, &[], 0);
            assert_eq!(step, go(-1, 0));
        }
        let on = step(device::PRF, prf::PRF_SETSTATE, 1, &[], 0);
        assert_eq!(on, go(1, 0));
    }

    /// The steps of a PROF_LIST at address 0x1000 whose memory begins with `memory`.
    fn list(memory: &[i32]) -> (Vec<usize>, usize) {
        let memory: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut fetched = Vec::new();
        loop {
            let length = fetched.last().copied().unwrap_or(0);
            match step(device::PCS, pcs::PROF_LIST, 0x1000, &memory[..length], 0) {
                Step::Fetch { reads, stores } => {
                    let piece = reads.unwrap();
                    assert_eq!((piece.address, stores), (0x1000, None));
                    fetched.push(piece.length);
                }
                Step::Go { argument, limit } => {
                    assert_eq!((argument, limit), (0, 0));
                    return (fetched, length);
                }
            }
        }
    }

    #[test]
    fn a_list_is_fetched_by_its_count() {
        assert_eq!(list(&[5, 1, 2, 3, 4, 5]), (vec![4, 24], 24));
        assert_eq!(list(&[1, 1]), (vec![4, 8], 8));
        for count in [0, -1, 6, i32::MAX, i32::MIN] {
            assert_eq!(list(&[count]), (vec![4], 4), "{count}");
        }
    }

    #[test]
    fn a_changing_count_ends_the_retries() {
        let data = [5_i32, 1].map(i32::to_ne_bytes).concat();
        let step = step(device::PCS, pcs::PROF_LIST, 1, &data, 0);
        assert!(matches!(step, Step::Go { .. }));
    }

    const fn piece(address: u64, length: usize) -> Option<Piece> {
        Some(Piece { address, length })
    }

    #[test]
    fn a_call_of_profil_is_fetched() {
        let next = |data: &[u8]| step(device::PROFIL, profil::PROFIL_CALL, 0x3000, data, 0);
        let expected = Step::Fetch {
            reads: piece(0x3000, 72),
            stores: None,
        };
        assert_eq!(next(&[]), expected);
        assert!(matches!(next(&[0; 72]), Step::Go { limit: 0, .. }));
    }

    #[test]
    fn a_call_of_pmc_is_fetched_and_written_back() {
        let next = |length: usize, out_size| {
            let data = &[0; 56][..length];
            step(device::PMC, pmc::PMC_CALL, 0x3000, data, out_size)
        };
        let fetch = Step::Fetch {
            reads: piece(0x3000, 56),
            stores: piece(0x3000, 56),
        };
        for (length, out_size) in [(0, 0), (55, 56), (56, 55), (56, 0), (0, 56)] {
            assert_eq!(next(length, out_size), fetch, "{length} {out_size}");
        }
        assert_eq!(next(56, 56), go(0, 56));
    }

    #[test]
    fn stored_values_have_their_size() {
        let sizes = [
            (device::PCS, pcs::PCS_GETSTAT, pcs::STATUS_SIZE),
            (device::PROFIL, profil::PROFIL_GETSTAT, 48),
            (device::PRF, prf::PRF_GETSTATUS, 4),
            (device::PRF, prf::PRF_GETSIZE, 4),
            (device::PRF, prf::PRF_GETMAX, 4),
        ];
        for (device, command, size) in sizes {
            let first = step(device, command, 0x2000, &[], 0);
            let expected = Step::Fetch {
                reads: None,
                stores: piece(0x2000, size),
            };
            assert_eq!(first, expected);
            assert_eq!(step(device, command, 0x2000, &[], size), go(0, size));
        }
        // The same number is another command on another device.
        let other = step(device::PCS, prf::PRF_GETMAX, 7, &[], 0);
        assert!(matches!(other, Step::Go { argument: 7, .. }));
    }
}
