//! A server for browsers of this host.

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use kvmprof_tools::interrupt::Interrupt;
use rustix::rand::{GetRandomFlags, getrandom};

use super::response::{Document, Response};
use kvmprof_tools::http::Request;

/// Connections that are served at a time: more than a browser opens.
const CONNECTIONS_MAX: usize = 16;
/// How long one may neither send nor take a byte.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves one document.
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    document: Document,
    /// With a part that nobody can guess.
    path: String,
    /// The names that a browser may have for this server.
    names: Vec<String>,
    connections: AtomicUsize,
}

impl Server {
    /// A server at this TCP port of the loopback interface; 0 stands for any that is free.
    ///
    /// # Errors
    /// The port can't be had.
    pub fn bind(port: u16, document: Document) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("Cannot listen at port {port} of 127.0.0.1"))?;
        let port = listener.local_addr()?.port();
        let path = format!("/{}/{}", secret()?, document.file);
        let names = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{port}"));
        let shared = Shared {
            document,
            path,
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
        let host = self.shared.names.first().map_or("", String::as_str);
        format!("http://{host}{}", self.shared.path)
    }

    /// Serves from now on, in threads of its own. Where no connection can be accepted any more, `interrupt` is raised.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn start(self, interrupt: &Interrupt) -> io::Result<()> {
        let stopper = interrupt.stopper();
        let thread = thread::Builder::new().name("server".into());
        thread.spawn(move || {
            for stream in self.listener.incoming() {
                match stream {
                    Ok(stream) => serve(stream, &self.shared),
                    // A browser that has changed its mind.
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

/// Answers a connection's request in a thread of its own. Where there are too many, the connection ends.
fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    let connection = Connection::of(shared);
    if shared.connections.load(Ordering::Relaxed) > CONNECTIONS_MAX {
        return;
    }
    let thread = thread::Builder::new().name("connection".into());
    let spawned = thread.spawn(move || {
        // A browser that has gone needs no answer.
        let _ = answer(stream, &connection.0);
    });
    if let Err(error) = spawned {
        log::warn!("Cannot serve a connection: {error}");
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
    let request = Request::read(&mut stream);
    let response = Response::to(&request, &shared.document, &shared.path, &shared.names);
    response.write(&mut stream)
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
    let mut word = String::new();
    for byte in bytes {
        let _ = write!(word, "{byte:02x}");
    }
    Ok(word)
}
