//! Commands of pcs that name processes.

use kvmprof_abi::pcs::{PROF_GROUP, PROF_KERNEL, PROF_LIST};

use super::profil::ioctl;
use super::*;
use crate::nodes::PidKind;

fn bytes(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

pub(super) fn group(file: u64, argument: u64) -> Operation<'static> {
    Operation::Ioctl {
        file,
        command: PROF_GROUP,
        argument,
        data: &[],
        out_size: 0,
        compat: false,
    }
}

impl Bench {
    /// Expects that kvmprof gets this command, with this argument and data, and lets it succeed.
    fn takes_command(&mut self, unique: u64, expected: (u32, i64), expected_data: &[u8]) {
        let tag = self.sent_ioctl(PCS, expected, expected_data);
        let reply = Reply::Ioctl {
            value: 0,
            data: &[],
        };
        assert!(self.reply(tag, reply));
        self.answered(PCS, &protocol::ioctl_done(unique, 0, &[]));
    }
}

#[test]
fn kvmprof_gets_pids_of_the_initial_namespace() {
    let (mut bench, file) = Bench::opened(PCS);
    let unique = bench.ask(PCS, ioctl(file, PROF_LIST, &bytes(&[2, 1, 17]), 0));
    bench.nothing_more();
    let expected = Inspection::Pids {
        thread: THREAD,
        kind: PidKind::Process,
        count: 2,
        pids: [1, 17, 0, 0, 0],
    };
    assert_eq!(bench.environment.inspections[0].1, expected);
    bench.seen(Some(Ok(bytes(&[901, 917]))));
    bench.takes_command(unique, (PROF_LIST, 0), &bytes(&[2, 901, 917]));

    let unique = bench.ask(PCS, group(file, 5));
    let expected = Inspection::Pids {
        thread: THREAD,
        kind: PidKind::Group,
        count: 1,
        pids: [5, 0, 0, 0, 0],
    };
    assert_eq!(bench.environment.inspections[0].1, expected);
    bench.seen(Some(Ok(bytes(&[905]))));
    bench.takes_command(unique, (PROF_GROUP, 905), &[]);
    // The group of an init without a session, if that is the caller's namespace.
    let unique = bench.ask(PCS, group(file, 0));
    bench.seen(Some(Ok(bytes(&[0]))));
    bench.takes_command(unique, (PROF_GROUP, 0), &[]);
}

#[test]
fn pids_outside_the_callers_namespace_are_refused_by_the_agent() {
    let (mut bench, file) = Bench::opened(PCS);
    let unique = bench.ask(PCS, group(file, 5));
    bench.seen(Some(Err(Errno(libc::ESRCH))));
    bench.answered(PCS, &protocol::failed(unique, Errno(libc::ESRCH)));
    bench.nothing_more();
}

#[test]
fn calls_that_kvmprof_refuses_are_passed_without_a_pid() {
    let (mut bench, file) = Bench::opened(PCS);
    for list in [&[6][..], &[0], &[-1], &[2, 1, -1], &[1, 0]] {
        let unique = bench.ask(PCS, ioctl(file, PROF_LIST, &bytes(list), 0));
        bench.takes_command(unique, (PROF_LIST, 0), &bytes(list));
    }
    let unique = bench.ask(PCS, group(file, u64::MAX));
    bench.takes_command(unique, (PROF_GROUP, -1), &[]);
    let unique = bench.ask(PCS, ioctl(file, PROF_KERNEL, &[], 0));
    bench.takes_command(unique, (PROF_KERNEL, 0x3000), &[]);
    assert!(bench.environment.inspections.is_empty());
}
