//! Control of a Linux guest: its power button, pauses that its watchdog doesn't notice, and resets.

use super::run;

#[test]
fn sigterm_has_a_guest_power_off_in_order() {
    let run = run();
    assert_eq!(run.status("signal"), 0);
    assert!(run.text("signal.console").contains("pressed"));
    assert_eq!(run.text("signal.stderr").matches("power button").count(), 1);
}

#[test]
fn a_second_sigterm_ends_a_guest_that_does_not_react() {
    let run = run();
    assert_eq!(run.status("idle"), 0);
    let said = run.text("idle.stderr");
    assert!(
        said.contains("power button") && !said.contains("by force"),
        "{said}"
    );
}

#[test]
fn sigterm_ends_a_guest_without_a_driver_for_the_button() {
    let run = run();
    assert_eq!(
        (run.status("deaf"), run.text("deaf.stderr")),
        (0, String::new())
    );
    assert!(!run.text("deaf.console").contains("pressed"));
}

#[test]
fn a_client_presses_the_button() {
    let run = run();
    assert_eq!(
        (run.status("control"), run.text("control.stderr")),
        (0, String::new())
    );
    assert!(run.text("control.console").contains("pressed"));
}

#[test]
fn a_pause_makes_no_ticks_and_no_lockups() {
    let run = run();
    let [paused, still] = ["paused", "still"].map(|name| run.status_document(name));
    assert_eq!(paused.clock.ledger, still.clock.ledger);
    assert!(still.machine.paused);
    let console = run.text("control.console");
    assert!(console.contains("lockups 0"), "{console}");
}

/// After each reset the kernel is searched again, and the recording names its functions.
#[test]
fn a_recording_continues_over_resets() {
    let run = run();
    let (contents, samples) = run.recording("control.kvmprof");
    assert_eq!(contents.closed, Some(contents.account));
    assert_eq!(contents.resets.len(), 2);
    assert_eq!(run.status_document("last.placement").machine.resets, 2);
    let (_, slide) = run.placement("last.placement");
    assert_eq!(contents.kernel.unwrap().slide, slide.unwrap());
    let begins = [0]
        .into_iter()
        .chain(contents.resets.iter().map(|reset| reset.time));
    for begin in begins {
        let (_, first) = samples
            .iter()
            .map(|(sample, _)| (sample.time, sample))
            .find(|(time, sample)| *time > begin && sample.pid > 0)
            .unwrap();
        assert!(first.time > begin);
    }
    let last = contents.resets[1].time;
    let named = samples.iter().filter(|(sample, _)| sample.time > last);
    let busy = named.filter(|(sample, _)| sample.comm.starts_with(b"init"));
    assert!(busy.count() > 20);
}
