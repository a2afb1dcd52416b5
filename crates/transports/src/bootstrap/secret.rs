//! The secret that proves membership of a cluster.

use std::fmt;
use std::sync::Arc;

/// The fewest bytes of a secret: a process that has seen one proof could guess shorter ones.
pub const SECRET_BYTES_MIN: usize = 16;

/// The secret that the members of a cluster share. It is never printed.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

squall_fabric::debug_as_text!(SecretTooShort);

/// The error for a secret that can be guessed.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret has {bytes} bytes and needs at least {SECRET_BYTES_MIN}: make one with `head -c 32 /dev/urandom | base64`"
)]
pub struct SecretTooShort {
    /// The number of bytes given.
    pub bytes: usize,
}

impl Secret {
    /// Creates a secret from the bytes as they are.
    ///
    /// # Errors
    /// Returns an error if there are fewer than [`SECRET_BYTES_MIN`].
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, SecretTooShort> {
        let bytes = bytes.as_ref();
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(SecretTooShort { bytes: bytes.len() });
        }
        Ok(Self(bytes.into()))
    }

    /// Creates a secret of 32 random bytes.
    ///
    /// # Panics
    /// Panics if the kernel provides no random bytes.
    #[must_use]
    pub fn random() -> Self {
        Self(random_bytes::<32>().as_slice().into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

pub(super) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel provides random bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_long_and_never_printed() {
        assert_eq!(Secret::new("fifteen bytes..").unwrap_err(), SecretTooShort { bytes: 15 });
        let secret = Secret::new("sixteen bytes...").unwrap();
        assert!(!format!("{secret:?}").contains("sixteen"));
        assert_ne!(Secret::random().bytes(), Secret::random().bytes());
    }
}
