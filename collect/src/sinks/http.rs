//! HTTP requests to sinks.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use ureq::http::Response;
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, SendBody};

use super::departure::{Departure, HeldBack};
use super::{Failure, tls};
use crate::config::Endpoint;
use crate::files::read_text_up_to;

/// Maximum time of a request.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// The header `User-Agent`.
pub const USER_AGENT: &str = concat!("kvmprof-collect/", env!("CARGO_PKG_VERSION"));
/// Maximum length of a file with the value of a header, of an answer, and of the part of an error that is logged, in bytes.
const MAX_VALUE: u64 = 16 << 10;
pub const MAX_ANSWER: usize = 1 << 20;
const MAX_ERROR: usize = 200;

/// Posts to one address.
pub struct Poster {
    agent: Agent,
    url: String,
    headers: BTreeMap<String, String>,
}

/// An HTTP client with this `tls`.
pub fn agent(tls: TlsConfig) -> Agent {
    agent_with(tls, TIMEOUT)
}

/// As [`agent`], with this maximum time of a request.
fn agent_with(tls: TlsConfig, time: Duration) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(time))
        .http_status_as_error(false)
        // Neither data nor secrets may go to another address.
        .max_redirects(0)
        .proxy(None)
        .user_agent(USER_AGENT)
        .tls_config(tls)
        .build();
    config.new_agent()
}

/// The message in protocol buffers, compressed by gzip.
pub fn packed(message: &impl Message) -> io::Result<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(&message.encode_to_vec())?;
    packer.finish()
}

impl Poster {
    /// A poster for `endpoint`. Reads the files with the values of headers.
    pub fn new(endpoint: &Endpoint) -> anyhow::Result<Self> {
        let tls = tls::client(&endpoint.tls, endpoint.url.starts_with("https://"))?;
        Ok(Self {
            agent: agent(tls),
            url: endpoint.url.clone(),
            headers: with_values(&endpoint.headers, &endpoint.header_files)?,
        })
    }

    /// Posts `body` to the address with `query`. The last byte is held back until the `departure` is noted.
    pub fn post(
        &self,
        query: &[(&str, String)],
        kind: &str,
        body: &[u8],
        departure: &Departure,
    ) -> Result<(), Failure> {
        self.post_with(query, &[("Content-Type", kind)], body, departure)?;
        Ok(())
    }

    /// As [`post`](Self::post), with these headers in addition to those of the configuration. Returns the answer, cut at [`MAX_ANSWER`].
    pub fn post_with(
        &self,
        query: &[(&str, String)],
        headers: &[(&str, &str)],
        body: &[u8],
        departure: &Departure,
    ) -> Result<Vec<u8>, Failure> {
        let mut request = self.agent.post(&self.url);
        for (name, value) in query {
            request = request.query(name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let url = shown(&self.url);
        // By the length a receiver knows that a shorter body is incomplete.
        let request = request.header("Content-Length", body.len().to_string());
        let mut held = HeldBack::new(body, departure);
        let body = SendBody::from_reader(&mut held);
        let mut answer = request.send(body).map_err(|error| {
            let advice = tls::advice(&error);
            anyhow!(error).context(format!("Cannot post to {url}{advice}"))
        })?;
        if answer.status().is_success() {
            return Ok(read_up_to(MAX_ANSWER, &mut answer));
        }
        let status = answer.status().as_u16();
        let after = answer.headers().get("Retry-After");
        let after = after.and_then(|value| value.to_str().ok()?.parse().ok());
        let text = read_up_to(MAX_ERROR, &mut answer);
        let text = kvmprof_report::text::visible(&String::from_utf8_lossy(&text));
        let error = anyhow!("{url} answers {status}: {text}");
        // These are about the batch itself, which stays as it is. The causes of all others may be removed.
        Err(match status {
            400 | 413 | 415 | 422 => Failure::Refused(error),
            _ => Failure::Retry {
                error,
                after: after.map(Duration::from_secs),
            },
        })
    }
}

/// `url` as messages show it: without its query, which may be a secret.
pub fn shown(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// The first bytes of an answer, as far as they can be read: the answer is useful, but not necessary.
fn read_up_to(length: usize, answer: &mut Response<Body>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reader = answer.body_mut().as_reader();
    let _ = reader.take(length as u64).read_to_end(&mut bytes);
    bytes
}

/// The values in `plain` and those in `files`, which it reads.
pub fn with_values(
    plain: &BTreeMap<String, String>,
    files: &BTreeMap<String, PathBuf>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let mut values = plain.clone();
    for (name, path) in files {
        values.insert(name.clone(), read_value(path)?);
    }
    Ok(values)
}

fn read_value(path: &Path) -> anyhow::Result<String> {
    let text = read_text_up_to(path, MAX_VALUE);
    let text = text.with_context(|| format!("Cannot read {}", path.display()))?;
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::process::Command;
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::config::Tls;
    use crate::spool::SpoolError;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Answers one request, whose body is one byte, with `head`.
    fn answer(listener: TcpListener, head: String) -> JoinHandle<()> {
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut byte) = (Vec::new(), [0]);
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            stream.read_exact(&mut byte).unwrap();
            let rest = "Content-Length: 0\r\nConnection: close\r\n\r\n";
            write!(stream, "{head}\r\n{rest}").unwrap();
        })
    }

    /// Whether a client has connected to it.
    fn is_connected(listener: &TcpListener) -> bool {
        listener.set_nonblocking(true).unwrap();
        match listener.accept() {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }

    fn poster(address: &str, time: Duration) -> Poster {
        Poster {
            agent: agent_with(tls::client(&Tls::default(), false).unwrap(), time),
            url: format!("http://{address}/"),
            headers: BTreeMap::new(),
        }
    }

    fn post(poster: &Poster) -> Result<(), Failure> {
        poster.post(&[], "text/plain", b"x", &Departure::new(|| Ok(())))
    }

    /// Receives all bytes of one client until it closes the connection.
    fn hear(listener: TcpListener) -> JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = Vec::new();
            // It may end with a reset.
            let _ = stream.read_to_end(&mut heard);
            heard
        })
    }

    /// The departure can't be noted, so that the receiver gets an incomplete request.
    #[test]
    fn a_request_is_completed_only_after_its_note() {
        let (server, address) = listener();
        let server = hear(server);
        let departure = Departure::new(|| Err(SpoolError::NotOwn("spool".into())));
        let body = [b'x'; 100_000];
        let poster = poster(&address.to_string(), TIMEOUT);
        let posted = poster.post(&[], "text/plain", &body, &departure);
        assert!(matches!(posted, Err(Failure::Retry { .. })), "{posted:?}");
        assert!(departure.end().is_some());
        drop(poster);
        let heard = String::from_utf8(server.join().unwrap()).unwrap();
        let (head, body) = heard.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        assert!(head.contains("content-length: 100000"), "{head}");
        assert!(!head.contains("transfer-encoding"), "{head}");
        assert_eq!(body.len(), 99_999);
    }

    /// No server listens, so no request is sent.
    #[test]
    fn a_request_without_a_connection_is_not_noted() {
        let (server, address) = listener();
        drop(server);
        let departure = Departure::new(|| unreachable!());
        let poster = poster(&address.to_string(), TIMEOUT);
        let posted = poster.post(&[], "text/plain", b"x", &departure);
        assert!(matches!(posted, Err(Failure::Retry { .. })), "{posted:?}");
    }

    #[test]
    fn redirects_are_not_followed() {
        for status in [301, 302, 303, 307, 308] {
            let ((other, elsewhere), (server, address)) = (listener(), listener());
            let head = format!("HTTP/1.1 {status} x\r\nLocation: http://{elsewhere}/");
            let server = answer(server, head);
            let posted = post(&poster(&address.to_string(), TIMEOUT));
            let Err(Failure::Retry { error, .. }) = posted else {
                panic!("{posted:?}");
            };
            let said = format!("{error:#}");
            assert!(said.contains(&format!("answers {status}")), "{said}");
            server.join().unwrap();
            assert!(!is_connected(&other));
        }
    }

    #[test]
    fn a_receiver_that_does_not_answer_times_out() {
        let (_hanging, address) = listener();
        let poster = poster(&address.to_string(), Duration::from_millis(50));
        let posted = post(&poster);
        assert!(matches!(posted, Err(Failure::Retry { .. })), "{posted:?}");
        let agent = agent(tls::client(&Tls::default(), false).unwrap());
        assert_eq!(agent.config().timeouts().global, Some(TIMEOUT));
    }

    /// The address to which the test posts when it starts itself.
    const ADDRESS: &str = "KVMPROF_TEST_ADDRESS";

    #[test]
    fn proxies_of_the_environment_are_not_used() {
        if let Ok(address) = std::env::var(ADDRESS) {
            post(&poster(&address, TIMEOUT)).unwrap();
            return;
        }
        let ((proxy, proxy_address), (server, address)) = (listener(), listener());
        let server = answer(server, "HTTP/1.1 200 OK".to_owned());
        let name = "sinks::http::tests::proxies_of_the_environment_are_not_used";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name]);
        command.env(ADDRESS, address.to_string());
        command.env_remove("NO_PROXY").env_remove("no_proxy");
        for variable in ["ALL_PROXY", "HTTP_PROXY", "http_proxy"] {
            command.env(variable, format!("http://{proxy_address}"));
        }
        let ran = command.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        server.join().unwrap();
        assert!(!is_connected(&proxy));
    }
}
