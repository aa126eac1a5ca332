//! The event thread of a guest that kvmprof runs: its initial state and its services.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use event_manager::MutEventSubscriber;
use kvmprof_devices::endpoint::{Backend, HelloInfo};

use super::VmError;
use super::event_loop::{EventLoop, Services};
use super::guest_control::MachineControl;
use super::termination::Termination;
use super::threads::{Profiled, VcpuThreads};
use super::time_limit::TimeLimit;
use crate::vcpu::Ending;
use kvmprof_machine::MachineDevices;
use kvmprof_machine::console::{ConsoleInput, HvcConsole, WindowWatch};
use kvmprof_machine::unix_socket::SocketListener;
use kvmprof_machine::virtio::ConsoleService;
use kvmprof_profiling::binaries::BinarySources;
use kvmprof_profiling::clock::HaltedTicks;
use kvmprof_profiling::host_socket::HostSocket;
use kvmprof_profiling::profiler::{ClockPlan, FileRecorder, MachineInfo, OnVcpus, Profiler};
use kvmprof_profiling::sampling::Doorbell;
use kvmprof_profiling::signals::take_signals_here;

/// The initial state of the event thread.
pub(super) struct EventThread {
    pub listener: Option<SocketListener>,
    pub termination: Termination,
    pub console: Option<ConsoleInput>,
    pub hvc: Option<Arc<HvcConsole>>,
    pub devices: Arc<MachineDevices>,
    pub hello: HelloInfo,
    pub control: MachineControl,
    pub doorbell: Arc<Doorbell>,
    pub plan: ClockPlan,
    pub info: MachineInfo,
    pub time_limit: Option<Duration>,
    pub on_vcpus: OnVcpus,
    pub sources: BinarySources,
    pub recorder: Option<FileRecorder>,
}

impl EventThread {
    /// Serves clients and devices until the guest ends. Returns how it has ended; `None` if it was stopped.
    ///
    /// # Errors
    /// The thread can't continue.
    pub fn serve(
        self,
        vcpus: VcpuThreads,
        rings: Vec<Profiled>,
    ) -> Result<Option<Ending>, VmError> {
        take_signals_here().map_err(VmError::host("to take signals"))?;
        let profiler = Rc::new(RefCell::new(Profiler::new(
            rings,
            self.plan,
            vcpus.gate(),
            self.info,
            Some(self.on_vcpus),
            self.sources,
        )));
        profiler.borrow_mut().be_controlled(Box::new(self.control));
        if let Some(recorder) = self.recorder {
            profiler.borrow_mut().record(recorder);
        }
        let backend: Rc<RefCell<dyn Backend>> = profiler.clone();
        let room = profiler.borrow().room();
        let socket = self
            .listener
            .map(|listener| HostSocket::new(listener, self.hello, Rc::clone(&backend), room))
            .transpose()?;
        let devices = self.devices;
        let ports = devices.virtio_console();
        let ports = ports.map(|device| ConsoleService::new(Arc::clone(device), backend));
        let mut subscribers: Vec<Box<dyn MutEventSubscriber>> = Vec::new();
        if let Some(console) = self.console {
            subscribers.push(Box::new(console));
        }
        if let (Some(_), Some(device)) = (&self.hvc, devices.virtio_console()) {
            let device = Arc::clone(device);
            let watch = WindowWatch::new(Box::new(move |size| device.resize(size)));
            subscribers.push(Box::new(
                watch.map_err(VmError::host("to follow the terminal"))?,
            ));
        }
        if let Some(time) = self.time_limit {
            subscribers.push(Box::new(TimeLimit::start(time, &self.termination)?));
        }
        let services = Services {
            profiler: Rc::clone(&profiler),
            socket,
            ports,
            hvc: self.hvc,
        };
        let events = EventLoop::new(services, self.doorbell, self.termination, subscribers)?;
        kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Events);
        // The first such event on a host takes milliseconds, and the guest's start shouldn't wait for it. While there is one, others
        // are cheap. This thread now has no more rights than those of the vCPUs.
        let (halted_ticks, _first_event) = HaltedTicks::of_this_host();
        profiler.borrow_mut().halted_ticks_are(halted_ticks);
        events.run(vcpus)
    }
}
