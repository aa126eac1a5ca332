//! A server for browsers of this host.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use kvmprof_cli::http::{Method, Request};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_recording::elf::hex;
use kvmprof_report::symbol_server::{self, MAX_REQUEST};
use rustix::rand::{GetRandomFlags, getrandom};

use super::response::{Document, Response};

/// Maximum number of connections at once: more than a browser opens.
const CONNECTIONS_MAX: usize = 16;
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

struct Shared {
    document: Document,
    /// The folder of all paths, which can't be guessed.
    folder: String,
    questions: Option<Sender<Option<Question>>>,
    /// The names that a browser may use for this server.
    names: Vec<String>,
    connections: AtomicUsize,
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
            document,
            folder,
            questions,
            names: names.into(),
            connections: AtomicUsize::new(0),
        };
        Ok(Self {
            listener,
            shared: Arc::new(shared),
        })
    }

    /// The document's address.
    pub fn address(&self) -> String {
        self.shared.address() + self.shared.document.file
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

/// Answers a connection's request in a thread of its own. Closes the connection if there are too many.
fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    let connection = Connection::of(shared);
    if shared.connections.load(Ordering::Relaxed) > CONNECTIONS_MAX {
        return;
    }
    let thread = thread::Builder::new().name("connection".into());
    let spawned = thread.spawn(move || {
        // A browser that is gone needs no answer.
        let _ = answer(stream, &connection.0);
    });
    if let Err(error) = spawned {
        log::warn!("Cannot serve a connection: {error}");
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let mut request = Request::read(&mut stream);
    if let Ok(request) = &mut request
        && let Some(response) = shared.ask(request, &mut stream)
    {
        return response.write(&mut stream);
    }
    let path = format!("{}{}", shared.folder, shared.document.file);
    let response = Response::to(&request, &shared.document, &path, &shared.names);
    response.write(&mut stream)
}

impl Shared {
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
        let site = self.document.site;
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

/// Counts as one of the server's connections while it lives.
struct Connection(Arc<Shared>);

impl Connection {
    fn of(shared: &Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
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
