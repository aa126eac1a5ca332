//! The host's date (CLOCK_REALTIME) jumps while a guest is recorded: ticks and their times are those of a clock that doesn't (CLOCK_MONOTONIC).

use kvmprof_recording::Sample;
use kvmprof_recording::file::Contents;
use kvmprof_tests::linux::Finished;

use super::run;

/// A recording's time, in ns, and its rate, which is the default.
const LENGTH: u64 = 5_000_000_000;
const HZ: u64 = 100;
/// 6 May 2031, 07:08:09, in ns since 1970.
const DATE: u64 = 1_935_817_689_000_000_000;

struct Recorded {
    contents: Contents,
    samples: Vec<Sample>,
    /// How long it took, in ns.
    took: u64,
}

fn recorded(run: &Finished, name: &str) -> Recorded {
    let (contents, samples) = run.recording(&format!("{name}.kvmprof"));
    let took: u64 = run.text(&format!("{name}.took")).trim().parse().unwrap();
    println!(
        "{name}: {:?}, {took} hundredths of a second",
        contents.account
    );
    Recorded {
        contents,
        samples: samples.into_iter().map(|(sample, _)| sample).collect(),
        took: took * 10_000_000,
    }
}

#[test]
fn steps_of_the_hosts_date_change_neither_ticks_nor_times() {
    let run = run();
    let steps: u64 = run.text("steps").trim().parse().unwrap();
    assert!(steps >= 20, "{steps}");
    let all = ["quiet", "steps"].map(|name| recorded(&run, name));
    for recorded in &all {
        let account = recorded.contents.account;
        assert_eq!(recorded.contents.closed, Some(account));
        assert!(account.balances(), "{account:?}");
        // It ends when its time is over, whatever date it is then; a tick for each period, neither more nor fewer.
        assert!(recorded.took >= LENGTH, "{}", recorded.took);
        let expected = LENGTH * HZ / 1_000_000_000;
        let most = recorded.took * HZ / 1_000_000_000;
        let range = expected * 9 / 10..=most + HZ / 10;
        assert!(range.contains(&account.ticks), "{account:?}, {most}");
        let begin = recorded.contents.info.began_monotonic_ns;
        let times: Vec<u64> = recorded.samples.iter().map(|sample| sample.time).collect();
        assert!(times.len() > 50, "{}", times.len());
        assert!(times.is_sorted(), "{times:?}");
        assert!(
            times
                .iter()
                .all(|time| (begin..begin + recorded.took).contains(time))
        );
    }
    let [quiet, _] = all;
    let began = quiet.contents.info.began_ns;
    assert!((DATE..DATE + 600_000_000_000).contains(&began), "{began}");
}
