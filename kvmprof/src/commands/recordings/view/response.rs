//! What a browser gets.

use std::fmt::Write as _;
use std::io::{self, Write};

use kvmprof_tools::http::{BadRequest, Method, Request};

/// What is served, and to whom.
#[derive(Debug)]
pub struct Document {
    /// What it is, for the user.
    pub name: &'static str,
    /// The last part of its path.
    pub file: &'static str,
    kind: &'static str,
    /// The site whose pages may load it, too.
    site: Option<&'static str>,
    body: Vec<u8>,
}

impl Document {
    /// A page, which only the browser itself loads.
    pub fn page(body: Vec<u8>) -> Self {
        Self {
            name: "page",
            file: "",
            kind: "text/html; charset=utf-8",
            site: None,
            body,
        }
    }

    /// A profile in JSON, which pages of `site` load.
    pub fn profile(body: Vec<u8>, site: &'static str) -> Self {
        Self {
            name: "profile",
            file: "profile.json",
            kind: "application/json",
            site: Some(site),
            body,
        }
    }
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Response<'a> {
    status: &'static str,
    headers: String,
    body: &'a [u8],
}

impl<'a> Response<'a> {
    /// The answer to a request for the `document`, whose path is `path`, on a server with one of these names.
    pub fn to(
        request: &Result<Request, BadRequest>,
        document: &'a Document,
        path: &str,
        names: &[String],
    ) -> Self {
        let request = match request {
            Ok(request) => request,
            Err(BadRequest::Method) => return Self::error("405 Method Not Allowed"),
            Err(_) => return Self::error("400 Bad Request"),
        };
        // A site that has its own name stand for this host's loopback address gets nothing.
        if !names.contains(&request.host) {
            return Self::error("403 Forbidden");
        }
        if request.path != path {
            return Self::error("404 Not Found");
        }
        let mut headers = String::new();
        if let Some(site) = document.site {
            let _ = write!(headers, "Access-Control-Allow-Origin: {site}\r\n");
            if request.method == Method::Options {
                headers.push_str("Access-Control-Allow-Private-Network: true\r\n");
            }
        }
        let body = document.body.as_slice();
        if request.method == Method::Options {
            return Self {
                status: "204 No Content",
                headers,
                body: &[],
            };
        }
        let _ = write!(
            headers,
            "Content-Type: {}\r\nContent-Length: {}\r\n",
            document.kind,
            body.len()
        );
        Self {
            status: "200 OK",
            headers,
            body: match request.method {
                Method::Head => &[],
                _ => body,
            },
        }
    }

    fn error(status: &'static str) -> Self {
        Self {
            status,
            headers: "Content-Length: 0\r\n".to_owned(),
            body: &[],
        }
    }

    /// Sends it.
    ///
    /// # Errors
    /// The browser has gone.
    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        write!(
            stream,
            "HTTP/1.1 {}\r\n{}Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.status, self.headers
        )?;
        stream.write_all(self.body)?;
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
        let request = Request {
            method,
            path: path.to_owned(),
            host: host.to_owned(),
        };
        let names = ["127.0.0.1:9".to_owned(), "localhost:9".to_owned()];
        Response::to(&Ok(request), document, "/secret/", &names)
    }

    #[test]
    fn only_who_knows_the_path_gets_the_document() {
        let page = Document::page(b"page".to_vec());
        let get = |path, host| response(&page, Method::Get, path, host);
        let found = get("/secret/", "localhost:9");
        assert_eq!((found.status, found.body), ("200 OK", &b"page"[..]));
        assert!(found.headers.contains("Content-Length: 4\r\n"));
        assert!(!found.headers.contains("Access-Control"));
        assert_eq!(get("/", "localhost:9").status, "404 Not Found");
        for host in ["example.org", "localhost", "localhost:90", ""] {
            assert_eq!(get("/secret/", host).status, "403 Forbidden");
        }
        let head = response(&page, Method::Head, "/secret/", "127.0.0.1:9");
        assert_eq!((head.status, head.body), ("200 OK", &b""[..]));
    }

    #[test]
    fn another_site_gets_what_is_for_it() {
        let profile = Document::profile(b"{}".to_vec(), "https://example.org");
        for (method, status) in [(Method::Get, "200 OK"), (Method::Options, "204 No Content")] {
            let answer = response(&profile, method, "/secret/", "127.0.0.1:9");
            let allowed = "Access-Control-Allow-Origin: https://example.org\r\n";
            assert_eq!(answer.status, status);
            assert!(answer.headers.contains(allowed), "{}", answer.headers);
        }
    }
}
