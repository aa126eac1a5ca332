//! The host's end of a port.

use crate::endpoint::{Backend, Client, Endpoint, HelloInfo, TURN_TIME};

/// Why the host hangs up: the guest broke the port's protocol.
pub type PortError = Box<dyn std::error::Error + Send + Sync>;

/// The host's end of a port: a stream of bytes in each direction.
pub trait Port: Send {
    /// The guest has opened the port: a new conversation begins.
    fn opened(&mut self);

    /// The guest has closed the port, or is gone: frees the conversation's resources.
    fn closed(&mut self, backend: &mut dyn Backend);

    /// True while the port accepts bytes.
    fn wants_input(&self) -> bool;

    /// A turn begins, after others have had theirs.
    fn begin_turn(&mut self) {}

    /// True if bytes of the guest wait only for the next turn.
    fn waits_for_turn(&self) -> bool {
        false
    }

    /// Takes bytes from the guest, in any pieces.
    ///
    /// # Errors
    /// The host must hang up.
    fn receive(&mut self, bytes: &[u8], backend: &mut dyn Backend) -> Result<(), PortError>;

    /// Continues requests that waited for devices, or for room in the output.
    ///
    /// # Errors
    /// The host must hang up.
    fn wake(&mut self, backend: &mut dyn Backend) -> Result<(), PortError>;

    /// Moves the next bytes for the guest into `bytes` and returns their number, 0 if there are none.
    fn send(&mut self, bytes: &mut [u8]) -> usize;

    /// True while there are bytes for the guest.
    fn has_output(&self) -> bool;
}

/// A port that carries the framed protocol.
#[derive(Debug)]
pub struct EndpointPort {
    client: Client,
    info: HelloInfo,
    endpoint: Option<Endpoint>,
}

impl EndpointPort {
    /// A closed port of `client`; `info` are for the reply to a hello.
    #[must_use]
    pub fn new(client: Client, info: HelloInfo) -> Self {
        Self {
            client,
            info,
            endpoint: None,
        }
    }
}

impl Port for EndpointPort {
    fn opened(&mut self) {
        self.endpoint = Some(Endpoint::new(self.client, self.info));
    }

    fn closed(&mut self, backend: &mut dyn Backend) {
        if let Some(mut endpoint) = self.endpoint.take() {
            endpoint.close(backend);
        }
    }

    fn wants_input(&self) -> bool {
        self.endpoint.as_ref().is_some_and(Endpoint::wants_input)
    }

    fn begin_turn(&mut self) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.begin_turn();
            endpoint.limit_turn(TURN_TIME);
        }
    }

    fn waits_for_turn(&self) -> bool {
        self.endpoint.as_ref().is_some_and(Endpoint::waits_for_turn)
    }

    fn receive(&mut self, bytes: &[u8], backend: &mut dyn Backend) -> Result<(), PortError> {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.receive(bytes, backend)?;
        }
        Ok(())
    }

    fn wake(&mut self, backend: &mut dyn Backend) -> Result<(), PortError> {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.wake(backend)?;
        }
        Ok(())
    }

    fn send(&mut self, bytes: &mut [u8]) -> usize {
        let Some(endpoint) = &mut self.endpoint else {
            return 0;
        };
        let output = endpoint.output();
        let count = output.len().min(bytes.len());
        for (target, source) in bytes.iter_mut().zip(output) {
            *target = *source;
        }
        endpoint.consume(count);
        count
    }

    fn has_output(&self) -> bool {
        (self.endpoint.as_ref()).is_some_and(|endpoint| !endpoint.output().is_empty())
    }
}
