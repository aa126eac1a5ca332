//! `cargo lab linux`: a report on a real kernel, as for a user.

use kvmprof_report::budget::OutputBudget;
use kvmprof_report::profile::{Profile, folded};
use kvmprof_tests::linux::{lab_command, print_losses};

/// With call stacks and functions by name, without a symbol file; the recording is returned, too.
#[test]
fn a_real_kernel_is_recorded_with_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.kvmprof");
    let report = lab_command(&["linux", "--seconds", "10"], &path);
    println!("{report}");
    // Of the kernel, and of the one program that has symbols.
    for word in [
        "busy_loop",
        "dd",
        "do_syscall_64",
        "vfs_read",
        "random_below",
    ] {
        assert!(report.contains(word), "{word}:\n{report}");
    }
    let profile = Profile::from_file(&path, &[]).unwrap();
    let account = profile.contents.account;
    print_losses("recording", account.ticks, account.stolen, account.lost);
    assert_eq!(profile.contents.closed, Some(account));
    let stacks = folded(&profile, &OutputBudget::new(u64::MAX)).unwrap();
    let reads = stacks
        .iter()
        .filter(|stack| stack.starts_with("dd-") && stack.contains(";do_syscall_64_[k];"));
    assert!(reads.count() > 0, "{stacks:?}");
    let shuffles = stacks
        .iter()
        .filter(|stack| stack.contains(";main;play;shuffle_cards;"));
    assert!(shuffles.count() > 0, "{stacks:?}");
}
