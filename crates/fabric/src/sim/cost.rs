//! The cost model: the time that hardware takes for each step, so that virtual time predicts real time.
//!
//! The defaults are the testbed of Spindle (§3.2, figure 1; §4): 16 machines on a 12.5 GB/s switch, a one-way
//! latency of 1.73 µs for 1 byte and 2.46 µs for 4 KB, and about 1 µs of the poster's processor for each
//! post. Values that the paper does not give (the cost of a poll, a load, a copy) are those of a current
//! server core.

/// The costs of processors and wires, all in virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// The poster's processor time, for each write or send, and for each reader of a push.
    pub post_ns: u64,
    /// The processor time for each posted receive.
    pub post_receive_ns: u64,
    /// The processor time for each call of [`crate::Fabric::poll`].
    pub poll_ns: u64,
    /// The processor time for each event that a poll yields.
    pub event_ns: u64,
    /// The processor time for each word of shared memory that a protocol loads, in picoseconds. Charged by
    /// the driver of the protocol ([`super::SimFabric::charge_loads`]), since loads are not visible to a
    /// fabric.
    pub load_ps: u64,
    /// The processor time for each KiB copied. Charged by the driver ([`super::SimFabric::charge_copy`]).
    pub copy_kib_ns: u64,
    /// The one-way time from post to landing, for 1 byte on an idle network.
    pub wire_byte_ns: u64,
    /// The one-way time from post to landing, for 4 KiB on an idle network.
    pub wire_4_kib_ns: u64,
    /// The bandwidth of a node's link in each direction; 0 means unlimited.
    pub link_bytes_per_us: u64,
    /// The size of packets on links. A post that fits in one packet does not wait for longer posts of other
    /// connections, since it is sent between their packets, and likewise at the receiver. 0 means that posts
    /// are never split: each waits for all earlier ones.
    pub packet_bytes: u64,
    /// The time from the landing at the peer to the completion at the poster.
    pub completion_ns: u64,
    /// The time from `open` of both ends to `Connected`, and from `publish` and `attach` to `Attached`.
    pub connect_ns: u64,
    /// The time from `revoke` to `Revoked`.
    pub revoke_ns: u64,
    /// The time from a store of an owner until readers that share the memory see it [M2].
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

    /// All steps take no time: only the adversary makes time pass.
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

    /// Returns the time from post to landing on an idle network: linear up to 4 KiB, then at the rate of the
    /// link.
    #[must_use]
    pub fn wire_ns(&self, bytes: u64) -> u64 {
        const KNEE: u64 = 4096;
        let slope = self.wire_4_kib_ns.saturating_sub(self.wire_byte_ns);
        let below = bytes.clamp(1, KNEE) - 1;
        self.wire_byte_ns + slope * below / (KNEE - 1) + self.link_ns(bytes.saturating_sub(KNEE))
    }

    /// Returns the time for which `bytes` occupy a link.
    #[must_use]
    pub fn link_ns(&self, bytes: u64) -> u64 {
        (bytes * 1_000).checked_div(self.link_bytes_per_us).unwrap_or(0)
    }

    /// Returns the processor time to copy `bytes`.
    #[must_use]
    pub fn copy_ns(&self, bytes: u64) -> u64 {
        bytes * self.copy_kib_ns / 1024
    }

    /// Returns the processor time to load `words`.
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
