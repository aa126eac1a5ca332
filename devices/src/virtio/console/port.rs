//! What is at the host's end of a port.

use crate::endpoint::{Backend, Endpoint, EndpointError, Facts};

/// Why the host hangs up: the guest broke the protocol of this port.
pub type PortError = Box<dyn std::error::Error + Send + Sync>;

/// The host's end of a port: a stream of bytes in each direction.
pub trait Port: Send {
    /// The guest has opened the port: a new conversation begins.
    fn opened(&mut self);

    /// The guest has closed the port, or has gone: frees all that belonged to the conversation.
    fn closed(&mut self, backend: &mut dyn Backend);

    /// True while more bytes can be taken.
    fn wants_input(&self) -> bool;

    /// Takes bytes from the guest, cut anywhere.
    ///
    /// # Errors
    /// The host has to hang up.
    fn receive(&mut self, bytes: &[u8], backend: &mut dyn Backend) -> Result<(), PortError>;

    /// Goes on with what waited for the devices behind it, or for room in the output.
    ///
    /// # Errors
    /// The host has to hang up.
    fn wake(&mut self, backend: &mut dyn Backend) -> Result<(), PortError>;

    /// Moves the next bytes for the guest into `bytes` and returns how many: 0 if there are none.
    fn send(&mut self, bytes: &mut [u8]) -> usize;

    /// True while there is something for the guest.
    fn has_output(&self) -> bool;
}

/// A port that carries the framed protocol.
#[derive(Debug)]
pub struct EndpointPort {
    facts: Facts,
    endpoint: Option<Endpoint>,
}

impl EndpointPort {
    /// A port that nobody has opened yet; `facts` go into the answer to a hello.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        Self {
            facts,
            endpoint: None,
        }
    }
}

fn hang_up(error: EndpointError) -> PortError {
    Box::new(error)
}

impl Port for EndpointPort {
    fn opened(&mut self) {
        self.endpoint = Some(Endpoint::new(self.facts));
    }

    fn closed(&mut self, backend: &mut dyn Backend) {
        if let Some(mut endpoint) = self.endpoint.take() {
            endpoint.close(backend);
        }
    }

    fn wants_input(&self) -> bool {
        self.endpoint.as_ref().is_some_and(Endpoint::wants_input)
    }

    fn receive(&mut self, bytes: &[u8], backend: &mut dyn Backend) -> Result<(), PortError> {
        match &mut self.endpoint {
            Some(endpoint) => endpoint.receive(bytes, backend).map_err(hang_up),
            None => Ok(()),
        }
    }

    fn wake(&mut self, backend: &mut dyn Backend) -> Result<(), PortError> {
        match &mut self.endpoint {
            Some(endpoint) => endpoint.wake(backend).map_err(hang_up),
            None => Ok(()),
        }
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
