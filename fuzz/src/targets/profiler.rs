//! A client of the host and the guest's own port with all of the profiler behind them: pcs, prf, profil, pmc, recorders, the control
//! device, the status and the lists. vCPUs are imitated, which answer when the input has them do so.

use std::sync::Arc;

use kvmprof_abi::control::CTL_PAUSE;
use kvmprof_abi::pcs::{PROF_ALL, PROF_LIST};
use kvmprof_abi::pmc::PMC_CALL;
use kvmprof_abi::prf::PRF_SETSTATE;
use kvmprof_abi::profil::{self, PROFIL_CALL};
use kvmprof_abi::recorder::{REC_START, STACK_KERNEL, STACK_USER};
use kvmprof_abi::wire::{Request, RequestFrame, VERSION, device};
use kvmprof_abi::{pcs, pmc};
use kvmprof_devices::endpoint::{Client, Endpoint, GuestAccess, HelloInfo};
use kvmprof_profiling::profiler::Profiler;
use kvmprof_profiling::profiler::testing::{VcpuEnd, profiler_without_threads};
use kvmprof_recording::QueueBudget;

use super::endpoint::{request, take_replies, ticks};
use super::wire;
use crate::input::{Input, block};

/// Steps of one input.
const MAX_STEPS: usize = 200;
const VCPUS: u16 = 2;
const HZ: u32 = 100;
/// Most frames of a stack.
const MAX_FRAMES: u8 = 16;
/// More than the number of the last device.
const DEVICES: u8 = 11;
/// A command of each device.
const FAMILIES: [u32; 6] = [
    PROF_LIST,
    PRF_SETSTATE,
    PROFIL_CALL,
    PMC_CALL,
    REC_START,
    CTL_PAUSE,
];

/// The clients: one of the host, and the guest.
const CLIENTS: [Client; 2] = [Client::Host, Client::Guest(GuestAccess::All)];

/// The end of `client`, whose bytes wait in `room`.
fn endpoint(client: Client, room: &Arc<QueueBudget>) -> Endpoint {
    let info = HelloInfo {
        vcpus: VCPUS.into(),
        hz: HZ,
    };
    Endpoint::within(client, info, room)
}

/// Has the vCPU answer what it was asked.
fn answer(vcpu: &VcpuEnd) {
    let control = &vcpu.shared.control;
    control.acknowledge(control.generation());
}

/// Every tick is in exactly one account, and the status can be written.
fn check(profiler: &Profiler) {
    let status = profiler.status();
    assert!(status.clock.ledger.balances(), "{:?}", status.clock);
    for consumer in &status.consumers {
        let ledger = consumer.ledger();
        assert!(ledger.balances(), "{}: {ledger:?}", consumer.name());
    }
    status.to_json().unwrap();
}

/// What clients, the guest and its vCPUs do, one after the other.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut profiler, mut vcpus) = profiler_without_threads(VCPUS, HZ, None);
    let room = profiler.room();
    let all_room = room.left();
    let mut endpoints = CLIENTS.map(|client| endpoint(client, &room));
    let mut time = 0;
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        // The guest's own port, or a client of the host.
        let number = usize::from(step & 0x80 != 0);
        let received = match step % 8 {
            0..=3 => Some(request(&mut input, DEVICES, &FAMILIES)),
            4 => Some(input.block().to_vec()),
            5 => {
                time += u64::from(input.u32());
                let mut ticks = ticks(&mut input);
                if let Some(sample) = &mut ticks.sample {
                    sample.time = time;
                }
                let frames: Vec<u64> = (0..input.u8() % MAX_FRAMES).map(|_| input.u64()).collect();
                vcpus[usize::from(ticks.vcpu)].ticks.send(&ticks, &frames);
                None
            }
            6 => {
                answer(&vcpus[number]);
                None
            }
            _ => {
                vcpus.iter().for_each(answer);
                take_replies(&mut endpoints[number]);
                None
            }
        };
        profiler.drain();
        for (index, one) in endpoints.iter_mut().enumerate() {
            one.begin_turn();
            let bytes = received.as_deref().filter(|_| index == number);
            let bytes = bytes.unwrap_or_default();
            let received = one.receive(bytes, &mut profiler);
            if received.and_then(|()| one.wake(&mut profiler)).is_err() {
                // As one that hangs up: another may come.
                one.close(&mut profiler);
                *one = endpoint(CLIENTS[index], &room);
            }
        }
        profiler.advance();
        check(&profiler);
    }
    profiler.end();
    vcpus.iter().for_each(answer);
    for one in &mut endpoints {
        one.close(&mut profiler);
    }
    profiler.advance();
    check(&profiler);
    assert!(!profiler.has_clients());
    drop(endpoints);
    assert_eq!(room.left(), all_room);
}

/// A frame as a block of the input, of the host's client.
fn send(tag: u32, request: Request<'_>) -> Vec<u8> {
    let frame = wire::request(&RequestFrame { tag, request });
    [&[4][..], &block(&frame), &[7]].concat()
}

/// What opens a device first, has it do something, and is sampled.
fn session(number: u16, requests: &[Request<'_>]) -> Vec<u8> {
    let hello = Request::Hello {
        lowest: VERSION,
        highest: VERSION,
    };
    let open = Request::Open {
        device: number,
        minor: 0,
        flags: 0,
    };
    let mut bytes = [send(1, hello), send(2, open)].concat();
    // Of the vCPU 0, in user mode, with two frames.
    let sample = [
        &[5, 9, 0, 0, 0, 16, 0, 7, 7][..],
        &0x40_1000_u64.to_le_bytes(),
        &[2],
        &0x40_1000_u64.to_le_bytes(),
        &0x40_2000_u64.to_le_bytes(),
    ]
    .concat();
    for (request, tag) in requests.iter().zip(3..) {
        bytes.extend(send(tag, *request));
        bytes.extend(sample.repeat(3));
    }
    bytes.push(7);
    bytes
}

/// A client of each device.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let ioctl = |command, argument, data| Request::Ioctl {
        handle: 1,
        command,
        argument,
        limit: 64,
        data,
    };
    let read = Request::Read {
        handle: 1,
        limit: 4096,
        flags: 0,
    };
    let close = Request::Close { handle: 1 };
    let profil = profil::Call {
        function: profil::Function::Pcsample,
        flags: profil::Call::KEEP | profil::Call::EVERY_TICK,
        pid: 7,
        ranges: 0,
        buffer: 0,
        size: 16,
        offset: 0,
        scale: 0,
        time: 0,
        program: [0; 16],
    }
    .encode();
    let pmc = pmc::Call::new(
        pmc::Function::Configure,
        7,
        i32::from(pmc::CounterId::Exits as u8),
    )
    .encode();
    let stacks = STACK_KERNEL | STACK_USER;
    vec![
        (
            "recorder",
            session(
                device::RECORDER,
                &[ioctl(REC_START, stacks, &[]), read, read, close],
            ),
        ),
        (
            "pcs",
            session(
                device::PCS,
                &[
                    ioctl(PROF_ALL, 0, &[]),
                    ioctl(pcs::PCS_FLUSH, 0, &[]),
                    read,
                    ioctl(pcs::PCS_STOP, 0, &[]),
                    close,
                ],
            ),
        ),
        (
            "profil",
            session(
                device::PROFIL,
                &[ioctl(PROFIL_CALL, 0, &profil), read, close],
            ),
        ),
        (
            "pmc",
            session(device::PMC, &[ioctl(PMC_CALL, 0, &pmc), read, close]),
        ),
        ("status", session(device::STATUS, &[read, close])),
        (
            "control",
            session(device::CONTROL, &[ioctl(CTL_PAUSE, 0, &[]), close]),
        ),
    ]
}
