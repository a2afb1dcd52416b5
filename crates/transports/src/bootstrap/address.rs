//! The addresses at which a process listens or to which it connects, as people write them: `host:port`,
//! `unix:@name`, `unix:/path`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::own_addresses::{host_text, is_wildcard, link_local};

/// The longest address in bytes; with [`super::MEMBERS_MAX`] it bounds the roster.
pub const ADDRESS_BYTES_MAX: usize = 255;

/// The capacity of `sockaddr_un`, less the byte that begins an abstract name or ends a path.
const UNIX_BYTES_MAX: usize = 107;

/// An address to listen at or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// `host:port`; the host is a name, an IPv4 address or an IPv6 address (written in brackets).
    Tcp {
        /// Without brackets.
        host: String,
        /// 0 means that the kernel chooses a port at bind time.
        port: u16,
    },
    /// `unix:@name`: a Unix socket in the abstract namespace of Linux, which leaves no file behind.
    Abstract(String),
    /// `unix:/path`: a Unix socket at an absolute path.
    Path(PathBuf),
}

squall_fabric::debug_as_text!(AddressError);

/// Why a text is not an address.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text has none of the forms.
    #[error("`{0}` is not an address: write `host:port`, `unix:@name` or `unix:/absolute/path`")]
    Form(String),
    /// The part after the last colon is not a port.
    #[error("`{port}` in `{text}` is not a port: write a number from 0 to 65535 after the last colon")]
    Port {
        /// The whole text.
        text: String,
        /// The part that should be a port.
        port: String,
    },
    /// IPv6 without brackets is ambiguous.
    #[error("`{0}` has several colons: put an IPv6 address in brackets, like `[::1]:7000`")]
    Brackets(String),
    /// The name is too long for a socket.
    #[error(
        "`{text}` is too long: a Unix socket's name has at most {UNIX_BYTES_MAX} bytes, a host's name at most 240"
    )]
    Long {
        /// The whole text.
        text: String,
    },
    /// Control characters are rejected, since addresses are printed.
    #[error("the address {0:?} contains a control character: remove it")]
    Control(String),
}

impl Address {
    /// Returns whether the address names a Unix socket.
    #[must_use]
    pub const fn is_unix(&self) -> bool {
        !matches!(self, Self::Tcp { .. })
    }

    /// Returns the address of a TCP socket; that of an interface has its zone.
    #[must_use]
    pub fn of_socket(address: &SocketAddr) -> Self {
        Self::Tcp { host: host_text(address), port: address.port() }
    }

    /// Returns this address as a process reaches it that has learnt it from another process, which it has reached at `reached`: a
    /// wildcard stands for that process's host, and the zone of an address on one link is this process's own.
    #[must_use]
    pub fn as_reached_by(&self, reached: &Self) -> Self {
        let (Self::Tcp { host, port }, Self::Tcp { host: reached, .. }) = (self, reached) else {
            return self.clone();
        };
        let host = match (link_local(host), link_local(reached)) {
            _ if is_wildcard(host) => reached.clone(),
            (Some((ip, _)), Some((_, Some(zone)))) => format!("{ip}%{zone}"),
            _ => host.clone(),
        };
        Self::Tcp { host, port: *port }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses an address. Fuzzed as `address`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.chars().any(char::is_control) {
            return Err(AddressError::Control(text.into()));
        }
        match text.strip_prefix("unix:") {
            Some(rest) => parse_unix(text, rest),
            None => parse_tcp(text),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Abstract(name) => write!(f, "unix:@{name}"),
            Self::Path(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        match text.len() <= ADDRESS_BYTES_MAX {
            true => text.parse(),
            false => Err(AddressError::Long { text }),
        }
    }
}

fn parse_unix(text: &str, rest: &str) -> Result<Address, AddressError> {
    if rest.strip_prefix('@').unwrap_or(rest).len() > UNIX_BYTES_MAX {
        return Err(AddressError::Long { text: text.into() });
    }
    if let Some(name) = rest.strip_prefix('@').filter(|name| !name.is_empty()) {
        return Ok(Address::Abstract(name.into()));
    }
    if rest.starts_with('/') && !rest.ends_with('/') {
        return Ok(Address::Path(rest.into()));
    }
    Err(AddressError::Form(text.into()))
}

fn parse_tcp(text: &str) -> Result<Address, AddressError> {
    let form = || AddressError::Form(text.into());
    let (host, port) = text.rsplit_once(':').ok_or_else(form)?;
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if bracketed.is_none() && host.contains(':') {
        return Err(AddressError::Brackets(text.into()));
    }
    // Brackets are for IPv6 only: `[unix]:5` would be printed like a Unix socket's address.
    if bracketed.is_some_and(|host| !host.contains(':')) {
        return Err(form());
    }
    let host = bracketed.unwrap_or(host);
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/@[]".contains(c)) {
        return Err(form());
    }
    if host.len() > 240 {
        return Err(AddressError::Long { text: text.into() });
    }
    // `u16::from_str` would accept a sign.
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| port.parse().ok()).flatten();
    let port = number.ok_or_else(|| AddressError::Port { text: text.into(), port: port.into() })?;
    Ok(Address::Tcp { host: host.into(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by fuzzing: it was parsed as the host `unix`, and printed as a text that cannot be parsed.
    #[test]
    fn brackets_are_for_ipv6_only() {
        assert_eq!("[unix]:5".parse::<Address>(), Err(AddressError::Form("[unix]:5".into())));
    }

    #[test]
    fn a_wildcard_and_a_zone_are_those_of_whoever_connects() {
        let of = |own: &str, reached: &str| {
            let (own, reached): (Address, Address) = (own.parse().unwrap(), reached.parse().unwrap());
            own.as_reached_by(&reached).to_string()
        };
        assert_eq!(of("0.0.0.0:34", "host-1:7400"), "host-1:34");
        assert_eq!(of("[::]:34", "[fe80::1%eth0]:7400"), "[fe80::1%eth0]:34");
        assert_eq!(of("[fe80::2%7]:34", "[fe80::1%eth0]:7400"), "[fe80::2%eth0]:34");
        assert_eq!(of("[fe80::2%7]:34", "10.0.0.1:7400"), "[fe80::2%7]:34");
        assert_eq!(of("10.0.0.2:34", "[fe80::1%eth0]:7400"), "10.0.0.2:34");
        assert_eq!(of("unix:@a", "10.0.0.1:7400"), "unix:@a");
        assert_eq!(of("0.0.0.0:34", "unix:@a"), "0.0.0.0:34");
    }

    #[test]
    fn printed_addresses_can_be_parsed() {
        for text in [
            "[fe80::1%eth0]:7000",
            "127.0.0.1:7000",
            "node-1.example:0",
            "[::1]:65535",
            "unix:@squall",
            "unix:/run/squall",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_rejected() {
        let long = format!("unix:@{}", "n".repeat(108));
        let long_host = format!("{}:1", "h".repeat(241));
        for text in [
            "",
            "7000",
            "host",
            ":7000",
            "host:",
            "host:65536",
            "host:+1",
            "a b:1",
            "::1:7000",
            "unix:",
            "unix:@",
            "unix:relative",
            "unix:/",
            "unix:@a\nb",
            "http://host:1",
            &long,
            &long_host,
        ] {
            assert!(text.parse::<Address>().is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn the_longest_address_fits() {
        let host = format!("{}:65535", "h".repeat(240)).parse::<Address>().unwrap();
        let unix = format!("unix:@{}", "n".repeat(107)).parse::<Address>().unwrap();
        assert!(host.to_string().len().max(unix.to_string().len()) <= ADDRESS_BYTES_MAX);
    }
}
