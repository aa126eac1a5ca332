//! An event loop with a host socket on a thread of its own, as the VMM has it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::task::Poll;
use std::thread::JoinHandle;

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_devices::endpoint::{Backend, Handle, HelloInfo, IoctlReply, Readiness};
use kvmprof_devices::profiling::pcs::Pcs;
use kvmprof_recording::{ConsumerLedger, Mode, Sample, Ticks};
use kvmprof_vmm::host_socket::{HostListener, HostSocket};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Virtual CPUs of the guest that isn't there.
pub const VCPUS: u16 = 2;
/// The rate of its clock, in Hz.
pub const HZ: u32 = 1000;
/// What the status device gives.
pub const STATUS: &str = "{\"vcpus\":2}\n";
/// A device of the bench: every read gives as many bytes as asked for.
pub const PLENTY: u16 = 100;

/// What is open.
enum Open {
    Pcs,
    Snapshot(Vec<u8>),
    Plenty,
}

/// The devices behind the socket.
struct Devices {
    pcs: Pcs,
    open: Vec<Option<Open>>,
    /// Fed as soon as somebody asks for all samples.
    script: Vec<Ticks>,
}

impl Devices {
    fn of(&mut self, handle: Handle) -> Result<&mut Open, Errno> {
        let index = usize::try_from(handle.0).map_err(|_| Errno::EBADF)?;
        let open = self.open.get_mut(index).and_then(Option::as_mut);
        open.ok_or(Errno::EBADF)
    }

    fn read_now(&mut self, handle: Handle, limit: usize) -> Result<Vec<u8>, Errno> {
        match self.of(handle)? {
            Open::Pcs => {
                let mut data = Vec::new();
                self.pcs.read(limit, &mut data)?;
                Ok(data)
            }
            Open::Snapshot(rest) => Ok(rest.drain(..limit.min(rest.len())).collect()),
            Open::Plenty => Ok(vec![0x55; limit]),
        }
    }

    fn ioctl_now(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Result<IoctlReply, Errno> {
        let Open::Pcs = self.of(handle)? else {
            return Err(Errno::EINVAL);
        };
        let reply = self.pcs.ioctl(command, argument, data)?;
        if command == PROF_ALL {
            for ticks in std::mem::take(&mut self.script) {
                self.pcs.feed(&ticks);
            }
        }
        Ok(reply)
    }

    fn count(&self) -> usize {
        self.open.iter().flatten().count()
    }
}

impl Backend for Devices {
    fn open(&mut self, number: u16, minor: u16) -> Result<Handle, Errno> {
        let open = match (number, minor) {
            (device::PCS, 0) => {
                self.pcs.open(HZ)?;
                Open::Pcs
            }
            (device::STATUS, 0) => Open::Snapshot(STATUS.into()),
            (PLENTY, 0) => Open::Plenty,
            (device::PCS | device::STATUS, _) => return Err(Errno::ENXIO),
            _ => return Err(Errno::ENODEV),
        };
        self.open.push(Some(open));
        Ok(Handle(u32::try_from(self.open.len() - 1).unwrap()))
    }

    fn opened(&mut self, _handle: Handle) -> Poll<Result<(), Errno>> {
        Poll::Ready(Ok(()))
    }

    fn read(&mut self, handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
        Poll::Ready(self.read_now(handle, limit))
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        match self.of(handle)? {
            Open::Plenty => Ok(bytes.len()),
            _ => Err(Errno::EBADF),
        }
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>> {
        Poll::Ready(self.ioctl_now(handle, command, argument, data))
    }

    fn poll(&mut self, handle: Handle) -> Readiness {
        Readiness {
            readable: match self.of(handle) {
                Ok(Open::Pcs) => self.pcs.readable(),
                _ => true,
            },
            ..Readiness::default()
        }
    }

    fn close(&mut self, handle: Handle) -> Poll<()> {
        let index = usize::try_from(handle.0).unwrap();
        if let Some(Open::Pcs) = self.open[index].take() {
            self.pcs.close();
        }
        Poll::Ready(())
    }
}

/// What the test asks of the loop's thread.
enum Order {
    Feed(Vec<Ticks>),
    Script(Vec<Ticks>),
    /// Answers with the number of clients, of open devices, and pcs's last account.
    Look(Sender<State>),
    End,
}

/// How things stand on the loop's thread.
#[derive(Debug)]
pub struct State {
    /// Clients connected.
    pub clients: usize,
    /// Devices open, of all clients.
    pub open: usize,
    /// The account of pcs's current or last open.
    pub ledger: ConsumerLedger,
}

/// Stands where the VMM's profiler does: feeds the devices, then wakes the socket.
struct Profiler {
    event: EventFd,
    orders: Receiver<Order>,
    devices: Rc<RefCell<Devices>>,
    socket: Rc<RefCell<HostSocket>>,
    ended: Rc<RefCell<bool>>,
}

impl MutEventSubscriber for Profiler {
    fn process(&mut self, _events: Events, _operations: &mut EventOps) {
        self.event.read().unwrap();
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Feed(all) => {
                    for ticks in all {
                        self.devices.borrow_mut().pcs.feed(&ticks);
                    }
                    self.socket.borrow_mut().wake();
                }
                Order::Script(script) => self.devices.borrow_mut().script = script,
                Order::Look(answer) => {
                    let devices = self.devices.borrow();
                    let socket = self.socket.borrow();
                    assert_eq!(socket.open_devices(), devices.count());
                    let state = State {
                        clients: socket.connections(),
                        open: devices.count(),
                        ledger: devices.pcs.ledger(),
                    };
                    answer.send(state).unwrap();
                }
                Order::End => *self.ended.borrow_mut() = true,
            }
        }
    }

    fn init(&mut self, operations: &mut EventOps) {
        operations
            .add(Events::new(&self.event, EventSet::IN))
            .unwrap();
    }
}

/// A host socket that is being served.
pub struct Bench {
    _folder: tempfile::TempDir,
    path: PathBuf,
    event: EventFd,
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Bench {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let event = EventFd::new(EFD_NONBLOCK).unwrap();
        let (orders, receiver) = channel();
        let (started, wait) = sync_channel(1);
        let loop_event = event.try_clone().unwrap();
        let loop_path = path.clone();
        let thread = std::thread::spawn(move || {
            let listener = HostListener::bind(&loop_path).unwrap();
            let devices = Rc::new(RefCell::new(Devices {
                pcs: Pcs::new(VCPUS),
                open: Vec::new(),
                script: Vec::new(),
            }));
            let facts = HelloInfo {
                vcpus: VCPUS.into(),
                hz: HZ,
            };
            let socket = HostSocket::new(listener, facts, devices.clone()).unwrap();
            let socket = Rc::new(RefCell::new(socket));
            let ended = Rc::new(RefCell::new(false));
            let profiler = Profiler {
                event: loop_event,
                orders: receiver,
                devices: devices.clone(),
                socket: socket.clone(),
                ended: ended.clone(),
            };
            let mut manager: EventManager<Rc<RefCell<dyn MutEventSubscriber>>> =
                EventManager::new().unwrap();
            manager.add_subscriber(socket);
            manager.add_subscriber(Rc::new(RefCell::new(profiler)));
            started.send(()).unwrap();
            while !*ended.borrow() {
                manager.run().unwrap();
            }
            drop(manager);
            assert_eq!(devices.borrow().count(), 0, "the end frees everything");
        });
        wait.recv().unwrap();
        Self {
            _folder: folder,
            path,
            event,
            orders,
            thread: Some(thread),
        }
    }

    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub fn connect(&self) -> Connection {
        Connection::connect(&self.path).unwrap()
    }

    fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
        self.event.write(1).unwrap();
    }

    /// Feeds `ticks` to pcs, then wakes the socket.
    pub fn feed(&self, ticks: Vec<Ticks>) {
        self.order(Order::Feed(ticks));
    }

    /// Has `ticks` fed when a client makes the `PROF_ALL` call.
    pub fn script(&self, ticks: Vec<Ticks>) {
        self.order(Order::Script(ticks));
    }

    pub fn look(&self) -> State {
        let (answer, state) = channel();
        self.order(Order::Look(answer));
        state.recv().unwrap()
    }

    /// Waits until `condition` holds; asking is what lets the loop get on.
    pub fn until(&self, condition: impl Fn(&State) -> bool) -> State {
        loop {
            let state = self.look();
            if condition(&state) {
                return state;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.order(Order::End);
        let result = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            result.unwrap();
            assert!(!self.path.exists(), "the socket file is removed");
        }
    }
}

/// `count` ticks with user samples of process `pid`.
pub fn user(pid: i32, count: u64) -> Vec<Ticks> {
    (0..count)
        .map(|tick| Ticks {
            sample: Some(Sample {
                pc: 0x40_0000 + tick,
                pid,
                tid: pid,
                cpl: 3,
                mode: Mode::User,
                ..Sample::default()
            }),
            ..Ticks::default()
        })
        .collect()
}

/// `count` idle ticks, none of them a sample.
pub fn idle(count: u64) -> Vec<Ticks> {
    vec![Ticks {
        idle: count,
        ..Ticks::default()
    }]
}
