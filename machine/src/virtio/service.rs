//! The service of the console device's queues on the event thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use kvmprof_devices::endpoint::Backend;

use super::ConsoleDevice;

/// Serves the ports of the virtio console device, as a subscriber of the event manager.
///
/// The backend is borrowed while queues are served. Others on this thread that share it must not hold a borrow when they call this service,
/// and it must not call the service itself.
pub struct ConsoleService {
    device: Arc<ConsoleDevice>,
    backend: Rc<RefCell<dyn Backend>>,
}

impl ConsoleService {
    /// A service of `backend` for the ports of `device`.
    pub fn new(device: Arc<ConsoleDevice>, backend: Rc<RefCell<dyn Backend>>) -> Self {
        Self { device, backend }
    }

    /// Serves the queues, and retries all waiting requests. The caller has to call this after all events have been processed, or the
    /// devices have changed, and must not hold a borrow of the backend.
    pub fn wake(&mut self) {
        let backend = Rc::clone(&self.backend);
        self.device.serve(&mut *backend.borrow_mut());
    }

    /// Closes what the guest had open, because the guest has ended.
    pub fn end(&mut self) {
        let backend = Rc::clone(&self.backend);
        self.device.end(&mut *backend.borrow_mut());
    }
}

impl MutEventSubscriber for ConsoleService {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        // It is no error if the eventfd has been read since. The queues are served after all events, as everything that waits for the
        // devices, and not at all when the guest has ended.
        let _ = self.device.work().read();
    }

    fn init(&mut self, ops: &mut EventOps) {
        if let Err(error) = ops.add(Events::new(self.device.work(), EventSet::IN)) {
            log::error!("The guest's ports aren't served: {error}");
        }
    }
}
