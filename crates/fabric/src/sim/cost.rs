//! The cost model: what hardware takes for each step, so that virtual time predicts real time.
//!
//! The defaults are the testbed of Spindle (§3.2, figure 1; §4): 16 machines on a 12.5 GB/s switch, 1.73 µs one way
//! for 1 byte, 2.46 µs for 4 KB, about 1 µs of the poster's processor for each post. What the paper does not say
//! (the cost of a poll, a load, a copy) is that of a present server core.

/// Costs of processors and wires; all in virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// The poster's processor, for each write or send, and for each reader of a push.
    pub post_ns: u64,
    /// The processor, for each posted receive.
    pub post_receive_ns: u64,
    /// The processor, for each call of [`crate::Fabric::poll`].
    pub poll_ns: u64,
    /// The processor, for each event that a poll yields.
    pub event_ns: u64,
    /// The processor, for each word of shared memory that a protocol looks at, in picoseconds. Charged by the
    /// driver of the protocol ([`super::SimFabric::charge_loads`]), since loads are not visible to a fabric.
    pub load_ps: u64,
    /// The processor, for each KiB copied. Charged by the driver ([`super::SimFabric::charge_copy`]).
    pub copy_kib_ns: u64,
    /// One way, from post to landing, for 1 byte on an idle network.
    pub wire_byte_ns: u64,
    /// One way, from post to landing, for 4 KiB on an idle network.
    pub wire_4_kib_ns: u64,
    /// What a node can send, and what it can receive, at the same time; 0 means without limit.
    pub link_bytes_per_us: u64,
    /// Links carry packets of that many bytes: a post that fits in one does not wait for longer posts of other
    /// connections, between whose packets it goes, neither at the sender nor at the receiver. 0 means that posts are
    /// never cut: each waits for all that were there before.
    pub packet_bytes: u64,
    /// From landing at the peer to the completion at the poster.
    pub completion_ns: u64,
    /// From `open` of both ends to `Connected`, and from `publish` and `attach` to `Attached`.
    pub connect_ns: u64,
    /// From `revoke` to `Revoked`.
    pub revoke_ns: u64,
    /// From a store of an owner to its sight by readers that share the memory [M2].
    pub coherence_ns: u64,
}

impl CostModel {
    /// The testbed of Spindle.
    pub const SPINDLE: Self = Self {
        post_ns: 1_000,
        post_receive_ns: 100,
        poll_ns: 50,
        event_ns: 50,
        load_ps: 2_000,
        copy_kib_ns: 80,
        wire_byte_ns: 1_730,
        wire_4_kib_ns: 2_460,
        link_bytes_per_us: 12_500,
        packet_bytes: 0,
        completion_ns: 1_730,
        connect_ns: 100_000,
        revoke_ns: 5_000,
        coherence_ns: 100,
    };

    /// Everything takes no time: what time passes is the adversary's doing.
    pub const FREE: Self = Self {
        post_ns: 0,
        post_receive_ns: 0,
        poll_ns: 0,
        event_ns: 0,
        load_ps: 0,
        copy_kib_ns: 0,
        wire_byte_ns: 0,
        wire_4_kib_ns: 0,
        link_bytes_per_us: 0,
        packet_bytes: 0,
        completion_ns: 0,
        connect_ns: 0,
        revoke_ns: 0,
        coherence_ns: 0,
    };

    /// From post to landing on an idle network: linear up to 4 KiB, then as fast as the link.
    #[must_use]
    pub fn wire_ns(&self, bytes: u64) -> u64 {
        const KNEE: u64 = 4096;
        let slope = self.wire_4_kib_ns.saturating_sub(self.wire_byte_ns);
        let below = bytes.clamp(1, KNEE) - 1;
        self.wire_byte_ns + slope * below / (KNEE - 1) + self.link_ns(bytes.saturating_sub(KNEE))
    }

    /// How long `bytes` occupy a link.
    #[must_use]
    pub fn link_ns(&self, bytes: u64) -> u64 {
        (bytes * 1_000).checked_div(self.link_bytes_per_us).unwrap_or(0)
    }

    /// How long a processor takes to copy `bytes`.
    #[must_use]
    pub fn copy_ns(&self, bytes: u64) -> u64 {
        bytes * self.copy_kib_ns / 1024
    }

    /// How long a processor takes to look at `words`.
    #[must_use]
    pub fn loads_ns(&self, words: u64) -> u64 {
        words * self.load_ps / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_times_are_those_of_the_paper() {
        let cost = CostModel::SPINDLE;
        assert_eq!([0, 1, 4096].map(|bytes| cost.wire_ns(bytes)), [1730, 1730, 2460]);
        assert_eq!(cost.wire_ns(4096 + 125_000), 2460 + 10_000);
        assert_eq!([CostModel::FREE.wire_ns(1 << 20), CostModel::FREE.link_ns(1 << 20)], [0, 0]);
    }
}
