//! Requests that a device carries out, which may take it more than one call.

use std::task::Poll;

use kvmprof_abi::errno::Errno;

use super::{Backend, Handle, IoctlReply};

/// What an open device is to a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenDevice {
    pub handle: Handle,
    pub nonblocking: bool,
}

/// A request, owned: it outlives the frame that it came in.
#[derive(Debug)]
pub(super) enum Action {
    Open(OpenDevice),
    Ioctl {
        handle: Handle,
        command: u32,
        argument: i64,
        data: Vec<u8>,
        /// Bytes of the result that the client has room for.
        limit: usize,
    },
    Close(Handle),
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Outcome {
    Open(Result<OpenDevice, Errno>),
    Ioctl(Result<IoctlReply, Errno>),
    Close,
}

impl Action {
    /// Has the device carry it out, or go on with that.
    pub fn carry_out(&self, backend: &mut dyn Backend) -> Poll<Outcome> {
        match self {
            Self::Open(device) => {
                let opened = backend.opened(device.handle);
                opened.map(|opened| Outcome::Open(opened.map(|()| *device)))
            }
            Self::Ioctl {
                handle,
                command,
                argument,
                data,
                limit,
            } => {
                let reply = backend.ioctl(*handle, *command, *argument, data);
                reply.map(|reply| {
                    Outcome::Ioctl(reply.map(|mut reply| {
                        // The command has been carried out: what the client has no room for is cut off.
                        reply.data.truncate(*limit);
                        reply
                    }))
                })
            }
            Self::Close(handle) => backend.close(*handle).map(|()| Outcome::Close),
        }
    }

    /// The device that is being opened.
    pub fn opening(&self) -> Option<OpenDevice> {
        match self {
            Self::Open(device) => Some(*device),
            Self::Ioctl { .. } | Self::Close(_) => None,
        }
    }
}
