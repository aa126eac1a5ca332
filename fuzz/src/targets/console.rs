//! The virtio-mmio transport, its queues, and the console with `hvc0` and ports of the wire protocol: what a driver writes to
//! registers and to memory.

use std::sync::{Arc, LazyLock};

use kvmprof_devices::endpoint::{Client, GuestAccess, HelloInfo};
use kvmprof_devices::virtio::console::{Console, EndpointPort, Port};
use kvmprof_machine::console::{ConsoleOutput, HvcConsole, InputTarget};

use super::endpoint::Devices;
use crate::driver::Driver;
use crate::driver_steps::{self, STEPS, step};
use crate::input::Input;

/// The console, with a thread of its own, which throws away what the guest says. It is the same for all inputs.
static HVC: LazyLock<Arc<HvcConsole>> =
    LazyLock::new(|| Arc::new(HvcConsole::new(ConsoleOutput::discard()).unwrap()));

/// What a driver does, one after the other. A reset mends everything.
pub fn run(data: &[u8]) {
    let info = HelloInfo { vcpus: 2, hz: 100 };
    let port = |number| -> (String, Box<dyn Port>) {
        (
            format!("kvmprof.{number}"),
            Box::new(EndpointPort::new(Client::Guest(GuestAccess::All), info)),
        )
    };
    let mut driver = Driver::new(Console::new(Some(HVC.port()), vec![port(0), port(1)]));
    let mut devices = Devices::new();
    let mut input = Input::new(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut driver, &mut input);
        // A user types.
        HVC.enqueue(b"x", false);
        let Driver { device, memory, .. } = &mut driver;
        device.serve(memory, &mut devices);
        device.take_interrupt();
        devices.check();
    }
    driver.start(0);
    let Driver { device, memory, .. } = &mut driver;
    let ends = (0..10_000).any(|_| !device.serve(memory, &mut devices));
    assert!(ends, "it never comes to rest");
    device.end(&mut devices);
    assert!(devices.is_closed());
}

/// Drivers that set everything up, say hello, and break what they have.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let control = |port: u8, event: u8| driver_steps::send(3, &[port, 0, 0, 0, event, 0, 1, 0]);
    let hello = devices_hello();
    let begin = [
        driver_steps::start(),
        driver_steps::provide(2, 64).repeat(12),
        control(0, 0),
        control(0, 3),
        control(0, 6),
        control(1, 3),
        control(1, 6),
        driver_steps::provide(4, 1024).repeat(4),
        driver_steps::send(5, &hello),
    ];
    let begin = begin.concat();
    let broken = [
        begin.clone(),
        driver_steps::describe(5, 0, 0x20_0000, 0xffff_ffff, 1, 0),
        driver_steps::offer(5, 0),
        driver_steps::start(),
        driver_steps::send(1, b"text"),
    ];
    vec![("hello", begin), ("loop", broken.concat())]
}

fn devices_hello() -> Vec<u8> {
    super::wire::seeds().swap_remove(0).1
}
