//! Requests by HTTP, for servers of one page: the browser's, and Prometheus's.

use std::io::Read;

/// Longest head of a request, in bytes, and most headers in it: browsers send a tenth of that.
const HEAD_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Asks for a document.
    Get,
    /// Asks for the headers only.
    Head,
    /// Asks whether another site's page may get it (fetch.spec.whatwg.org, section 3.2.2).
    Options,
}

/// A request, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks.
    pub method: Method,
    /// From the first slash on.
    pub path: String,
    /// The server's name and port, as the browser has them.
    pub host: String,
}

/// Why a request isn't answered with what it asks for.
#[derive(Debug)]
pub enum BadRequest {
    /// It is no HTTP, too long, or has broken off.
    Malformed,
    /// Its method is none of those served.
    Method,
}

impl Request {
    /// Reads the head of a request. A body is left alone.
    ///
    /// # Errors
    /// [`BadRequest`].
    pub fn read(stream: &mut impl Read) -> Result<Self, BadRequest> {
        let mut head = Vec::new();
        let mut piece = [0; 1024];
        while head.len() < HEAD_MAX {
            let count = stream.read(&mut piece).map_err(|_| BadRequest::Malformed)?;
            if count == 0 {
                return Err(BadRequest::Malformed);
            }
            head.extend_from_slice(&piece[..count]);
            if let Some(request) = Self::parse(&head)? {
                return Ok(request);
            }
        }
        Err(BadRequest::Malformed)
    }

    /// The request of this head; `None` while it isn't whole.
    fn parse(head: &[u8]) -> Result<Option<Self>, BadRequest> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let parsed = request.parse(head).map_err(|_| BadRequest::Malformed)?;
        if parsed.is_partial() {
            return Ok(None);
        }
        let method = match request.method {
            Some("GET") => Method::Get,
            Some("HEAD") => Method::Head,
            Some("OPTIONS") => Method::Options,
            _ => return Err(BadRequest::Method),
        };
        let mut hosts = (request.headers.iter())
            .filter(|header| header.name.eq_ignore_ascii_case("host"))
            .map(|header| String::from_utf8_lossy(header.value).into_owned());
        let (Some(path), Some(host), None) = (request.path, hosts.next(), hosts.next()) else {
            return Err(BadRequest::Malformed);
        };
        Ok(Some(Self {
            method,
            path: path.to_owned(),
            host,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request, BadRequest> {
        Request::read(&mut text.as_bytes())
    }

    #[test]
    fn requests_are_read() {
        let request = read("GET /a/ HTTP/1.1\r\nhost: localhost:1\r\nAccept: */*\r\n\r\n").unwrap();
        let expected = Request {
            method: Method::Get,
            path: "/a/".to_owned(),
            host: "localhost:1".to_owned(),
        };
        assert_eq!(request, expected);
        let head = read("HEAD / HTTP/1.0\r\nHost: a\r\n\r\nbody").unwrap();
        assert_eq!((head.method, head.host.as_str()), (Method::Head, "a"));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_MAX));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        for text in [
            "",
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "\0\u{1}\u{2}\r\n\r\n",
            &long,
            &many,
        ] {
            assert!(matches!(read(text), Err(BadRequest::Malformed)), "{text:?}");
        }
        let post = read("POST / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(matches!(post, Err(BadRequest::Method)));
    }
}
