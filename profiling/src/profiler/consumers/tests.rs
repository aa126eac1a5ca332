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
    let mut consumers = Consumers::new(
        2,
        &profiling,
        Some(OnVcpus::new(2)),
        QueueBudget::unlimited(),
    );
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

#[test]
fn the_hosts_source_takes_precedence() {
    let counts = |hz, gives_way| ClockNeeds {
        source: TickSource::clock(hz),
        gives_way,
        ..ClockNeeds::default()
    };
    let alone = consumers([counts(50, true)]);
    assert_eq!(alone.needs().source(), TickSource::clock(50));
    assert_eq!(alone.needs().source_for(Side::Guest), TickSource::clock(50));
    assert_eq!(alone.needs().source_for(Side::Host), None);
    assert!(alone.needs().others_bind(0, Side::Guest) && !alone.needs().others_bind(0, Side::Host));
    let both = consumers([counts(50, true), counts(1000, false)]);
    assert_eq!(both.needs().source(), TickSource::clock(1000));
    assert_eq!(
        both.needs().source_for(Side::Guest),
        TickSource::clock(1000)
    );
    assert!(both.needs().others_bind(0, Side::Host));
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
    for number in [
        device::PCS,
        device::PRF,
        device::RECORDER,
        device::PROFIL,
        device::PMC,
    ] {
        let index = consumers.with_device(number, Side::Host).unwrap();
        assert!(consumers.device(index).is_some());
    }
    assert_eq!(consumers.with_device(device::STATUS, Side::Host), None);
    let of = |number, client| consumers.with_device(number, client);
    for own in [device::PCS, device::PRF] {
        assert_ne!(of(own, Side::Guest), of(own, Side::Host));
    }
    for shared in [device::PROFIL, device::PMC] {
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
    let (guest, yielding, host) = (
        counts(50, true, false),
        counts(19, false, true),
        counts(1000, false, false),
    );
    let two = consumers([guest, yielding]);
    assert_eq!(two.needs().source(), TickSource::clock(19));
    assert_eq!(two.needs().source_for(Side::Host), None);
    assert_eq!(two.needs().source_for(Side::Guest), TickSource::clock(19));
    assert!(two.needs().others_bind(0, Side::Guest) && !two.needs().others_bind(0, Side::Host));
    assert!(two.needs().others_count(0));
    let all = consumers([guest, yielding, host]);
    assert_eq!(all.needs().source(), TickSource::clock(1000));
    assert_eq!(all.needs().source_for(Side::Host), TickSource::clock(1000));
}
