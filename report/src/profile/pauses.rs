//! When clients had paused the guest: it ran nothing then, and had no ticks.

use std::time::Duration;

use kvmprof_recording::file::PauseInfo;

use super::Profile;

/// A pause of the guest. Times are from the recording's begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) begin: Duration,
    /// `None` if it lasted until the recording's end.
    pub(crate) end: Option<Duration>,
}

/// The pauses of the guest of one recording.
pub(crate) fn pauses(recording: &Profile) -> Vec<Pause> {
    let contents = &recording.contents;
    in_order(contents.info.began_monotonic_ns, &contents.pauses)
}

/// The pauses between these changes, of a recording that began at `began` ns.
fn in_order(began: u64, changes: &[PauseInfo]) -> Vec<Pause> {
    let mut pauses: Vec<Pause> = Vec::new();
    // A recording that begins in a pause has only its end.
    let first = changes.first().filter(|first| !first.paused);
    let mut begun = first.map(|_| Duration::ZERO);
    for change in changes {
        let time = Duration::from_nanos(change.time.saturating_sub(began));
        match (change.paused, begun) {
            (true, None) => begun = Some(time),
            (false, Some(begin)) => {
                pauses.push(Pause {
                    begin,
                    end: Some(time),
                });
                begun = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }
    pauses.extend(begun.map(|begin| Pause { begin, end: None }));
    pauses
}

/// How often, when first and for how long the guest of one recording was paused; `None` if it wasn't.
pub(crate) fn pauses_in_words(recording: &Profile) -> Option<String> {
    in_words(&pauses(recording))
}

fn in_words(pauses: &[Pause]) -> Option<String> {
    let first = pauses.first()?.begin.as_secs_f64();
    let often = match pauses.len() {
        1 => "once".to_owned(),
        count => format!("{count} times, first"),
    };
    let over = pauses
        .iter()
        .filter_map(|pause| Some((pause.begin, pause.end?)));
    let lengths = over.map(|(begin, end)| end.saturating_sub(begin));
    let whole = lengths.reduce(Duration::saturating_add);
    let whole = whole.map(|whole| format!("for {:.3} s", whole.as_secs_f64()));
    let is_open = pauses.iter().any(|pause| pause.end.is_none());
    let open = is_open.then(|| "until the recording's end".to_owned());
    let long: Vec<String> = whole.into_iter().chain(open).collect();
    Some(format!(
        "The guest was paused {often} {first:.3} s from its begin, {}: it has no ticks then",
        long.join(" and ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(all: &[(u64, bool)]) -> Vec<PauseInfo> {
        let change = |(time, paused): &(u64, bool)| PauseInfo {
            time: *time,
            paused: *paused,
        };
        all.iter().map(change).collect()
    }

    fn pause(begin: u64, end: Option<u64>) -> Pause {
        Pause {
            begin: Duration::from_millis(begin),
            end: end.map(Duration::from_millis),
        }
    }

    #[test]
    fn pauses_are_between_changes() {
        const MS: u64 = 1_000_000;
        let of = |all: &[(u64, bool)]| in_order(100 * MS, &changes(all));
        assert_eq!(of(&[]), []);
        let two = [(101, true), (103, false), (110, true)].map(|(ms, paused)| (ms * MS, paused));
        assert_eq!(of(&two), [pause(1, Some(3)), pause(10, None)]);
        // It was paused before it was recorded.
        assert_eq!(of(&[(104 * MS, false)]), [pause(0, Some(4))]);
        // Changes that can't be: nothing is made up.
        let odd = [
            (101, true),
            (102, true),
            (103, false),
            (105, false),
            (1, true),
        ];
        let odd = odd.map(|(ms, paused)| (ms * MS, paused));
        assert_eq!(of(&odd), [pause(1, Some(3)), pause(0, None)]);
    }

    #[test]
    fn pauses_are_said_in_words() {
        assert_eq!(in_words(&[]), None);
        let said = |pauses: &[Pause]| in_words(pauses).unwrap();
        assert_eq!(
            said(&[pause(500, Some(2000))]),
            "The guest was paused once 0.500 s from its begin, for 1.500 s: it has no ticks then"
        );
        assert_eq!(
            said(&[pause(0, Some(2)), pause(10, None)]),
            "The guest was paused 2 times, first 0.000 s from its begin, for 0.002 s and until the recording's end: \
             it has no ticks then"
        );
    }
}
