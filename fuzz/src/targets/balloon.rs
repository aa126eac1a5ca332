//! The memory balloon: pages that the guest gives and takes back, its statistics, and free pages that it reports.

use kvmprof_devices::virtio::balloon::Balloon;
use vm_memory::GuestAddress;

use crate::driver::{Driver, MEMORY};
use crate::driver_steps::{self, STEPS, step};
use crate::input::Input;

/// What a driver and the host do, one after the other.
pub fn run(data: &[u8]) {
    let mut driver = Driver::new(Balloon::default());
    let mut input = Input::new(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let Driver { device, memory, .. } = &mut driver;
        match input.u8() % 8 {
            0 => device.set_target(input.u64()),
            1 => device.ask_for_statistics(memory),
            _ => step(&mut driver, &mut input),
        }
        let Driver { device, memory, .. } = &mut driver;
        device.serve(memory, &mut |address: GuestAddress, bytes| {
            MEMORY.saturating_sub(address.0).min(bytes)
        });
        device.take_interrupt();
        let _actual = device.device().actual();
        let _statistics = device.device().statistics();
    }
}

/// Pages given and taken back, statistics, reports.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let driver = |steps: Vec<u8>| [vec![2], steps].concat();
    let pages: Vec<u8> = [5, 6, 7, 9, u32::MAX]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    let statistic = [&4_u16.to_le_bytes()[..], &7_u64.to_le_bytes()].concat();
    let start = driver(driver_steps::start());
    vec![
        (
            "pages",
            [
                vec![0, 0, 0, 16, 0, 0, 0, 0, 0],
                start.clone(),
                driver(driver_steps::send(0, &pages)),
                driver(driver_steps::send(1, &pages)),
            ]
            .concat(),
        ),
        (
            "statistics",
            [
                start.clone(),
                driver(driver_steps::send(2, &statistic)),
                vec![1],
            ]
            .concat(),
        ),
        (
            "reports",
            [start, driver(driver_steps::provide(3, 0x4000))].concat(),
        ),
    ]
}
