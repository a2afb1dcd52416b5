//! The configuration file.

use squall::Config;

/// Whatever is refused is refused with words.
pub fn feed(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // A secret in a file would make this read files of the machine.
    if text.contains("secret_file") {
        return;
    }
    if let Err(error) = Config::parse(text) {
        assert!(!error.to_string().is_empty());
    }
}

/// The least that is taken, and every key.
pub fn seeds() -> Vec<Vec<u8>> {
    [LEAST, FULL].map(Vec::from).to_vec()
}

const LEAST: &str = r#"
cluster = "kitchen"
secret = "at least sixteen bytes"
listen = "127.0.0.1:7000"
contacts = ["127.0.0.1:7000"]
members = 3
[subgroups.orders]
mode = "atomic"
"#;

const FULL: &str = r#"
cluster = "kitchen"
secret = "at least sixteen bytes"
listen = "unix:@b"
contacts = ["unix:@a", "unix:@b"]
members = 4
rank = 2
transport = "shm"
idle = "park"
core = 1
timeouts = { join = "5s", handshake = "300ms" }
[subgroups.log]
members = [0, 2, 3]
senders = [2, 3]
mode = "unordered"
window = 100
message_max = "10KB"
"#;
