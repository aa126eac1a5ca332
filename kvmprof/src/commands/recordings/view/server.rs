//! A server for browsers of this host.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use kvmprof_cli::http::{Method, Request, UntilDeadline};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_recording::elf::hex;
use kvmprof_report::symbol_server::{self, MAX_REQUEST};
use rustix::rand::{GetRandomFlags, getrandom};

use super::response::{Document, Response};

/// Maximum number of connections at once of clients that know the path: more than a browser opens.
const CONNECTIONS_MAX: usize = 16;
/// Maximum number of other connections. Any user of this host can open them: beyond the maximum the oldest one is closed, so that they don't keep others out.
const STRANGERS_MAX: usize = 64;
/// Maximum time until the head of a request has arrived, which distinguishes other users' requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a connection without a sent or received byte.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A question of a page to a symbol server. Connections send it to the thread that has the names.
pub struct Question {
    /// The request.
    pub request: symbol_server::Request,
    /// The request's body.
    pub body: Vec<u8>,
    /// Receives the answer.
    pub answer: SyncSender<Vec<u8>>,
}

/// Serves one document, and passes on the questions of clients that know its path.
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

/// The document of a server, which can be replaced while it is served.
pub struct ServedDocument(Arc<Shared>);

struct Shared {
    document: Mutex<Arc<Document>>,
    /// Whether a client that knows the path has asked for anything since this was last looked at.
    was_asked: AtomicBool,
    /// The folder of all paths, which can't be guessed.
    folder: String,
    questions: Option<Sender<Option<Question>>>,
    /// The names that a browser may use for this server.
    names: Vec<String>,
    /// Number of connections of clients that know the path.
    known: AtomicUsize,
    strangers: Mutex<UnknownClients>,
}

/// The connections whose clients haven't shown that they know the path.
#[derive(Default)]
struct UnknownClients {
    last: u64,
    /// By their numbers, the oldest first.
    open: VecDeque<(u64, TcpStream)>,
}

impl Server {
    /// A server at this TCP port of the loopback interface; 0 for any free port. With `questions`, it is also a symbol
    /// server, whose answers come from the channel's other end.
    ///
    /// # Errors
    /// The port isn't available.
    pub fn bind(
        port: u16,
        document: Document,
        questions: Option<Sender<Option<Question>>>,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("Cannot listen at port {port} of 127.0.0.1"))?;
        let port = listener.local_addr()?.port();
        let folder = format!("/{}/", secret()?);
        let names = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{port}"));
        let shared = Shared {
            document: Mutex::new(Arc::new(document)),
            was_asked: AtomicBool::new(false),
            folder,
            questions,
            names: names.into(),
            known: AtomicUsize::new(0),
            strangers: Mutex::default(),
        };
        Ok(Self {
            listener,
            shared: Arc::new(shared),
        })
    }

    /// The document's address.
    pub fn address(&self) -> String {
        self.shared.address() + self.shared.document().file
    }

    /// The document.
    pub fn document(&self) -> ServedDocument {
        ServedDocument(Arc::clone(&self.shared))
    }

    /// The symbol server's address.
    pub fn symbols_address(&self) -> String {
        self.shared.address().trim_end_matches('/').to_owned()
    }

    /// Serves from now on, in threads of its own. Raises `interrupt` if no connection can be accepted any more.
    ///
    /// # Errors
    /// The host can't create a thread.
    pub fn start(self, interrupt: &Interrupt) -> io::Result<()> {
        let stopper = interrupt.stopper();
        let thread = thread::Builder::new().name("server".into());
        thread.spawn(move || {
            for stream in self.listener.incoming() {
                match stream {
                    Ok(stream) => serve(stream, &self.shared),
                    // The browser has closed the connection.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        log::error!("Cannot accept connections any more: {error}");
                        stopper.stop();
                        return;
                    }
                }
            }
        })?;
        Ok(())
    }
}

impl ServedDocument {
    /// Serves `document` from now on, which has the same path. Answers that are being sent go on with the one before.
    pub fn replace(&self, document: Document) {
        *self.0.lock_document() = Arc::new(document);
    }

    /// Whether it was asked for since the last call.
    pub fn was_asked_for(&self) -> bool {
        self.0.was_asked.swap(false, Ordering::Relaxed)
    }
}

/// Answers a connection's request in a thread of its own.
fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    let thread = thread::Builder::new().name("connection".into());
    let spawned = UnknownClient::of(&stream, shared).and_then(|stranger| {
        // A browser that is gone needs no answer.
        thread.spawn(move || drop(answer(stream, stranger)))
    });
    if let Err(error) = spawned {
        log::warn!("Cannot serve a connection: {error}");
    }
}

fn answer(mut stream: TcpStream, stranger: UnknownClient) -> io::Result<()> {
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let deadline = Instant::now() + HEAD_TIMEOUT;
    let read = Request::read(&mut UntilDeadline(&stream, deadline));
    let Some(mut request) = read.transpose() else {
        return Ok(());
    };
    let shared = Arc::clone(&stranger.shared);
    let is_known = |request: &Request| request.path.starts_with(&shared.folder);
    let document = shared.document();
    let path = format!("{}{}", shared.folder, document.file);
    if !request.as_ref().is_ok_and(is_known) {
        let response = Response::to(&request, &document, &path, &shared.names);
        return response.write(&mut stream);
    }
    drop(stranger);
    let Some(_known) = KnownClient::of(&shared) else {
        return Response::error("503 Service Unavailable").write(&mut stream);
    };
    shared.was_asked.store(true, Ordering::Relaxed);
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    if let Ok(request) = &mut request
        && let Some(response) = shared.ask(request, &mut stream)
    {
        return response.write(&mut stream);
    }
    let response = Response::to(&request, &document, &path, &shared.names);
    response.write(&mut stream)
}

impl Shared {
    fn lock_document(&self) -> MutexGuard<'_, Arc<Document>> {
        self.document.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn document(&self) -> Arc<Document> {
        Arc::clone(&self.lock_document())
    }

    fn strangers(&self) -> MutexGuard<'_, UnknownClients> {
        self.strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the folder.
    fn address(&self) -> String {
        let host = self.names.first().map_or("", String::as_str);
        format!("http://{host}{}", self.folder)
    }

    /// The answer to `request` if it is for the symbol server. Reads the request's body only in this case.
    fn ask(&self, request: &mut Request, stream: &mut TcpStream) -> Option<Response<'static>> {
        let questions = self.questions.as_ref()?;
        let path = request.path.strip_prefix(&self.folder)?;
        let asked = symbol_server::Request::of_path(path)?;
        let site = self.document().site;
        if !self.names.contains(&request.host) {
            return None;
        }
        match request.method {
            Method::Options => return Some(Response::permission(site)),
            Method::Get | Method::Head => return Some(Response::error("405 Method Not Allowed")),
            Method::Post => {}
        }
        let body = match request.body(stream, MAX_REQUEST) {
            Ok(body) => body,
            Err(error) => return Some(Response::refusal(&error)),
        };
        let (sender, receiver) = sync_channel(1);
        let question = Question {
            request: asked,
            body,
            answer: sender,
        };
        let sent = questions.send(Some(question)).ok();
        let answer = sent.and_then(|()| receiver.recv().ok());
        Some(match answer {
            Some(answer) => Response::json(site, answer),
            // The command is about to end.
            None => Response::error("503 Service Unavailable"),
        })
    }
}

/// Is one of the strangers' connections while it lives.
struct UnknownClient {
    shared: Arc<Shared>,
    number: u64,
}

impl UnknownClient {
    /// Adds `stream` to the strangers. Closes the oldest one of them if there are too many.
    fn of(stream: &TcpStream, shared: &Arc<Shared>) -> io::Result<Self> {
        let stream = stream.try_clone()?;
        let mut strangers = shared.strangers();
        if strangers.open.len() >= STRANGERS_MAX
            && let Some((_, oldest)) = strangers.open.pop_front()
        {
            // Its thread then reads the end of the connection.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        strangers.last += 1;
        let number = strangers.last;
        strangers.open.push_back((number, stream));
        Ok(Self {
            shared: Arc::clone(shared),
            number,
        })
    }
}

impl Drop for UnknownClient {
    fn drop(&mut self) {
        let mut strangers = self.shared.strangers();
        strangers.open.retain(|(number, _)| *number != self.number);
    }
}

/// Counts as one of the connections of clients that know the path while it lives.
struct KnownClient<'a>(&'a Shared);

impl<'a> KnownClient<'a> {
    /// `None` if there are too many.
    fn of(shared: &'a Shared) -> Option<Self> {
        let before = shared.known.fetch_add(1, Ordering::Relaxed);
        let known = Self(shared);
        (before < CONNECTIONS_MAX).then_some(known)
    }
}

impl Drop for KnownClient<'_> {
    fn drop(&mut self) {
        self.0.known.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A word of 128 random bits.
fn secret() -> io::Result<String> {
    let mut bytes = [0; 16];
    if getrandom(&mut bytes, GetRandomFlags::empty())? != bytes.len() {
        return Err(io::Error::other("the host has too few random numbers"));
    }
    Ok(hex(&bytes))
}
