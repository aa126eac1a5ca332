use std::os::unix::fs::MetadataExt;

use kvmprof_attach::remote::testing::served;
use kvmprof_recording::file::Unobserved;

use super::core_file::PAGE;
use super::*;

/// The memory that is served: so many bytes from this address on.
const BYTES: u64 = 4 << 20;

fn file() -> File {
    tempfile::tempfile().unwrap()
}

fn part(address: u64, bytes: u64) -> (Segment, CoreFile) {
    let segment = Segment {
        address,
        bytes,
        offset: PAGE,
    };
    let core = CoreFile {
        segments: vec![segment],
        bytes: PAGE + bytes,
    };
    (segment, core)
}

#[test]
fn memory_is_copied_in_parts_of_any_length() {
    let served = served().unwrap();
    let file = file();
    let mut copy = Copy::new(served.channel(), &file, &[]);
    let bytes = COPIED_BYTES as u64 + 3 * PAGE;
    let (segment, core) = part(BYTES, bytes);
    copy.segment(&segment, &core, &Unobserved).unwrap();
    let length = usize::try_from(bytes).unwrap();
    let mut expected = vec![0; length];
    served
        .channel()
        .read_physical(GuestAddress(BYTES), &mut expected)
        .unwrap();
    let mut found = vec![0; length];
    file.read_exact_at(&mut found, PAGE).unwrap();
    assert!(found == expected);
    assert_eq!((copy.done, copy.dumped.unreadable_bytes), (bytes, 0));
}

/// The VMM may take memory away that was there when its slots were read.
#[test]
fn what_cannot_be_read_is_counted_and_zero() {
    let served = served().unwrap();
    let file = file();
    let mut copy = Copy::new(served.channel(), &file, &[]);
    let (segment, core) = part(2 * BYTES - 2 * PAGE, 5 * PAGE);
    copy.segment(&segment, &core, &Unobserved).unwrap();
    assert_eq!(copy.dumped.unreadable_bytes, 3 * PAGE);
    assert_eq!(copy.dumped.copied_bytes, 2 * PAGE);
}

#[test]
fn pages_of_zeros_are_holes() {
    let served = served().unwrap();
    let file = file();
    let mut copy = Copy::new(served.channel(), &file, &[]);
    let mut memory = vec![0; 512 * PAGE_BYTES];
    let last = memory.len() - 1;
    for at in [100 * PAGE_BYTES, 101 * PAGE_BYTES + 4095, last] {
        memory[at] = 1;
    }
    file.set_len(PAGE + memory.len() as u64).unwrap();
    copy.write(PAGE, &memory).unwrap();
    assert_eq!(copy.dumped.copied_bytes, 3 * PAGE);
    let mut found = vec![0xff; memory.len()];
    file.read_exact_at(&mut found, PAGE).unwrap();
    assert!(found == memory);
    let on_disk = file.metadata().unwrap().blocks() * 512;
    assert!(on_disk <= 64 * PAGE, "{on_disk}");
}

#[test]
fn an_observer_ends_it() {
    struct Impatient;
    impl Observer for Impatient {
        fn advance(&self, done: u64, whole: u64) -> ControlFlow<()> {
            assert!(done <= whole);
            ControlFlow::Break(())
        }
    }
    let served = served().unwrap();
    let file = file();
    let mut copy = Copy::new(served.channel(), &file, &[]);
    let (segment, core) = part(BYTES, BYTES);
    let error = copy.segment(&segment, &core, &Impatient).unwrap_err();
    assert!(matches!(error, DumpError::Interrupted), "{error}");
    assert_eq!(copy.done, COPIED_BYTES as u64);
}

#[test]
fn a_disk_that_is_full_is_an_error() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let served = served().unwrap();
    let mut copy = Copy::new(served.channel(), &full, &[]);
    let (segment, core) = part(BYTES, BYTES);
    let error = copy.segment(&segment, &core, &Unobserved).unwrap_err();
    assert!(matches!(error, DumpError::Write(_)), "{error}");
}
