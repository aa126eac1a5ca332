//! A hostile driver at the level of virtio's queues, which attacks one port while another one, and the
//! host's socket, have to keep working.

use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_test_guest::{AttackResult, AttackResults, Outcome, Victim};
use kvmprof_tests::{Accounts, Boot, Clock, Machine, Pcs, on_kvm, until};

/// Waits for the end of all attacks, and is a client on the host meanwhile.
fn watch(machine: &Machine) -> AttackResults {
    let witness = machine.connect();
    let mut over = 0;
    loop {
        let results = until("another attack is over", || {
            Accounts::of(&witness).check();
            let results = machine.attacks();
            (results.finished || results.over > over).then_some(results)
        });
        if results.finished {
            return results;
        }
        over = results.over;
    }
}

/// The fault in the outcome of an attack, if any.
fn complaint(attack: &AttackResult) -> Option<&'static str> {
    if attack.answer < 0 {
        return Some("the attack itself has failed");
    }
    let during_matters = !attack.costs_device && attack.during != Outcome::NotTried;
    if attack.after != Outcome::Done {
        Some("the well-behaved port doesn't work any more")
    } else if during_matters && attack.during != Outcome::Done {
        Some("the well-behaved port took harm")
    } else if attack.closes_port && !attack.closed {
        Some("the host hasn't closed the attacker's port")
    } else if attack.needs_notice && !attack.noticed() {
        Some("the host hasn't noticed the attack")
    } else {
        None
    }
}

/// The expected results of some attacks.
const ANSWERS: &[(&str, i32)] = &[
    ("requests without an end", 0),
    ("queue changed from elsewhere", 0),
    ("notifications without an end", 0),
    ("port closed while reading", 0),
    ("reset while reading", 0),
    ("queues chosen that aren't there", 0),
    ("features beyond bit 63", 0),
];

fn check_answers(results: &AttackResults) {
    for (name, answer) in ANSWERS {
        let mut attacks = results.attacks.iter();
        let attack = attacks.find(|attack| attack.name == *name).unwrap();
        assert_eq!(attack.answer, *answer, "{attack:?}");
    }
}

/// The host has counted every attack that it had to notice, and none of them against the well-behaved port.
fn check_counts(machine: &Machine, results: &AttackResults) {
    let virtio = machine.status().machine.virtio.unwrap();
    println!("{virtio:?}");
    let faults = |port: usize| {
        let port = &virtio.ports[port];
        (port.queue_faults, port.protocol_faults)
    };
    let (of_queues, of_protocol) = faults(1);
    let noticed = |on: fn(&AttackResult) -> bool| {
        let noticed = results.attacks.iter().filter(|attack| on(attack));
        u64::try_from(noticed.count()).unwrap()
    };
    let chains = noticed(|one| one.needs_notice && one.closed);
    let frames = noticed(|one| one.closes_port);
    let others = noticed(|one| one.needs_notice && !one.closed);
    assert!(of_queues + of_protocol >= chains + frames, "{virtio:?}");
    assert!(of_protocol >= frames, "{virtio:?}");
    let of_device = virtio.control_faults + virtio.refused_queues;
    assert!(of_device >= others, "{virtio:?}");
    assert!(virtio.resets >= u64::from(results.over));
    assert_eq!(faults(0), (0, 0), "{virtio:?}");
}

/// The device, the other port, the machine and its clients on the host keep working after every attack of a
/// driver on its device.
#[test]
fn a_hostile_driver_harms_only_its_own_port() {
    on_kvm(|| {
        let boot = Boot::Test("workload=hostile-queues");
        let machine = Machine::start_with_ports(boot, 2, Clock::at(1000), GuestAccess::All);
        let results = watch(&machine);
        assert_eq!(results.first, Outcome::Done);
        assert_eq!(usize::try_from(results.over), Ok(results.attacks.len()));
        let mut complaints = 0;
        for (number, attack) in results.attacks.iter().enumerate() {
            let complaint = complaint(attack);
            complaints += u32::from(complaint.is_some());
            println!("{number:3} {}: {attack:?}", complaint.unwrap_or("survived"));
        }
        for victim in [
            Victim::None,
            Victim::Transmit,
            Victim::Receive,
            Victim::ControlTransmit,
            Victim::ControlReceive,
        ] {
            let tried = results.attacks.iter().filter(|one| one.victim == victim);
            let tried = tried.count();
            println!("{victim:?}: {tried} attacks");
            assert!(tried > 40, "{victim:?}");
        }
        assert_eq!(complaints, 0);
        check_answers(&results);
        check_counts(&machine, &results);

        // The guest had pcs open when it reset the device for the last time.
        let mut pcs = until("pcs is free", || Pcs::open(machine.connect()).ok());
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(50);
        pcs.stop();
        machine.stop();
    });
}
