//! Calls of pmc, by programs of any user.

use kvmprof_abi::pmc::{self, Call, Function};

use super::profil::ioctl;
use super::*;

fn call() -> Call {
    Call::new(Function::Value, 0, 3)
}

impl Bench {
    /// Makes a call with all its data, and room for the result.
    fn calls_pmc(&mut self, file: u64) -> u64 {
        let data = call().encode();
        let operation = ioctl(file, pmc::PMC_CALL, &data, Call::SIZE);
        self.ask(PMC, operation)
    }
}

#[test]
fn a_call_returns_its_value() {
    let mut bench = Bench::new();
    bench.user = 1000;
    let file = bench.open(PMC);
    let first = bench.ask(PMC, ioctl(file, pmc::PMC_CALL, &[], 0));
    let piece = Some(protocol::Piece {
        address: 0x3000,
        length: Call::SIZE,
    });
    bench.answered(PMC, &protocol::ioctl_retry(first, piece, piece));

    let unique = bench.calls_pmc(file);
    bench.nothing_more();
    let (_, inspection) = bench.environment.inspections[0];
    let expected = Inspection::PmcCall {
        thread: THREAD,
        is_superuser: false,
        call: call(),
    };
    assert_eq!(inspection, expected);
    bench.seen(Some(Ok(b"completed".to_vec())));
    let tag = bench.gets_ioctl(PMC, pmc::PMC_CALL, b"completed");
    let data = &[7; Call::SIZE];
    assert!(bench.reply(tag, Reply::Ioctl { value: 1, data }));
    bench.answered(PMC, &protocol::ioctl_done(unique, 1, data));
    bench.nothing_more();
}

/// The kernel passes the user with each request, which needn't be the one who opened the file.
#[test]
fn the_superuser_is_identified_by_each_request() {
    let (mut bench, file) = Bench::opened(PMC);
    for (user, expected) in [(0, true), (1, false), (u32::MAX, false)] {
        bench.user = user;
        bench.calls_pmc(file);
        let (_, inspection) = bench.environment.inspections.pop_front().unwrap();
        let expected = Inspection::PmcCall {
            thread: THREAD,
            is_superuser: expected,
            call: call(),
        };
        assert_eq!(inspection, expected, "{user}");
    }
}

#[test]
fn unsupported_operations_are_refused_by_the_agent() {
    let (mut bench, file) = Bench::opened(PMC);
    bench.refuses(PMC, read(file, 0, 100), Errno::EINVAL);
    bench.refuses(PMC, ioctl(file, pmc::PMC_ACCOUNT, &[], 0), Errno::EACCES);
    bench.refuses(PMC, ioctl(file, 0x5603, &[], 0), Errno::EINVAL);
    let unknown = [9; Call::SIZE];
    let operation = ioctl(file, pmc::PMC_CALL, &unknown, Call::SIZE);
    bench.refuses(PMC, operation, Errno::EINVAL);
    let unique = bench.ask(PMC, poll(file, 1));
    bench.answered(PMC, &protocol::polled(unique, 0x145));
    bench.nothing_more();
}

/// The structures of 32-bit programs are the same.
#[test]
fn a_32_bit_program_may_call() {
    let (mut bench, file) = Bench::opened(PMC);
    let data = call().encode();
    let operation = Operation::Ioctl {
        file,
        command: pmc::PMC_CALL,
        argument: 0x3000,
        data: &data,
        out_size: Call::SIZE,
        compat: true,
    };
    bench.ask(PMC, operation);
    assert_eq!(bench.environment.inspections.len(), 1);
    bench.nothing_more();
}

/// Each node has its own request numbers.
#[test]
fn nodes_do_not_cancel_each_others_requests() {
    let mut bench = Bench::new();
    let (profil, pmc) = (bench.open(PROFIL), bench.open(PMC));
    let call = bench.calls_pmc(pmc);
    bench.ask(PROFIL, Operation::Interrupt { unique: call });
    bench.nothing_more();
    bench.forwarder.node_ended(PROFIL, &mut bench.environment);
    assert_eq!(bench.sent_kind().1, Kind::Close);
    bench.seen(Some(Ok(b"completed".to_vec())));
    let tag = bench.gets_ioctl(PMC, pmc::PMC_CALL, b"completed");
    let data = &[7; Call::SIZE];
    assert!(bench.reply(tag, Reply::Ioctl { value: 0, data }));
    bench.answered(PMC, &protocol::ioctl_done(call, 0, data));

    let call = bench.calls_pmc(pmc);
    bench.ask(PMC, Operation::Interrupt { unique: call });
    bench.answered(PMC, &protocol::failed(call, Errno::EINTR));
    let release = bench.ask(PROFIL, Operation::Release { file: profil });
    bench.answered(PROFIL, &protocol::released(release));
    bench.nothing_more();
}

/// Both nodes share the limits.
#[test]
fn calls_of_one_user_to_both_nodes_are_limited() {
    let (mut bench, file) = Bench::opened(PMC);
    bench.user = 1000;
    for _ in 0..20 {
        bench.calls_pmc(file);
    }
    let of_one_user = bench.environment.inspections.len();
    assert!((1..20).contains(&of_one_user), "{of_one_user}");
    let profil = bench.open(PROFIL);
    bench.calls(profil);
    bench.nothing_more();
    assert_eq!(bench.environment.inspections.len(), of_one_user);
    bench.user = 1001;
    bench.calls_pmc(file);
    assert_eq!(bench.environment.inspections.len(), of_one_user + 1);
}
