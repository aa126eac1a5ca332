//! Serves the counts to Prometheus.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use kvmprof_tools::http::{BadRequest, Method, Request};

use crate::metrics::Metrics;

/// How long a client may take to ask, and for each piece of the answer: others wait for it.
const IDLE: Duration = Duration::from_secs(5);
/// The form of the text (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server of the page `/metrics`. Dropped, it ends.
pub struct Page {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Page {
    /// Serves `metrics` at `address` from now on.
    ///
    /// # Errors
    /// The address can't be had, or the host gives no thread.
    pub fn start(address: SocketAddr, metrics: Arc<Metrics>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address)
            .with_context(|| format!("Cannot serve metrics at {address}"))?;
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_over);
        let thread = Builder::new().name("metrics".into()).spawn(move || {
            for stream in listener.incoming() {
                if ending.load(Ordering::Relaxed) {
                    return;
                }
                // A client that has gone needs no answer.
                let _ = stream.and_then(|stream| answer(stream, &metrics));
            }
        })?;
        Ok(Self {
            address,
            is_over,
            thread: Some(thread),
        })
    }

    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread waits for a connection: it gets one.
        let woken = TcpStream::connect_timeout(&self.address, IDLE);
        if let (Some(thread), Ok(_)) = (self.thread.take(), woken) {
            let _ = thread.join();
        }
    }
}

/// Reads until a moment, however slowly bytes come.
struct UntilDeadline<'a>(&'a TcpStream, Instant);

impl Read for UntilDeadline<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let rest = self.1.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(rest))?;
        self.0.read(bytes)
    }
}

fn answer(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    stream.set_write_timeout(Some(IDLE))?;
    let request = Request::read(&mut UntilDeadline(&stream, Instant::now() + IDLE));
    let (status, body) = match &request {
        Err(BadRequest::Method) => ("405 Method Not Allowed", String::new()),
        Err(_) => ("400 Bad Request", String::new()),
        Ok(request) if matches!(request.method, Method::Options | Method::Post) => {
            ("405 Method Not Allowed", String::new())
        }
        Ok(request) if request.path != "/metrics" => ("404 Not Found", String::new()),
        Ok(_) => ("200 OK", metrics.text().map_err(io::Error::other)?),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {KIND}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if request.is_ok_and(|request| request.method == Method::Get) {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}
