//! Mutations in bulk multicast (RDMC §3.2; invariants [B1]–[B9]).

mutations! {
    /// A mutation.
    pub enum RdmcMutation {
        /// \[F7\] Posts do not wait for the peer's receives.
        NoCredits,
        /// \[B1\] A block goes to another target than the schedule says.
        WrongPartner,
        /// \[B1\] A block is relayed before it is held.
        SendUnheld,
        /// \[B1\] The last block of an object is not sent.
        DropLast,
        /// What a target has reported about another object in the same slot is believed.
        StaleBound,
        /// A block is sent twice, and the second one is accepted as new, without a check.
        SendTwice,
        /// An object counts as received when its last block but one has arrived.
        ReceivedTooSoon,
        /// Objects are handed over as they are completed, not in order.
        HandOverUnordered,
        /// \[F5\] Memory is released when everything is posted, not when it is placed.
        ReleaseUnplaced,
        /// \[B7\] A member that learns of a failure does not notify its neighbours.
        KeepFailureSecret,
        /// \[B7\] A failure is reported while blocks may still arrive.
        ReportUnsettled,
        /// \[B7\] The last block that was held is reported as not held.
        ForgetHeld,
        /// \[B9\] An offer is used for the next object that is announced, whatever its number.
        WrongOffer,
        /// \[B9\] An offer is used for an object that it has no space for.
        OverfillOffer,
        /// \[B7\] A group that has failed ignores an announcement after which blocks may follow at once.
        DeafWhenWedged,
        /// \[B7\] Blocks that a target holds are nevertheless sent.
        SendHeld,
        /// \[B7\] A target is believed to hold more than it reports.
        OmitUnheld,
        /// \[B8\] \[M5\] On one host: an object is ready before all receivers have mapped it.
        ReadyUnattached,
        /// \[B8\] On one host: memory is free again when the first receiver has released it.
        FinishWithFirst,
    }
}

#[cfg(feature = "mutations")]
impl RdmcMutation {
    /// The mutations of [`super::local`], which has a test harness of its own.
    pub const LOCAL: [Self; 2] = [Self::ReadyUnattached, Self::FinishWithFirst];
}
