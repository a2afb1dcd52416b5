//! The options of streams: what both ends agree on, and what each end chooses for itself.

use std::time::Duration;

use squall_transports::Transport;
use squall_transports::bootstrap::pair::PairTerms;
use squall_transports::bootstrap::{Encryption, Secret};
use squall_transports::runner::IdleLimits;
use squall_transports::verbs::{self, VerbsSettings};

use super::{StreamError, StreamSettings};

/// The options of a socket.
///
/// ```
/// use squall::stream::{Secret, StreamOptions, Transport};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let secret = Secret::new("at least sixteen bytes")?; // the same at both ends
/// let mut options = StreamOptions::new("files", &secret);
/// options.transport = Transport::Tcp;
/// options.timeout = Duration::from_secs(3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// The name of the cluster to which both ends belong; the same at both.
    pub cluster: String,
    /// The secret that both ends prove to each other.
    pub secret: Secret,
    /// How transports are chosen: shared memory on one host, RDMA between devices of one network, and TCP otherwise;
    /// or always the same one.
    pub transport: Transport,
    /// Whether a stream over TCP is encrypted. If the two ends differ, the stricter setting applies.
    pub encryption: Encryption,
    /// This end's RDMA device.
    pub verbs: VerbsSettings,
    /// The stream's settings: kind and policy are the same at both ends; each end chooses its ring, credits and
    /// limits.
    pub settings: StreamSettings,
    /// On shared memory: whether this end reads the peer's memory to receive into adopted memory
    /// ([`super::Endpoint::adopt`]), if the kernel permits it. Otherwise such bytes are copied once more.
    pub fetching: bool,
    /// How a waiting socket spins, yields and parks. On a software RDMA device it yields instead of spinning.
    pub idle: IdleLimits,
    /// How long to try to connect.
    pub timeout: Duration,
    /// How long a socket that is dropped waits for the peer to take what was sent.
    pub linger: Duration,
    /// The size of each buffer of a [`super::Stream`] in bytes; a multiple of 8.
    pub buffer_bytes: usize,
    /// How many buffers a [`super::Stream`] has in each direction.
    pub buffers: usize,
}

impl StreamOptions {
    /// Returns options with the default limits; `cluster` and `secret` are the same at both ends.
    #[must_use]
    pub fn new(cluster: &str, secret: &Secret) -> Self {
        Self {
            cluster: cluster.into(),
            secret: secret.clone(),
            transport: Transport::Auto,
            encryption: Encryption::On,
            verbs: VerbsSettings::default(),
            settings: StreamSettings::default(),
            fetching: true,
            idle: IdleLimits::auto(2),
            timeout: Duration::from_secs(10),
            linger: Duration::from_secs(2),
            buffer_bytes: 64 << 10,
            buffers: 8,
        }
    }

    /// Returns options for processes of one user on this host, which need to know only `name`. They do not keep out a
    /// process that can reach a TCP port of this host and knows the name; where that matters, use
    /// [`StreamOptions::new`].
    #[must_use]
    pub fn local(name: &str) -> Self {
        let secret = Secret::new("streams of one user on one host").expect("it is long enough");
        Self::new(name, &secret)
    }

    /// Checks, before the other end waits for this one, whether the options can be fulfilled.
    pub(super) fn check(&self) -> Result<(), StreamError> {
        self.settings.check()?;
        if self.transport == Transport::Verbs {
            verbs::check_for(&self.verbs, &[], self.locked_bytes())?;
        }
        Ok(())
    }

    /// Returns the memory that this end registers with an RDMA device: its ring, and the buffers of a
    /// [`super::Stream`]. A user that registers buffers of its own needs those in addition.
    fn locked_bytes(&self) -> usize {
        let ring = usize::try_from(8 * self.settings.ring_words).unwrap_or(usize::MAX);
        ring.saturating_add(self.buffer_bytes.saturating_mul(2 * self.buffers))
    }

    pub(super) fn terms(&self) -> PairTerms {
        let mut terms = PairTerms::new(&self.cluster, &self.secret);
        (terms.choice, terms.timeout, terms.encryption) = (self.transport, self.timeout, self.encryption);
        (terms.verbs, terms.locked_bytes) = (self.verbs.clone(), self.locked_bytes());
        terms
    }
}
