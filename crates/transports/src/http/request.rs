//! Requests of HTTP/1: the head of what a client has sent, or what is wrong with it (of no paper).

use super::answer::HttpAnswer;

/// A request that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// The path, without query.
    pub path: String,
    /// The answer goes without its body.
    pub head_only: bool,
    /// What its `Host` headers name: one in each request of a browser.
    pub hosts: Vec<String>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// It is not HTTP/1.
    Malformed,
    /// It has more bytes or headers than any client needs.
    Long,
    /// It asks for something to be changed.
    Method,
    /// It did not come in time.
    Late,
}

impl RequestFault {
    pub(super) fn answer(self) -> HttpAnswer {
        match self {
            Self::Malformed => HttpAnswer::line(400, "this is no request of HTTP/1"),
            Self::Method => HttpAnswer::line(405, "there is nothing to change here: GET"),
            Self::Late => HttpAnswer::line(408, "the request did not come in time"),
            Self::Long => HttpAnswer::line(431, "the request is too long"),
        }
    }
}

/// Reads what a client has sent so far; `None` if more is to come. Fuzzed as `metrics`.
///
/// # Errors
/// Returns an error if it is no request that can be answered.
pub fn read_request(bytes: &[u8]) -> Result<Option<HttpRequest>, RequestFault> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(RequestFault::Long);
        }
        Err(_) => return Err(RequestFault::Malformed),
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(RequestFault::Method),
    };
    let path = request.path.unwrap_or_default().split(['?', '#']).next().unwrap_or_default().into();
    let hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let hosts = hosts.map(|header| String::from_utf8_lossy(header.value).into_owned()).collect();
    Ok(Some(HttpRequest { path, head_only, hosts }))
}

/// A scraper sends some hundred bytes, a browser a few thousand.
pub(super) const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_others_refused() {
        let ask = |path: &str, head_only, hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (*host).into()).collect();
            Ok(Some(HttpRequest { path: path.into(), head_only, hosts }))
        };
        let long_line = format!("GET /{} HTTP/1.1\r\n", "a".repeat(REQUEST_BYTES_MAX));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        for (text, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\nhOST: b\r\n\r\n", ask("/metrics", false, &["a", "b"])),
            ("GET /metrics?name=a HTTP/1.0\n\n", ask("/metrics", false, &[])),
            ("HEAD /healthz#a HTTP/1.1\r\n\r\n", ask("/healthz", true, &[])),
            ("GET /readyz HTTP/1.1\r\n\r\nmore", ask("/readyz", false, &[])),
            ("", Ok(None)),
            ("GET /metrics HTTP/1.1\r\nHost: a", Ok(None)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Err(RequestFault::Method)),
            ("GET /metrics\r\n\r\n", Err(RequestFault::Malformed)),
            ("\x16\x03\x01 a client that expects TLS", Err(RequestFault::Malformed)),
            ("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", Err(RequestFault::Malformed)),
            (&long_line, Err(RequestFault::Long)),
            (&many, Err(RequestFault::Long)),
        ] {
            assert_eq!(read_request(text.as_bytes()), expected, "{text}");
        }
    }

    /// Every beginning of a request is one to which more is to come.
    #[test]
    fn a_request_may_come_byte_by_byte() {
        let text = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(read_request(&text[..end]), Ok(None), "{end}");
        }
    }
}
