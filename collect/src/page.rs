//! Serves the metrics to Prometheus.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::Context;
use kvmprof_cli::http::{BadRequest, Method, Request, UntilDeadline};

use crate::metrics::Metrics;

/// Maximum time of a client, from the connection to the end of the answer. Other clients, and the end of the server, wait for it.
const TIME: Duration = Duration::from_secs(5);
/// The wait after a connection couldn't be accepted, for example because this process has too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// The media type of the text (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server of the page `/metrics`. It ends when this is dropped.
pub struct Page {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Page {
    /// Serves `metrics` at `address` from now on.
    ///
    /// # Errors
    /// The address can't be used, or the system gives no thread.
    pub fn start(address: SocketAddr, metrics: Arc<Metrics>) -> anyhow::Result<Self> {
        Self::with_time(address, metrics, TIME)
    }

    /// As [`start`](Self::start), with this maximum time of a client.
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
                        // The client may have closed the connection.
                        let _ = answer(stream, address, &metrics);
                    }
                    // The next attempt would fail at once.
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

    /// The address at which the page is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The thread waits for a connection: this one wakes it.
        let woken = TcpStream::connect_timeout(&self.address, TIME);
        if let (Some(thread), Ok(_)) = (self.thread.take(), woken) {
            let _ = thread.join();
        }
    }
}

/// Whether a request with this `Host` may be for a server at `address`. A page of another site, whose name its owner has let lead to 127.0.0.1 (DNS rebinding),
/// has the browser ask for that name.
fn is_for(host: &str, address: SocketAddr) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let number = |host: &str| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok()
    };
    !address.ip().is_loopback()
        || name.eq_ignore_ascii_case("localhost")
        || number(name)
        || number(host)
}

fn answer(mut stream: UntilDeadline<'_>, address: SocketAddr, metrics: &Metrics) -> io::Result<()> {
    let Some(request) = Request::read(&mut stream).transpose() else {
        return Ok(());
    };
    let (status, body) = match &request {
        Err(BadRequest::Method) => ("405 Method Not Allowed", String::new()),
        Err(_) => ("400 Bad Request", String::new()),
        Ok(request) if matches!(request.method, Method::Options | Method::Post) => {
            ("405 Method Not Allowed", String::new())
        }
        Ok(request) if !is_for(&request.host, address) => {
            ("421 Misdirected Request", String::new())
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
    use std::io::Read;

    use super::*;
    use crate::batch::testing::batch;
    use crate::config::Config;
    use crate::spool::Spool;

    /// The bytes that a client reads, `piece` bytes at a time with a `pause` after each.
    fn read(address: SocketAddr, path: &str, piece: usize, pause: Duration) -> Vec<u8> {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost:1\r\n\r\n").unwrap();
        let (mut all, mut bytes) = (Vec::new(), vec![0; piece]);
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            all.extend_from_slice(&bytes[..length]);
            sleep(pause);
        }
        all
    }

    #[test]
    fn a_loopback_server_answers_for_no_other_host_name() {
        let local = "127.0.0.1:9464".parse().unwrap();
        for host in [
            "localhost",
            "LOCALHOST:9464",
            "127.0.0.1:1",
            "[::1]:9464",
            "::1",
        ] {
            assert!(is_for(host, local), "{host}");
        }
        for host in [
            "",
            "attacker.example:9464",
            "localhost.attacker.example",
            "localhost:9464:1",
        ] {
            assert!(!is_for(host, local), "{host}");
        }
        assert!(!is_for("attacker.example", "[::1]:9464".parse().unwrap()));
        // Other hosts may use any name for it.
        assert!(is_for(
            "collector.example",
            "192.0.2.1:9464".parse().unwrap()
        ));
    }

    #[test]
    fn a_slow_reader_delays_others_for_a_bounded_time() {
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
        // Each single write is in time, but all of them together aren't.
        let slow = std::thread::spawn(move || {
            read(address, "/metrics", 64 << 10, Duration::from_millis(10)).len()
        });
        // On a busy host, a client whose time is over before its turn gets another answer or none.
        while !read(address, "/other", 1 << 10, Duration::ZERO).starts_with(b"HTTP/1.1 404") {}
        let taken = slow.join().unwrap();
        println!("{taken} of {whole} bytes");
        assert!(taken < whole);
        // It ends although a silent client is connected.
        let _silent = TcpStream::connect(address).unwrap();
        drop(page);
    }
}
