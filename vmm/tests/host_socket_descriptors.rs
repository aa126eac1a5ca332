//! The host socket when the process has no descriptor left. Alone in its program, because the
//! limit is the whole process's.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "host_socket/bench.rs"]
#[expect(dead_code, reason = "shared with the tests that use the rest")]
mod bench;

use std::fs::File;

use kvmprof_abi::wire::device;
use kvmprof_client::{ClientError, Connection};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use bench::Bench;

#[test]
fn client_is_turned_away_and_the_loop_goes_on() {
    let limit = Rlimit {
        current: Some(128),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let bench = Bench::start();
    let witness = bench.connect();
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }
    // One for the client's own end; none for the server's.
    all.pop();
    let error = Connection::connect(bench.path()).err().unwrap();
    assert!(matches!(error, ClientError::TurnedAway { .. }), "{error}");
    witness.snapshot(device::STATUS, 1000).unwrap();
    drop(all);
    bench.connect().snapshot(device::STATUS, 1000).unwrap();
}
