//! Which hosts a request for the page may name.
//!
//! Everything that reaches the address may read the page. A browser reaches more than the sites do whose pages it shows: such a site can
//! have its own name lead to this address, so that its page may read what is served here, as its own (DNS rebinding). The browser
//! writes that name into the request, which is refused for it. A number can lead nowhere else, so no site has that of another machine.

use std::net::IpAddr;

/// Returns whether a request whose `Host` header is `named` is for this page, which is served at the host `served`: it names that one,
/// this machine, or an address by its number. The port may be another one, as behind a forwarder.
pub(super) fn is_served(named: &str, served: &str) -> bool {
    let host = without_port(named.trim());
    let is_number = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    // A name may end with the root's dot.
    let host = host.trim_end_matches('.');
    is_number
        || ["localhost", served.trim_end_matches('.')].iter().any(|name| host.eq_ignore_ascii_case(name))
}

/// Returns what a client reads whose request is refused.
pub(super) fn refusal(named: &str) -> String {
    let named: String = named.chars().take(SHOWN_MAX).collect();
    format!(
        "this page is not served as {named:?}: open it by its IP address or as localhost, or give that name to squall top --serve"
    )
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// A name of the DNS has at most this many characters.
const SHOWN_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_and_numbers_are_served_and_other_names_are_not() {
        for named in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "127.0.0.1:8080",
            "192.0.2.1",
            "[::1]:8080",
            "[::1]",
            "display.example:80",
            "Display.Example.",
            "display.example:1234",
            " 127.0.0.1:8080 ",
        ] {
            assert!(is_served(named, "display.example"), "{named}");
        }
        for named in [
            "",
            ":8080",
            "other.example",
            "other.example:8080",
            "localhost.other.example",
            "127.0.0.1.other.example",
            "display.example.other.example",
            "display.example:8080@other.example",
            "127.0.0.1:8080.other.example",
            "127.0.0.1, other.example",
            "[other.example]",
        ] {
            assert!(!is_served(named, "display.example"), "{named}");
        }
        assert!(refusal(&"a".repeat(9000)).len() < 500);
    }
}
