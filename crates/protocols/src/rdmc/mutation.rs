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
        /// \[B1\] The last block of an object is left out.
        DropLast,
        /// What a target has told of another object in the same slot is believed.
        StaleBound,
        /// A block that arrives again is taken for a new one, without a check; and is sent twice.
        SendTwice,
        /// An object counts as received when its last-but-one block is here.
        ReceivedTooSoon,
        /// Objects are handed over as they are completed, not in order.
        HandOverUnordered,
        /// \[F5\] Memory is released when everything is posted, not when it is placed.
        ReleaseUnplaced,
        /// \[B7\] A member that learns of a failure does not tell its neighbours.
        KeepFailureSecret,
        /// \[B7\] A failure is reported while blocks may still land.
        ReportUnsettled,
        /// \[B7\] The last block that was held is reported as not held.
        ForgetHeld,
        /// \[B9\] An offer is used for whatever object is announced next.
        WrongOffer,
        /// \[B9\] An offer is used for an object that it has no space for.
        OverfillOffer,
        /// \[B7\] A group that has failed does not hear an announcement behind which blocks may follow at once.
        DeafWhenWedged,
        /// \[B7\] What a target holds is sent all the same.
        SendHeld,
        /// \[B7\] A target is believed to hold more than it says.
        OmitUnheld,
        /// \[B8\] \[M5\] On one host: an object is ready before all have mapped it.
        ReadyUnattached,
        /// \[B8\] On one host: memory is free again when the first receiver has given it back.
        FinishWithFirst,
    }
}

#[cfg(feature = "mutations")]
impl RdmcMutation {
    /// Those of [`super::local`], which has a harness of its own.
    pub const LOCAL: [Self; 2] = [Self::ReadyUnattached, Self::FinishWithFirst];
}
