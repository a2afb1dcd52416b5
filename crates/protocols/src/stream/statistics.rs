//! Counters from which the figures are drawn (EXS table III, fig. 9–13).

/// The counters of one end. They are not part of the protocol's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Direct transfers sent.
    pub direct: u64,
    /// The bytes in them.
    pub direct_bytes: u64,
    /// Indirect transfers sent.
    pub indirect: u64,
    /// The bytes in them.
    pub indirect_bytes: u64,
    /// How often the sender switched between direct and indirect.
    pub mode_switches: u64,
    /// Bytes that this end copied out of its ring.
    pub copied_bytes: u64,
    /// Adverts sent.
    pub adverts: u64,
    /// Adverts received and dropped.
    pub adverts_dropped: u64,
    /// Direct transfers that had to be shifted into the alignment of the peer's memory.
    pub shifted: u64,
    /// Messages sent.
    pub messages: u64,
    /// Bytes that this end read from the peer's memory into adopted memory of its own, which only shared memory needs.
    pub fetched_bytes: u64,
    /// Bytes for such memory that took two copies instead, because they were few or the kernel does not let this end
    /// read the peer's memory.
    pub relayed_bytes: u64,
}

impl Statistics {
    /// Returns the ratio of direct transfers to all sent transfers (table III's last column); 1 if there were none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn direct_ratio(&self) -> f64 {
        match self.direct + self.indirect {
            0 => 1.0,
            all => self.direct as f64 / all as f64,
        }
    }
}

#[cfg(test)]
impl std::hash::Hash for Statistics {
    /// States that differ only in their history are one state.
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}
