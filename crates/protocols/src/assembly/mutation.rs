//! Mutations of assembly (Derecho §2.2). The simulator catches them.

mutations! {
    /// A mutation. Each is the negation of one invariant of assembly.
    pub enum AssemblyMutation {
        /// \[Q1\] A coordinator does not wait for a quorum of the contacts.
        IgnoreQuorum,
        /// \[Q1\] A member that has reported, and then lost its coordinator, asks for another one.
        ReportTwice,
        /// \[Q2\] A coordinator sends go when all members but one have reported.
        GoTooSoon,
        /// \[Q2\] A report counts, regardless of the roster that it refers to.
        TakeStaleReport,
        /// \[Q3\] Ranks are assigned in the order of arrival only.
        IgnoreRanks,
        /// \[Q4\] A contact that gathers follows no other contact.
        FollowNobody,
        /// \[Q5\] A contact that follows another one keeps the processes that it has gathered.
        KeepGathered,
        /// \[Q5\] A coordinator that has lost a member waits for it.
        WaitForLost,
        /// \[Q5\] A follower stays with a silent coordinator.
        StayWithSilent,
        /// \[Q5\] Only the first contact gathers.
        FirstOnly,
        /// \[Q6\] A process waits beyond its deadline.
        WaitForEver,
    }
}
