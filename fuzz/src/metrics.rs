//! Requests for metrics, from anyone who connects: the only bytes that are read before a proof of the secret.

use squall::metrics::read_foreign;

/// What was asked does not change when more comes, and what was refused stays refused.
pub fn feed(bytes: &[u8]) {
    // A request that is longer is refused as soon as that is known, whatever follows.
    let bytes = &bytes[..bytes.len().min(8000)];
    let whole = read_foreign(bytes);
    for end in 0..bytes.len() {
        if let Some(asked) = read_foreign(&bytes[..end]) {
            assert_eq!(whole, Some(asked), "another answer after {end} bytes");
            break;
        }
    }
}

/// A scraper's request, a probe's, one that is refused, and the beginning of one.
pub fn seeds() -> Vec<Vec<u8>> {
    let scraper =
        "GET /metrics HTTP/1.1\r\nHost: a:9464\r\nAccept: text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n\r\n";
    let probe = "HEAD /readyz?a=b HTTP/1.0\r\n\r\n";
    let texts = [scraper, probe, "POST /healthz HTTP/1.1\r\n\r\n", &scraper[..30]];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}
