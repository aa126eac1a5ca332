//! The responses to a browser.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use kvmprof_cli::http::{BadRequest, Method, Request};

/// The media type of profiles and of symbol servers' answers.
const JSON: &str = "application/json";

/// The served document, and who may load it.
#[derive(Debug)]
pub struct Document {
    /// The last part of its path.
    pub file: &'static str,
    kind: &'static str,
    /// The site whose pages may also load it.
    pub site: Option<&'static str>,
    body: Vec<u8>,
}

impl Document {
    /// A page that only the browser itself loads.
    pub fn page(body: Vec<u8>) -> Self {
        Self {
            file: "",
            kind: "text/html; charset=utf-8",
            site: None,
            body,
        }
    }

    /// A profile in JSON, which pages of `site` may load.
    pub fn profile(body: Vec<u8>, site: &'static str) -> Self {
        Self {
            file: "profile.json",
            kind: JSON,
            site: Some(site),
            body,
        }
    }
}

/// The header that lets pages of `site` read an answer.
fn allowed(site: Option<&str>) -> String {
    site.map_or_else(String::new, |site| {
        format!("Access-Control-Allow-Origin: {site}\r\n")
    })
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Response<'a> {
    status: &'static str,
    headers: String,
    body: Cow<'a, [u8]>,
}

impl<'a> Response<'a> {
    /// The answer to a request for the `document` at `path`, on a server with one of these names.
    pub fn to(
        request: &Result<Request, BadRequest>,
        document: &'a Document,
        path: &str,
        names: &[String],
    ) -> Self {
        let request = match request {
            Ok(request) => request,
            Err(error) => return Self::refusal(error),
        };
        // A site that makes its own name resolve to this host's loopback address gets nothing.
        if !names.contains(&request.host) {
            return Self::error("403 Forbidden");
        }
        if request.path != path {
            return Self::error("404 Not Found");
        }
        match request.method {
            Method::Post => Self::error("405 Method Not Allowed"),
            Method::Options => Self::permission(document.site),
            Method::Head => Self {
                body: Cow::default(),
                ..Self::found(document.site, document.kind, Cow::Borrowed(&document.body))
            },
            Method::Get => Self::found(document.site, document.kind, Cow::Borrowed(&document.body)),
        }
    }

    /// The answer to an invalid request.
    pub fn refusal(error: &BadRequest) -> Self {
        Self::error(match error {
            BadRequest::Malformed => "400 Bad Request",
            BadRequest::Method => "405 Method Not Allowed",
            BadRequest::NoLength => "411 Length Required",
            BadRequest::TooLong => "413 Content Too Large",
        })
    }

    /// A JSON document for pages of `site`.
    pub fn json(site: Option<&str>, body: Vec<u8>) -> Self {
        Self::found(site, JSON, Cow::Owned(body))
    }

    /// The answer that lets pages of `site` send requests.
    pub fn permission(site: Option<&str>) -> Self {
        let mut headers = allowed(site);
        if site.is_some() {
            headers.push_str("Access-Control-Allow-Private-Network: true\r\n");
            headers.push_str("Access-Control-Allow-Headers: content-type\r\n");
        }
        Self {
            status: "204 No Content",
            headers,
            body: Cow::default(),
        }
    }

    fn found(site: Option<&str>, kind: &str, body: Cow<'a, [u8]>) -> Self {
        let mut headers = allowed(site);
        let _ = write!(
            headers,
            "Content-Type: {kind}\r\nContent-Length: {}\r\n",
            body.len()
        );
        Self {
            status: "200 OK",
            headers,
            body,
        }
    }

    /// An answer with only a status.
    pub fn error(status: &'static str) -> Self {
        Self {
            status,
            headers: "Content-Length: 0\r\n".to_owned(),
            body: Cow::default(),
        }
    }

    /// Sends the answer.
    ///
    /// # Errors
    /// The browser is gone.
    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        write!(
            stream,
            "HTTP/1.1 {}\r\n{}Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.status, self.headers
        )?;
        stream.write_all(&self.body)?;
        stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response<'a>(
        document: &'a Document,
        method: Method,
        path: &str,
        host: &str,
    ) -> Response<'a> {
        let text = format!("{} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n", name(method));
        let request = Request::read(&mut text.as_bytes()).map(Option::unwrap);
        let names = ["127.0.0.1:9".to_owned(), "localhost:9".to_owned()];
        Response::to(&request, document, "/secret/", &names)
    }

    fn name(method: Method) -> &'static str {
        match method {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Options => "OPTIONS",
        }
    }

    #[test]
    fn only_the_secret_path_gets_the_document() {
        let page = Document::page(b"page".to_vec());
        let get = |path, host| response(&page, Method::Get, path, host);
        let found = get("/secret/", "localhost:9");
        assert_eq!(
            (found.status, found.body.as_ref()),
            ("200 OK", &b"page"[..])
        );
        assert!(found.headers.contains("Content-Length: 4\r\n"));
        assert!(!found.headers.contains("Access-Control"));
        assert_eq!(get("/", "localhost:9").status, "404 Not Found");
        let post = response(&page, Method::Post, "/secret/", "localhost:9");
        assert_eq!(post.status, "405 Method Not Allowed");
        for host in ["example.org", "localhost", "localhost:90", "a"] {
            assert_eq!(get("/secret/", host).status, "403 Forbidden");
        }
        let head = response(&page, Method::Head, "/secret/", "127.0.0.1:9");
        assert_eq!((head.status, head.body.as_ref()), ("200 OK", &b""[..]));
    }

    #[test]
    fn another_origin_gets_only_what_is_meant_for_it() {
        let profile = Document::profile(b"{}".to_vec(), "https://example.org");
        for (method, status) in [(Method::Get, "200 OK"), (Method::Options, "204 No Content")] {
            let answer = response(&profile, method, "/secret/", "127.0.0.1:9");
            let allowed = "Access-Control-Allow-Origin: https://example.org\r\n";
            assert_eq!(answer.status, status);
            assert!(answer.headers.contains(allowed), "{}", answer.headers);
        }
    }
}
