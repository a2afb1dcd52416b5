//! Addresses, from the configuration or from a peer's roster.

use squall_transports::bootstrap::{ADDRESS_BYTES_MAX, Address};

/// What is taken is printed as an address that means the same, and is not longer than the roster allows for.
pub fn feed(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(address) = text.parse::<Address>() {
        let printed = address.to_string();
        assert!(printed.len() <= ADDRESS_BYTES_MAX, "{printed}");
        assert_eq!(printed.parse(), Ok(address), "{printed}");
    }
}

/// One of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    ["127.0.0.1:7000", "[::1]:65535", "unix:@squall", "unix:/run/squall"].map(Vec::from).to_vec()
}
