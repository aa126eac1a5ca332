//! What a program that serves a shared folder answers, by the vhost-user protocol.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use kvmprof_devices::virtio::QueueLayout;
use kvmprof_devices::virtio::fs::{QUEUES, RunningQueues};
use kvmprof_machine::GuestMemory;
use kvmprof_machine::share::{Events, Session};
use vm_memory::{FileOffset, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

/// Bytes of guest memory.
const MEMORY: usize = 1 << 16;
/// Bytes of answers that are sent: they have to fit into the socket's buffer.
const MAX_ANSWERS: usize = 8 << 10;

/// Has a conversation in which the program says the bytes, and hangs up.
pub fn run(data: &[u8]) {
    let (ours, mut program) = UnixStream::pair().unwrap();
    let answers = &data[..data.len().min(MAX_ANSWERS)];
    program.write_all(answers).unwrap();
    program.shutdown(Shutdown::Write).unwrap();
    let Ok(mut session) = Session::over(ours) else {
        return;
    };
    session.queue_features();
    let file = tempfile::tempfile().unwrap();
    file.set_len(MEMORY as u64).unwrap();
    let region = (GuestAddress(0), MEMORY, Some(FileOffset::new(file, 0)));
    let memory = GuestMemory::from_ranges_with_files([region]).unwrap();
    let event = || EventFd::new(0).unwrap();
    let notifications: [EventFd; QUEUES] = std::array::from_fn(|_| event());
    let interrupt = event();
    let events = Events {
        notifications: std::array::from_fn(|queue| &notifications[queue]),
        interrupt: &interrupt,
    };
    let layout = QueueLayout {
        size: 16,
        descriptors: 0x1000,
        available: 0x2000,
        used: 0x3000,
    };
    let queues = RunningQueues {
        resets: 0,
        features: session.queue_features(),
        queues: vec![Some(layout); QUEUES],
    };
    if session.start(&queues, &memory, &events).is_ok() {
        let _refused = session.stop(&queues);
    }
    session.close();
}

/// An answer of the program's: the request's number, flags of a reply by version 1, and the payload.
fn answer(request: u32, content: &[u8]) -> Vec<u8> {
    const VERSION: u32 = 1;
    const REPLY: u32 = 1 << 2;
    let length = u32::try_from(content.len()).unwrap();
    [request, VERSION | REPLY, length]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .chain(content.iter().copied())
        .collect()
}

/// A program that has what virtiofsd has, one that acknowledges each request, and one that can too little.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    /// Requests by their numbers in the protocol.
    const GET_FEATURES: u32 = 1;
    const SET_MEM_TABLE: u32 = 5;
    const GET_VRING_BASE: u32 = 11;
    const GET_PROTOCOL_FEATURES: u32 = 15;
    /// VIRTIO_F_VERSION_1, and VHOST_USER_F_PROTOCOL_FEATURES.
    const FEATURES: u64 = 1 << 32 | 1 << 30;
    /// VHOST_USER_PROTOCOL_F_REPLY_ACK.
    const REPLY_ACK: u64 = 1 << 3;
    let number = |request, number: u64| answer(request, &number.to_le_bytes());
    let base = |queue: u8| answer(GET_VRING_BASE, &[queue, 0, 0, 0, 9, 0, 0, 0]);
    let plain = [
        number(GET_FEATURES, FEATURES),
        number(GET_PROTOCOL_FEATURES, 0),
        base(0),
        base(1),
    ];
    // The first that is acknowledged is the one after the features were agreed on.
    let mut acknowledged = vec![
        number(GET_FEATURES, FEATURES),
        number(GET_PROTOCOL_FEATURES, REPLY_ACK),
    ];
    for request in [2, SET_MEM_TABLE, 8, 10, 9, 13, 12, 18, 8, 10, 9, 13, 12, 18] {
        acknowledged.push(number(request, 0));
    }
    acknowledged.extend([base(0), base(1)]);
    vec![
        ("plain", plain.concat()),
        ("acknowledged", acknowledged.concat()),
        ("old", number(GET_FEATURES, 0)),
    ]
}
