//! Requests for metrics: the first line of what a client has sent, or what is wrong with it.

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsQuestion {
    /// The metrics.
    Metrics,
    /// Whether the process and its polling thread live.
    Health,
    /// Whether messages flow.
    Readiness,
    /// What the member has noticed lately.
    Trace,
}

/// A request that can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetricsRequest {
    pub(super) question: MetricsQuestion,
    /// The answer goes without its body.
    pub(super) head_only: bool,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFault {
    /// It is not HTTP/1.
    Malformed,
    /// It has more bytes or headers than any client needs.
    Long,
    /// It asks for something to be changed.
    Method,
    /// There is nothing at its path.
    Path,
}

/// Reads what a client has sent so far; `None` if more is to come. Fuzzed as `metrics`.
pub(super) fn read(bytes: &[u8]) -> Result<Option<MetricsRequest>, RequestFault> {
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
    let path = request.path.unwrap_or_default();
    let question = match path.split(['?', '#']).next().unwrap_or_default() {
        "/metrics" => MetricsQuestion::Metrics,
        "/healthz" => MetricsQuestion::Health,
        "/readyz" => MetricsQuestion::Readiness,
        "/trace" => MetricsQuestion::Trace,
        _ => return Err(RequestFault::Path),
    };
    Ok(Some(MetricsRequest { question, head_only }))
}

/// Reads bytes as a request, for fuzzing: returns how it is answered, or `None` if more is to come. Fuzzed as `metrics`.
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> Option<String> {
    match read(bytes) {
        Ok(None) => None,
        answered => Some(format!("{answered:?}")),
    }
}

/// A scraper sends some hundred bytes, a browser a few thousand.
pub(super) const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_others_refused() {
        let ask = |question, head_only| Ok(Some(MetricsRequest { question, head_only }));
        let long_line = format!("GET /{} HTTP/1.1\r\n", "a".repeat(REQUEST_BYTES_MAX));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        for (text, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", ask(MetricsQuestion::Metrics, false)),
            ("GET /metrics?name=a HTTP/1.0\n\n", ask(MetricsQuestion::Metrics, false)),
            ("HEAD /healthz HTTP/1.1\r\n\r\n", ask(MetricsQuestion::Health, true)),
            ("GET /trace HTTP/1.1\r\n\r\n", ask(MetricsQuestion::Trace, false)),
            ("GET /readyz HTTP/1.1\r\n\r\nmore", ask(MetricsQuestion::Readiness, false)),
            ("", Ok(None)),
            ("GET /metrics HTTP/1.1\r\nHost: a", Ok(None)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Err(RequestFault::Method)),
            ("GET / HTTP/1.1\r\n\r\n", Err(RequestFault::Path)),
            ("GET /metrics\r\n\r\n", Err(RequestFault::Malformed)),
            ("\x16\x03\x01 a client that expects TLS", Err(RequestFault::Malformed)),
            ("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", Err(RequestFault::Malformed)),
            (&long_line, Err(RequestFault::Long)),
            (&many, Err(RequestFault::Long)),
        ] {
            assert_eq!(read(text.as_bytes()), expected, "{text}");
        }
    }

    /// Every beginning of a request is one to which more is to come.
    #[test]
    fn a_request_may_come_byte_by_byte() {
        let text = b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(read(&text[..end]), Ok(None), "{end}");
        }
    }
}
