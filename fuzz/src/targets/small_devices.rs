//! The entropy device, and the file system device without a server of its queues.

use kvmprof_devices::virtio::entropy::Entropy;
use kvmprof_devices::virtio::fs::FileSystem;

use crate::driver::Driver;
use crate::driver_steps::{self, STEPS, step};
use crate::input::Input;

/// The first byte chooses the device.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.u8().is_multiple_of(2) {
        entropy(input);
    } else {
        file_system(input);
    }
}

fn entropy(mut input: Input<'_>) {
    let mut driver = Driver::new(Entropy::default());
    let mut given = 0_usize;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut driver, &mut input);
        let Driver { device, memory, .. } = &mut driver;
        device.serve(memory, &mut |bytes| {
            given += bytes.len();
            if given % 5 == 4 {
                return Err(std::io::Error::other("none"));
            }
            bytes.fill(0xa5);
            Ok(())
        });
        device.take_interrupt();
    }
}

fn file_system(mut input: Input<'_>) {
    let mut driver = Driver::new(FileSystem::new("tag", 0));
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let kind = input.u8();
        let Driver { device, memory, .. } = &mut driver;
        match kind % 4 {
            0 => device.begin_to_refuse(memory),
            1 => {
                device.refuse_requests(memory);
            }
            _ => step(&mut driver, &mut input),
        }
    }
}

/// A request of each.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let driver = |steps: Vec<u8>| [vec![2], steps].concat();
    let entropy = [
        vec![0],
        driver_steps::start(),
        driver_steps::provide(0, 64),
        driver_steps::provide(0, 1 << 20),
    ];
    let address = Driver::<FileSystem>::buffer(1, 0);
    let requests = [
        vec![1],
        driver(driver_steps::start()),
        driver(driver_steps::send(1, &[0; 40])),
        driver(driver_steps::describe(1, 0, address, 40, 1, 1)),
        driver(driver_steps::describe(1, 1, address + 0x800, 16, 2, 0)),
        vec![0, 1, 1, 1],
    ];
    vec![
        ("entropy", entropy.concat()),
        ("file-system", requests.concat()),
    ]
}
