//! Serves the counts to Prometheus.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use kvmprof_tools::http::{BadRequest, Method, Request};

use crate::metrics::Metrics;

/// How long a client may take in all, to ask and to read the answer: others wait for it, and so does who ends this.
const TIME: Duration = Duration::from_secs(5);
/// The wait when the host gives no connection, as when this process has too many files.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are written at a time.
const PIECE: usize = 64 << 10;
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
        Self::with_time(address, metrics, TIME)
    }

    /// As [`start`](Self::start); each client has so much time.
    fn with_time(
        address: SocketAddr,
        metrics: Arc<Metrics>,
        time: Duration,
    ) -> anyhow::Result<Self> {
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
                match stream {
                    Ok(stream) => {
                        let stream = UntilDeadline(&stream, Instant::now() + time);
                        // A client that has gone needs no answer.
                        let _ = answer(stream, &metrics);
                    }
                    // The next one would fail at once.
                    Err(_) => sleep(PAUSE),
                }
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
        let woken = TcpStream::connect_timeout(&self.address, TIME);
        if let (Some(thread), Ok(_)) = (self.thread.take(), woken) {
            let _ = thread.join();
        }
    }
}

/// A connection until a moment, however slowly bytes come and go.
struct UntilDeadline<'a>(&'a TcpStream, Instant);

impl UntilDeadline<'_> {
    /// The rest of the time, which isn't zero.
    fn rest(&self) -> io::Result<Duration> {
        let rest = self.1.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(rest)
    }
}

impl Read for UntilDeadline<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.set_read_timeout(Some(self.rest()?))?;
        self.0.read(bytes)
    }
}

impl Write for UntilDeadline<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.set_write_timeout(Some(self.rest()?))?;
        // In pieces: a client that takes one now and then has no more time for it.
        self.0.write(bytes.get(..PIECE).unwrap_or(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn answer(mut stream: UntilDeadline<'_>, metrics: &Metrics) -> io::Result<()> {
    let request = Request::read(&mut stream);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::testing::batch;
    use crate::config::Config;
    use crate::spool::Spool;

    /// What a client reads that takes `piece` bytes at a time, and waits `pause` in between.
    fn read(address: SocketAddr, path: &str, piece: usize, pause: Duration) -> Vec<u8> {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let (mut all, mut bytes) = (Vec::new(), vec![0; piece]);
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            all.extend_from_slice(&bytes[..length]);
            sleep(pause);
        }
        all
    }

    #[test]
    fn a_slow_reader_holds_nobody_up_for_long() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(&folder.path().join("spool"), 1 << 20, &[]).unwrap();
        let metrics = Metrics::new(&Config::default(), "host", Arc::new(spool));
        // Far more than fits into the buffers of a connection.
        let guests: Vec<String> = (0..24_000).map(|number| format!("{number:0100}")).collect();
        let guests: Vec<&str> = guests.iter().map(String::as_str).collect();
        metrics.add(&batch(100, &guests, 7));
        let whole = metrics.text().unwrap().len();
        assert!(whole > 32 << 20, "{whole}");
        let time = Duration::from_millis(500);
        let address = "127.0.0.1:0".parse().unwrap();
        let page = Page::with_time(address, Arc::new(metrics), time).unwrap();
        let address = page.address();
        // It takes all of it within the pauses that each write allows, though not within the whole time.
        let slow = std::thread::spawn(move || {
            read(address, "/metrics", 64 << 10, Duration::from_millis(10)).len()
        });
        // Whose own time is over by its turn, on a busy host, gets another answer or none.
        while !read(address, "/other", 1 << 10, Duration::ZERO).starts_with(b"HTTP/1.1 404") {}
        let taken = slow.join().unwrap();
        println!("{taken} of {whole} bytes");
        assert!(taken < whole);
        // It ends, though somebody is connected and says nothing.
        let _silent = TcpStream::connect(address).unwrap();
        drop(page);
    }
}
