use kvmprof_recording::StackParts;

use super::*;
use crate::clock::ClockSetting;

/// A consumer with these needs.
#[derive(Default)]
struct Counter {
    needs: ClockNeeds,
}

impl Consumer for Counter {
    fn needs(&self) -> ClockNeeds {
        self.needs
    }

    fn take(&mut self, _ticks: &Ticks, _frames: &[u64]) {}

    fn end(&mut self) {}

    fn status(&self) -> Vec<ConsumerStatus> {
        Vec::new()
    }
}

fn consumers(all: impl IntoIterator<Item = ClockNeeds>) -> Consumers {
    let profiling = ProfilingConfig {
        hz: 250,
        ..ProfilingConfig::default()
    };
    let (on_vcpus, budget) = (OnVcpus::new(2), QueueBudget::unlimited());
    let mut consumers = Consumers::new(2, &profiling, Some(on_vcpus), budget);
    for needs in all {
        consumers.add(Box::new(Counter { needs }));
    }
    consumers
}

#[test]
fn without_consumers_the_clocks_are_stopped() {
    // The needs of an inactive consumer don't count.
    let idle = ClockNeeds {
        process_group: true,
        processes: true,
        ..ClockNeeds::default()
    };
    let consumers = consumers([idle]);
    assert_eq!(consumers.needs().setting(), ClockSetting::default());
    assert!(!consumers.needs().start_guest() && !consumers.needs().others_count(0));
}

#[test]
fn the_setting_serves_all_consumers() {
    let stacks = |kernel, user| StackParts { kernel, user };
    let first = ClockNeeds {
        source: TickSource::clock(250),
        process_group: true,
        stacks: stacks(true, false),
        ..ClockNeeds::default()
    };
    let second = ClockNeeds {
        source: TickSource::clock(250),
        starts_guest: true,
        stacks: stacks(false, true),
        processes: true,
        exits: true,
        ..ClockNeeds::default()
    };
    let all = consumers([first, second]);
    let expected = ClockSetting {
        source: TickSource::clock(250),
        process_group: true,
        stacks: stacks(true, true),
        processes: true,
        exits: true,
        paused: false,
    };
    assert_eq!(all.needs().setting(), expected);
    assert!(all.needs().start_guest());
    // The indexes follow those of the seven consumers that always exist.
    assert!(all.needs().others_count(7) && all.needs().others_count(8));
    let alone = consumers([first]);
    assert!(!alone.needs().others_count(7) && !alone.needs().start_guest());
    assert_eq!(alone.needs().setting().stacks, stacks(true, false));
}

/// The consumer has an event as its source, as pmc can, whether other consumers count or not.
#[test]
fn an_event_is_the_source_for_all_consumers() {
    let event = "exits:10".parse().map(TickSource::Event).unwrap();
    let needs = ClockNeeds {
        source: Some(event),
        ..ClockNeeds::default()
    };
    let alone = consumers([needs]);
    let expected = ClockSetting {
        source: Some(event),
        ..ClockSetting::default()
    };
    assert_eq!(alone.needs().setting(), expected);
    assert_eq!(alone.needs().source(), Some(event));
    assert!(!alone.needs().start_guest() && !alone.needs().others_count(7));
}

/// The guest has used the clock of a client of the host that has disconnected.
#[test]
fn the_guest_alone_has_no_faster_clock_than_the_host_allows() {
    let joined = ClockNeeds {
        source: TickSource::clock(1000),
        gives_way: true,
        ..ClockNeeds::default()
    };
    assert_eq!(consumers([joined]).needs().source(), TickSource::clock(250));
}

#[test]
fn devices_are_found_by_their_numbers() {
    use kvmprof_abi::wire::device;

    let mut consumers = consumers([]);
    let (own, shared) = ([device::PCS, device::PRF], [device::PROFIL, device::PMC]);
    for number in [&own[..], &shared, &[device::RECORDER]].concat() {
        let index = consumers.with_device(number, Side::Host).unwrap();
        assert!(consumers.device(index).is_some());
    }
    assert_eq!(consumers.with_device(device::STATUS, Side::Host), None);
    let of = |number, client| consumers.with_device(number, client);
    for own in own {
        assert_ne!(of(own, Side::Guest), of(own, Side::Host));
    }
    for shared in shared {
        assert_eq!(of(shared, Side::Guest), of(shared, Side::Host));
    }
}

/// The order is: clients of the host, clients of the host that yield, the guest.
#[test]
fn consumers_that_yield_to_the_host_precede_the_guest() {
    let counts = |hz, gives_way, yields| ClockNeeds {
        source: TickSource::clock(hz),
        gives_way,
        yields,
        ..ClockNeeds::default()
    };
    let guest = counts(50, true, false);
    let yielding = counts(19, false, true);
    let host = counts(1000, false, false);
    // The source of all, that of the host, and whether another consumer binds each.
    for (all, source, of_host, is_bound) in [
        (&[guest][..], 50, None, [true, false]),
        (&[guest, yielding], 19, None, [true, false]),
        (&[guest, host], 1000, Some(1000), [true, true]),
        (&[guest, yielding, host], 1000, Some(1000), [true, true]),
    ] {
        let consumers = consumers(all.iter().copied());
        let needs = consumers.needs();
        assert_eq!(needs.source(), TickSource::clock(source));
        assert_eq!(needs.source_for(Side::Guest), TickSource::clock(source));
        assert_eq!(
            needs.source_for(Side::Host),
            of_host.and_then(TickSource::clock)
        );
        let bound = [Side::Guest, Side::Host].map(|side| needs.others_bind(0, side));
        assert_eq!(bound, is_bound, "{source}");
        assert!(needs.others_count(0));
    }
}
