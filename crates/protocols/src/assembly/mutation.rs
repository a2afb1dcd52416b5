//! Mutations of assembly (Derecho §2.2). The simulator catches them.

mutations! {
    /// A mutation. Each is the negation of one invariant of assembly.
    pub enum AssemblyMutation {
        /// \[Q1\] A coordinator does not wait for a quorum of the contacts.
        IgnoreQuorum,
        /// \[Q1\] A member that has reported, and has lost its coordinator, looks for another one.
        ReportTwice,
        /// \[Q2\] A coordinator says go when all but one have reported.
        GoTooSoon,
        /// \[Q2\] A report counts, whichever roster it is about.
        TakeStaleReport,
        /// \[Q3\] Ranks are given out in the order of arrival only.
        IgnoreRanks,
        /// \[Q4\] A contact that gathers follows no other one.
        FollowNobody,
        /// \[Q5\] A contact that follows another one keeps those that it has gathered.
        KeepGathered,
        /// \[Q5\] A coordinator that has lost a member waits for it.
        WaitForLost,
        /// \[Q5\] A follower stays with a silent coordinator.
        StayWithSilent,
        /// \[Q5\] Only the first contact gathers.
        FirstOnly,
        /// \[Q6\] A process whose time is over waits all the same.
        WaitForEver,
    }
}
