//! HTTP requests, for the small servers of this project: that of a page in the browser, and that of Prometheus's metrics.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Maximum length of the head of a request, in bytes, and maximum number of its headers. Browsers send a tenth of that.
const HEAD_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// Maximum number of bytes that are written at once.
const PIECE: usize = 64 << 10;

/// A connection that can be used until a deadline, however slowly the client reads and writes.
#[derive(Debug)]
pub struct UntilDeadline<'a>(pub &'a TcpStream, pub Instant);

impl UntilDeadline<'_> {
    /// The time until the deadline, which isn't zero.
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
        // In pieces, so that a client that reads slowly doesn't extend its time.
        self.0.write(bytes.get(..PIECE).unwrap_or(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Requests a document.
    Get,
    /// Requests the headers of a document.
    Head,
    /// Sends data in the body of the request.
    Post,
    /// Asks whether a page of another site may make the request (fetch.spec.whatwg.org, section 3.2.2).
    Options,
}

/// A request, reduced to the parts that these servers use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, from the first slash on.
    pub path: String,
    /// The server's name and port, as the client wrote them.
    pub host: String,
    /// The length of the body in bytes, according to the head.
    length: Option<usize>,
    /// The part of the body that arrived with the head.
    begin: Vec<u8>,
}

/// Why a request is refused.
#[derive(Debug)]
pub enum BadRequest {
    /// The request isn't HTTP, is too long, or was cut off.
    Malformed,
    /// The method isn't supported.
    Method,
    /// The head lacks the length of the body.
    NoLength,
    /// The body is too long.
    TooLong,
}

impl Request {
    /// Reads the head of a request. [`Self::body`] reads the rest. `None` if nothing comes, which gets no answer: browsers keep connections for later, and one
    /// would take an answer for that to a request which it sends at the same time. Without one it sends the request again.
    ///
    /// # Errors
    /// [`BadRequest`].
    pub fn read(stream: &mut impl Read) -> Result<Option<Self>, BadRequest> {
        let mut head = Vec::new();
        let mut piece = [0; 1024];
        while head.len() < HEAD_MAX {
            let count = stream.read(&mut piece).unwrap_or(0);
            if count == 0 && head.is_empty() {
                return Ok(None);
            } else if count == 0 {
                return Err(BadRequest::Malformed);
            }
            head.extend_from_slice(&piece[..count]);
            if let Some(request) = Self::parse(&head)? {
                return Ok(Some(request));
            }
        }
        Err(BadRequest::Malformed)
    }

    /// Reads the body, of at most `limit` bytes.
    ///
    /// # Errors
    /// [`BadRequest`].
    pub fn body(&mut self, stream: &mut impl Read, limit: usize) -> Result<Vec<u8>, BadRequest> {
        let length = self.length.ok_or(BadRequest::NoLength)?;
        if length > limit {
            return Err(BadRequest::TooLong);
        }
        let mut body = std::mem::take(&mut self.begin);
        body.truncate(length);
        // The announced length may never arrive, so memory is allocated only for bytes that have.
        let rest = (length - body.len()) as u64;
        let read = stream.take(rest).read_to_end(&mut body);
        read.map_err(|_| BadRequest::Malformed)?;
        if body.len() < length {
            return Err(BadRequest::Malformed);
        }
        Ok(body)
    }

    /// The request with this head; `None` while the head is incomplete.
    fn parse(head: &[u8]) -> Result<Option<Self>, BadRequest> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let parsed = request.parse(head).map_err(|_| BadRequest::Malformed)?;
        let httparse::Status::Complete(end) = parsed else {
            return Ok(None);
        };
        let method = match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            Some("POST") => Method::Post,
            Some("OPTIONS") => Method::Options,
            _ => return Err(BadRequest::Method),
        };
        let values = |name: &'static str| {
            (request.headers.iter())
                .filter(move |header| header.name.eq_ignore_ascii_case(name))
                .map(|header| String::from_utf8_lossy(header.value).into_owned())
        };
        let mut hosts = values("host");
        let (Some(path), Some(host), None) = (request.path, hosts.next(), hosts.next()) else {
            return Err(BadRequest::Malformed);
        };
        let mut lengths = values("content-length");
        let length = match (lengths.next(), lengths.next()) {
            (None, _) => None,
            (Some(length), None) => Some(length.parse().map_err(|_| BadRequest::Malformed)?),
            (Some(_), Some(_)) => return Err(BadRequest::Malformed),
        };
        Ok(Some(Self {
            method,
            path: path.to_owned(),
            host,
            length,
            begin: head.get(end..).unwrap_or_default().to_vec(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request, BadRequest> {
        Request::read(&mut text.as_bytes()).map(Option::unwrap)
    }

    #[test]
    fn requests_are_read() {
        let request = read("GET /a/ HTTP/1.1\r\nhost: localhost:1\r\nAccept: */*\r\n\r\n").unwrap();
        let expected = Request {
            method: Method::Get,
            path: "/a/".to_owned(),
            host: "localhost:1".to_owned(),
            length: None,
            begin: Vec::new(),
        };
        assert_eq!(request, expected);
        let head = read("HEAD / HTTP/1.0\r\nHost: a\r\n\r\nbody").unwrap();
        assert_eq!((head.method, head.host.as_str()), (Method::Head, "a"));
    }

    #[test]
    fn bodies_have_their_content_length() {
        let ask = |length: &str, body: &str, limit: usize| {
            let text = format!("POST /a HTTP/1.1\r\nHost: a\r\n{length}\r\n{body}");
            let mut stream = text.as_bytes();
            let mut request = Request::read(&mut stream)?.unwrap();
            request.body(&mut stream, limit)
        };
        let long = "x".repeat(5000);
        assert_eq!(
            ask("Content-Length: 5000\r\n", &long, 5000).unwrap(),
            long.as_bytes()
        );
        assert_eq!(ask("Content-Length: 2\r\n", "abc", 5000).unwrap(), b"ab");
        let refused = |length: &str| ask(length, &long, 5000).unwrap_err();
        assert!(matches!(refused(""), BadRequest::NoLength));
        assert!(matches!(
            refused("Content-Length: 5001\r\n"),
            BadRequest::TooLong
        ));
        for wrong in [
            "Content-Length: -1\r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
        ] {
            assert!(matches!(refused(wrong), BadRequest::Malformed));
        }
        let broken_off = ask("Content-Length: 5000\r\n", "abc", 5000);
        assert!(matches!(broken_off, Err(BadRequest::Malformed)));
    }

    #[test]
    fn invalid_requests_are_refused() {
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_MAX));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        assert!(matches!(Request::read(&mut &b""[..]), Ok(None)));
        for text in [
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "\0\u{1}\u{2}\r\n\r\n",
            &long,
            &many,
        ] {
            assert!(matches!(read(text), Err(BadRequest::Malformed)), "{text:?}");
        }
        let put = read("PUT / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(matches!(put, Err(BadRequest::Method)));
    }
}
