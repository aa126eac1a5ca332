//! The serving of the queues on the event thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use kvmprof_devices::endpoint::Backend;

use super::{ConsoleDevice, GuestAccess};
use crate::restricted::Restricted;

/// Serves the ports of the virtio console device: a subscriber of the event manager.
///
/// The backend is borrowed while queues are served: whoever else shares it on this thread must
/// not hold it borrowed when calling in here, and it must not call in here itself.
pub struct ConsoleService {
    device: Arc<ConsoleDevice>,
    backend: Rc<RefCell<dyn Backend>>,
    access: GuestAccess,
}

impl ConsoleService {
    /// Serves `backend`, as far as `access` goes, to the ports of `device`.
    pub fn new(
        device: Arc<ConsoleDevice>,
        backend: Rc<RefCell<dyn Backend>>,
        access: GuestAccess,
    ) -> Self {
        Self {
            device,
            backend,
            access,
        }
    }

    /// Serves the queues, and lets all waiting requests try again. To be called after all events have
    /// been processed, or the devices have changed, and with the backend not borrowed.
    pub fn wake(&mut self) {
        let backend = Rc::clone(&self.backend);
        self.device.serve(&mut Restricted {
            backend: &mut *backend.borrow_mut(),
            check: &|device| self.access.check(device),
            check_command: &GuestAccess::check_command,
        });
    }

    /// The guest has ended: frees what it had open.
    pub fn end(&mut self) {
        let backend = Rc::clone(&self.backend);
        self.device.end(&mut *backend.borrow_mut());
    }
}

impl MutEventSubscriber for ConsoleService {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        // An eventfd that somebody has read since is no error. The serving itself comes after all events,
        // as for everything that waits for the devices, and not at all when the guest has ended.
        let _ = self.device.work().read();
    }

    fn init(&mut self, ops: &mut EventOps) {
        if let Err(error) = ops.add(Events::new(self.device.work(), EventSet::IN)) {
            log::error!("The guest's ports aren't served: {error}");
        }
    }
}
