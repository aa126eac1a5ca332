//! Requests to a device that may need more than one call.

use std::task::Poll;

use kvmprof_abi::errno::Errno;

use super::{Backend, Handle, IoctlReply};

/// An open device of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenDevice {
    pub handle: Handle,
    pub nonblocking: bool,
    /// Whether each read begins at the start of the data. Such a read can't be shortened, because the client would take the part for the whole.
    pub reads_from_start: bool,
}

/// A request with its data, which outlives the frame that it came in.
#[derive(Debug)]
pub(super) enum Action {
    Open(OpenDevice),
    Ioctl {
        handle: Handle,
        command: u32,
        argument: i64,
        data: Vec<u8>,
        /// Maximum number of bytes of the result that the client accepts.
        limit: usize,
    },
    Close(Handle),
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    Open(Result<OpenDevice, Errno>),
    Ioctl(Result<IoctlReply, Errno>),
    Close,
}

impl Action {
    /// Starts or continues the request.
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
                        // The command is done: the client doesn't accept more bytes than this.
                        reply.data.truncate(*limit);
                        reply
                    }))
                })
            }
            Self::Close(handle) => backend.close(*handle).map(|()| Outcome::Close),
        }
    }

    /// The device that is being opened, if the request opens one.
    pub fn opening(&self) -> Option<OpenDevice> {
        match self {
            Self::Open(device) => Some(*device),
            Self::Ioctl { .. } | Self::Close(_) => None,
        }
    }
}
