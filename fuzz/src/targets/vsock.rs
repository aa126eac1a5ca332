//! The socket device: packets of the guest, connections of the host, and their ends.

use kvmprof_devices::virtio::vsock::{Operation, Readiness};

use crate::driver::Driver;
use crate::driver_steps::{self, STEPS, step};
use crate::input::Input;

#[path = "../../../devices/tests/virtio/vsock_bench.rs"]
#[expect(
    dead_code,
    reason = "the device's own tests' bench, of which this uses a part"
)]
mod bench;

use bench::{CID, Ends, LISTENER, packet};
use kvmprof_devices::virtio::vsock::{Header, Vsock};

/// What a driver and the host do, one after the other.
pub fn run(data: &[u8]) {
    let mut driver = Driver::new(Vsock::new(CID));
    let mut host = Ends::default();
    let mut input = Input::new(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 8 {
            0 => {
                let name = u64::from(input.u8());
                let flags = input.u8();
                if let Some(end) = host.by_name.get(&name) {
                    let mut end = end.borrow_mut();
                    end.coming.extend(input.block());
                    end.sent_all = flags & 1 != 0;
                    end.deaf = flags & 2 != 0;
                    end.room = usize::from(input.u16());
                }
                let ready = Readiness {
                    input: flags & 4 != 0,
                    room: flags & 8 != 0,
                    hung_up: flags & 16 != 0,
                };
                driver.device.ready(name, ready);
            }
            1 => {
                let pipe = host.add();
                driver.device.accept(pipe, input.u32());
            }
            _ => step(&mut driver, &mut input),
        }
        let Driver { device, memory, .. } = &mut driver;
        device.serve(memory, &mut host);
        device.take_interrupt();
    }
}

/// Connections from either side.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let driver = |steps: Vec<u8>| [vec![2], steps].concat();
    let say = |operation, flags, data: &[u8]| {
        let length = u32::try_from(data.len()).unwrap();
        let header = Header {
            flags,
            length,
            ..packet((9, LISTENER), operation)
        };
        driver(driver_steps::send(
            1,
            &[&header.encode()[..], data].concat(),
        ))
    };
    let start = [
        driver(driver_steps::start()),
        driver(driver_steps::provide(0, 4096).repeat(1)).repeat(8),
    ]
    .concat();
    // End 1 of the host has something to say.
    let said = [0, 1, 12, 5, 0, b'h', b'e', b'l', b'l', b'o', 0xff, 0xff].to_vec();
    let connected = [
        start.clone(),
        say(Operation::Request, 0, &[]),
        say(Operation::Data, 0, b"hello"),
        said,
        say(Operation::CreditUpdate, 0, &[]),
        say(Operation::Shutdown, 3, &[]),
        say(Operation::Reset, 0, &[]),
    ];
    let accepted = [start, vec![1, 9, 0, 0, 0], say(Operation::Response, 0, &[])];
    vec![
        ("connect", connected.concat()),
        ("accept", accepted.concat()),
    ]
}
