//! One connection: requests in, replies out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{
    HelloReply, Kind, MAX_DATA, MAX_HANDLES, MAX_IOCTL_DATA, Reply, Request, RequestFrame,
};
use kvmprof_recording::{QueueBudget, Share};

use super::action::{Action, OpenDevice, Outcome};
use super::input::Input;
use super::output::{self, Output};
use super::turn::Turn;
use super::waiting::{Wait, WaitingRequest, WaitingRequests, nonblocking, reads_from_start};
use super::{Backend, Client, EndpointError, Handle};

/// Bytes of an incomplete request for which there is always room: those of a command with its data.
const OWN_FRAME: usize = 128 << 10;
/// Bytes of all input for which there is always room: the incomplete request, the bytes behind it, of which the owner gives 64 KiB at a time, and
/// the data of a command that a device works on.
const OWN_INPUT: usize = OWN_FRAME + (64 << 10) + MAX_IOCTL_DATA;

/// The machine's properties in the reply to a hello.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelloInfo {
    /// Virtual CPUs of the guest.
    pub vcpus: u32,
    /// The clock's configured rate in Hz; 0 without a clock.
    pub hz: u32,
}

/// The state machine of one connection.
///
/// The owner of the byte stream calls [`receive`](Self::receive) while [`wants_input`](Self::wants_input), sends [`output`](Self::output), and
/// calls [`wake`](Self::wake) after it has sent something and after the devices have changed. Between two calls of
/// [`begin_turn`](Self::begin_turn), the endpoint serves [`REQUESTS_PER_TURN`](super::REQUESTS_PER_TURN) requests at most, so that other
/// connections have their turns. After an error of `receive` or `wake`, the owner must [`close`](Self::close) the connection, and do nothing else
/// with it.
#[derive(Debug)]
pub struct Endpoint {
    client: Client,
    info: HelloInfo,
    greeted: bool,
    input: Input,
    output: Output,
    devices: BTreeMap<u32, OpenDevice>,
    last_name: u32,
    waiting: WaitingRequests,
    /// The request that a device is working on, and its tag; later requests wait.
    in_progress: Option<(u32, Action)>,
    /// The requests and the time that are left of this turn.
    turn: Turn,
}

impl Endpoint {
    /// Bytes of requests and replies for which each connection has room, however much other connections use.
    pub const OWN_BYTES: usize = OWN_INPUT + output::OWN_BYTES;

    /// A new connection of `client` with room for the longest request and the longest reply.
    pub fn new(client: Client, info: HelloInfo) -> Self {
        Self::within(client, info, &QueueBudget::unlimited())
    }

    /// A new connection of `client` that takes room beyond [`OWN_BYTES`](Self::OWN_BYTES) from `room`. If `room` is full, long writes and long reads that have
    /// to be whole fail with ENOMEM, and other reads get less at a time.
    pub fn within(client: Client, info: HelloInfo, room: &Arc<QueueBudget>) -> Self {
        Self {
            client,
            info,
            greeted: false,
            input: Input::new(Share::new(room, OWN_FRAME)),
            output: Output::new(Share::new(room, output::OWN_BYTES)),
            devices: BTreeMap::new(),
            last_name: 0,
            waiting: WaitingRequests::default(),
            in_progress: None,
            turn: Turn::new(),
        }
    }

    /// True while the endpoint accepts input: false while the client doesn't read its replies, while a device works
    /// on a request, and while requests wait for the next turn.
    pub fn wants_input(&self) -> bool {
        self.can_serve() && !self.is_turn_over()
    }

    /// Begins a turn of [`REQUESTS_PER_TURN`](super::REQUESTS_PER_TURN) requests. [`wake`](Self::wake) then serves the requests that waited for it.
    pub fn begin_turn(&mut self) {
        self.turn = Turn::new();
    }

    /// Limits the current turn to `time`, too. At least one request is served.
    pub fn limit_turn(&mut self, time: Duration) {
        self.turn.limit(time);
    }

    /// True if requests wait only for the next turn, which the owner has to begin.
    pub fn waits_for_turn(&self) -> bool {
        self.can_serve() && self.is_turn_over()
    }

    fn can_serve(&self) -> bool {
        !self.output.is_full() && self.in_progress.is_none()
    }

    fn is_turn_over(&self) -> bool {
        self.turn.is_over() && !self.input.is_empty()
    }

    /// Bytes to send.
    pub fn output(&self) -> &[u8] {
        self.output.waiting()
    }

    /// Removes the first `count` bytes of the output, which have been sent. Requests that wait for room continue at the
    /// next [`wake`](Self::wake).
    pub fn consume(&mut self, count: usize) {
        self.output.consume(count);
    }

    /// The client, which decides what the connection may do.
    pub fn client(&self) -> Client {
        self.client
    }

    /// True once the client has said hello.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// The number of devices that the connection has open.
    pub fn open_devices(&self) -> usize {
        self.devices.len()
    }

    /// The number of its requests that wait for a device.
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + usize::from(self.in_progress.is_some())
    }

    /// Takes bytes from the client, in any pieces, and serves the complete requests. Memory is bounded by the longest
    /// frame and the length of `bytes`.
    ///
    /// # Errors
    /// [`EndpointError`]: the connection has to be closed.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        backend: &mut dyn Backend,
    ) -> Result<(), EndpointError> {
        self.input.add(bytes)?;
        self.serve(backend)?;
        self.waiting.retry(&mut self.output, backend);
        Ok(())
    }

    /// Retries waiting requests in their order, and continues with requests that had no room in the output.
    ///
    /// # Errors
    /// [`EndpointError`]: the connection has to be closed.
    pub fn wake(&mut self, backend: &mut dyn Backend) -> Result<(), EndpointError> {
        self.proceed(backend);
        self.waiting.retry(&mut self.output, backend);
        if !self.input.is_empty() && self.wants_input() {
            self.serve(backend)?;
            self.waiting.retry(&mut self.output, backend);
        }
        Ok(())
    }

    /// Closes all devices of the connection. It can't be used afterwards.
    pub fn close(&mut self, backend: &mut dyn Backend) {
        self.waiting.clear();
        self.input.clear();
        let opening = (self.in_progress.take()).and_then(|(_, action)| action.opening());
        let devices = std::mem::take(&mut self.devices).into_values();
        for device in devices.chain(opening) {
            // The device closes without further calls, and the client gets no reply.
            let _ = backend.close(device.handle);
        }
    }

    /// Serves complete requests while there is room for the replies.
    fn serve(&mut self, backend: &mut dyn Backend) -> Result<(), EndpointError> {
        let input = self.input.take();
        let mut done = 0;
        let mut result = Ok(());
        while self.can_serve() && !self.turn.is_over() {
            let begun = Instant::now();
            let rest = input.get(done..).unwrap_or_default();
            match RequestFrame::decode(rest) {
                Ok(Some((frame, length))) => {
                    self.input.complete();
                    result = self.request(&frame, backend);
                    done += length;
                    self.turn.spend(begun.elapsed());
                }
                Ok(None) => {
                    result = self.await_rest(rest).map(|refused| done += refused);
                    break;
                }
                Err(error) => result = Err(error.into()),
            }
            if result.is_err() {
                break;
            }
        }
        self.input.put_back(input, done);
        result
    }

    /// Reserves room for the incomplete frame that begins with `begun`. If there is no room, refuses the frame at once, and throws away its bytes:
    /// those that have come, whose number is the result, and those that are yet to come.
    fn await_rest(&mut self, begun: &[u8]) -> Result<usize, EndpointError> {
        let Some(frame) = RequestFrame::begun(begun)? else {
            return Ok(0);
        };
        if self.input.make_room(frame.length) {
            return Ok(0);
        }
        self.expect(frame.tag, frame.kind)?;
        self.output
            .answer(frame.tag, frame.kind, Err(Errno::ENOMEM));
        self.input.skip(frame.length.saturating_sub(begun.len()));
        Ok(begun.len())
    }

    fn request(
        &mut self,
        frame: &RequestFrame<'_>,
        backend: &mut dyn Backend,
    ) -> Result<(), EndpointError> {
        let tag = frame.tag;
        self.expect(tag, frame.request.kind())?;
        match frame.request {
            Request::Hello { lowest, highest } => self.hello(tag, lowest, highest),
            Request::Open {
                device,
                minor,
                flags,
            } => match self.open(device, minor, flags, backend) {
                Ok(device) => self.begin(tag, Action::Open(device), backend),
                Err(errno) => self.output.answer(tag, Kind::Open, Err(errno)),
            },
            Request::Read {
                handle,
                limit,
                flags,
            } => {
                let limit = usize::try_from(limit).unwrap_or(MAX_DATA).min(MAX_DATA);
                self.wait(tag, handle, flags, Wait::Read { limit }, backend);
            }
            Request::Poll {
                handle,
                events,
                flags,
            } => self.wait(tag, handle, flags, Wait::Poll { events }, backend),
            Request::Write {
                handle,
                flags,
                data,
            } => {
                let reply = self.write(handle, flags, data, backend);
                let reply = reply.map(|count| Reply::Write { count });
                self.output.answer(tag, Kind::Write, reply);
            }
            Request::Ioctl { .. } => self.ioctl(tag, &frame.request, backend),
            Request::Cancel { tag: cancelled } => {
                let chosen = |waiting: &WaitingRequest| waiting.tag == cancelled;
                self.waiting.give_up(chosen, Errno::EINTR, &mut self.output);
                self.output.answer(tag, Kind::Cancel, Ok(Reply::Cancel));
            }
            Request::Close { handle } => match self.forget(handle) {
                Ok(handle) => self.begin(tag, Action::Close(handle), backend),
                Err(errno) => self.output.answer(tag, Kind::Close, Err(errno)),
            },
        }
        Ok(())
    }

    /// Refuses requests that break the protocol in the present state.
    fn expect(&self, tag: u32, kind: Kind) -> Result<(), EndpointError> {
        match (kind, self.greeted) {
            (Kind::Hello, true) => return Err(EndpointError::SecondHello),
            (Kind::Hello, false) | (_, true) => {}
            (_, false) => return Err(EndpointError::NoHello),
        }
        if self.waiting.has_tag(tag) {
            return Err(EndpointError::TagInUse { tag });
        }
        Ok(())
    }

    fn hello(&mut self, tag: u32, lowest: u16, highest: u16) {
        let HelloInfo { vcpus, hz } = self.info;
        let hello = HelloReply::answer(lowest, highest, vcpus, hz);
        self.greeted = hello.version != 0;
        self.output
            .answer(tag, Kind::Hello, Ok(Reply::Hello(hello)));
    }

    fn device(&self, name: u32) -> Result<OpenDevice, Errno> {
        self.devices.get(&name).copied().ok_or(Errno::EBADF)
    }

    fn open(
        &mut self,
        device: u16,
        minor: u16,
        flags: u32,
        backend: &mut dyn Backend,
    ) -> Result<OpenDevice, Errno> {
        let nonblocking = nonblocking(flags)?;
        if self.devices.len() >= MAX_HANDLES {
            return Err(Errno::EMFILE);
        }
        self.client.check_device(device)?;
        let handle = backend.open(self.client, device, minor)?;
        Ok(OpenDevice {
            handle,
            nonblocking,
            reads_from_start: reads_from_start(device),
        })
    }

    /// Starts `action`. The request `tag` is answered when it is done.
    fn begin(&mut self, tag: u32, action: Action, backend: &mut dyn Backend) {
        self.in_progress = Some((tag, action));
        self.proceed(backend);
    }

    /// Answers the request in progress if it is done.
    fn proceed(&mut self, backend: &mut dyn Backend) {
        let Some((tag, action)) = self.in_progress.take() else {
            return;
        };
        match action.carry_out(backend) {
            Poll::Pending => self.in_progress = Some((tag, action)),
            Poll::Ready(Outcome::Open(opened)) => {
                let reply = opened.map(|device| {
                    let name = self.new_name();
                    self.devices.insert(name, device);
                    Reply::Open { handle: name }
                });
                self.output.answer(tag, Kind::Open, reply);
            }
            Poll::Ready(Outcome::Ioctl(reply)) => {
                let reply = reply.as_ref().map_err(|errno| *errno);
                let reply = reply.map(|reply| Reply::Ioctl {
                    value: reply.value,
                    data: &reply.data,
                });
                self.output.answer(tag, Kind::Ioctl, reply);
            }
            Poll::Ready(Outcome::Close) => {
                self.output.answer(tag, Kind::Close, Ok(Reply::Close));
            }
        }
    }

    /// A number that isn't in use, and wasn't recently: a late request for a closed device must not reach another one.
    /// The search ends, since few are in use.
    fn new_name(&mut self) -> u32 {
        loop {
            self.last_name = self.last_name.wrapping_add(1);
            if self.last_name != 0 && !self.devices.contains_key(&self.last_name) {
                return self.last_name;
            }
        }
    }

    fn write(
        &mut self,
        name: u32,
        flags: u32,
        data: &[u8],
        backend: &mut dyn Backend,
    ) -> Result<u32, Errno> {
        let device = self.device(name)?;
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let count = backend.write(device.handle, data)?;
        u32::try_from(count).map_err(|_| Errno::EIO)
    }

    fn ioctl(&mut self, tag: u32, request: &Request<'_>, backend: &mut dyn Backend) {
        let &Request::Ioctl {
            handle,
            command,
            argument,
            limit,
            data,
        } = request
        else {
            return;
        };
        let limit = usize::try_from(limit)
            .unwrap_or(MAX_IOCTL_DATA)
            .min(MAX_IOCTL_DATA);
        let device = self.device(handle);
        match device.and_then(|device| self.client.check_command(command).map(|()| device)) {
            Ok(device) => {
                let action = Action::Ioctl {
                    handle: device.handle,
                    command,
                    argument,
                    limit,
                    data: data.to_vec(),
                };
                self.begin(tag, action, backend);
            }
            Err(errno) => self.output.answer(tag, Kind::Ioctl, Err(errno)),
        }
    }

    /// Removes device `name` from the connection, and fails its waiting requests.
    fn forget(&mut self, name: u32) -> Result<Handle, Errno> {
        let device = self.devices.remove(&name).ok_or(Errno::EBADF)?;
        let chosen = |waiting: &WaitingRequest| waiting.name == name;
        self.waiting.give_up(chosen, Errno::EBADF, &mut self.output);
        Ok(device.handle)
    }

    /// Answers a read or poll at once if possible, else lets it wait.
    fn wait(&mut self, tag: u32, name: u32, flags: u32, wait: Wait, backend: &mut dyn Backend) {
        let kind = wait.kind();
        let device = match nonblocking(flags).and_then(|asked| {
            let device = self.device(name)?;
            wait.check()?;
            Ok(OpenDevice {
                // As with poll(2), a poll waits even for a device that was opened as non-blocking.
                nonblocking: asked || (device.nonblocking && kind == Kind::Read),
                ..device
            })
        }) {
            Ok(device) => device,
            Err(errno) => return self.output.answer(tag, kind, Err(errno)),
        };
        let request = WaitingRequest {
            tag,
            name,
            device,
            wait,
        };
        self.waiting
            .answer_or_keep(request, &mut self.output, backend);
    }
}
