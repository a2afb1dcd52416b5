//! The socket on which a process listens (Derecho §3.3).

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use squall_transports::bootstrap::{Address, BootstrapListener};

use crate::config::Config;
use crate::error::JoinError;

/// The socket on which this process listens, before its admission listener takes it over.
#[derive(Debug)]
pub(crate) enum AnyListener {
    Unix(Arc<BootstrapListener<UnixStream>>),
    Tcp(Arc<BootstrapListener<TcpStream>>),
}

impl AnyListener {
    /// Returns the address at which it listens, with the port that the kernel has chosen.
    pub(crate) fn address(&self) -> &Address {
        match self {
            Self::Unix(listener) => listener.address(),
            Self::Tcp(listener) => listener.address(),
        }
    }

    /// Listens where the configuration says.
    pub(crate) fn bind(config: &Config) -> Result<Self, JoinError> {
        let advertise = config.advertise.as_ref();
        Ok(if config.transport.needs_unix_socket() {
            Self::Unix(Arc::new(BootstrapListener::bind(&config.listen)?))
        } else {
            Self::Tcp(Arc::new(BootstrapListener::bind_as(&config.listen, advertise)?))
        })
    }
}
