//! What both ends of a stream agree on, and what each chooses for itself.

use std::time::Duration;

use squall_transports::bootstrap::pair::{PairTerms, StreamTransport};
use squall_transports::bootstrap::{Encryption, Secret};
use squall_transports::runner::IdleLimits;
use squall_transports::verbs::{self, VerbsSettings};

use super::{StreamError, StreamSettings};

/// How sockets are made.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// The name of what both ends belong to; the same at both.
    pub cluster: String,
    /// What both ends prove to each other to have.
    pub secret: Secret,
    /// Shared memory on one host, RDMA between devices of one network, and TCP else; or one of them always.
    pub transport: StreamTransport,
    /// Whether a stream over TCP is encrypted. Of two ends that differ, the stricter one decides.
    pub encryption: Encryption,
    /// This end's RDMA device.
    pub verbs: VerbsSettings,
    /// Kind and policy, the same at both ends; ring, credits and limits, each end as it likes.
    pub settings: StreamSettings,
    /// On shared memory: whether this end reads the peer's memory for what it receives into adopted memory
    /// ([`super::Endpoint::adopt`]), if the kernel lets it. Else such bytes take one more copy.
    pub fetching: bool,
    /// What a waiting socket does: spin, yield, park. On an RDMA device in software it yields instead of spinning.
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
    /// The usual limits; `cluster` and `secret` are the same at both ends.
    #[must_use]
    pub fn new(cluster: &str, secret: &Secret) -> Self {
        Self {
            cluster: cluster.into(),
            secret: secret.clone(),
            transport: StreamTransport::Auto,
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

    /// For processes of one user on this host: `name` is all that they need to know. It keeps nobody out who can reach
    /// a TCP port of this host and knows the name; where that matters, use [`StreamOptions::new`].
    #[must_use]
    pub fn local(name: &str) -> Self {
        let secret = Secret::new("streams of one user on one host").expect("it is long enough");
        Self::new(name, &secret)
    }

    /// Finds out before anybody waits for this end whether it can have what it asks for.
    pub(super) fn check(&self) -> Result<(), StreamError> {
        self.settings.check()?;
        if self.transport == StreamTransport::Verbs {
            verbs::check_for(&self.verbs, &[], self.locked_bytes())?;
        }
        Ok(())
    }

    /// The memory that an RDMA device needs of this end: its ring, and the buffers of a [`super::Stream`]. Who registers
    /// buffers of its own needs those beside.
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
