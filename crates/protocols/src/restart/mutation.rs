//! Mutations of durable views and restarts (Derecho §3.4, "Total failures"). The simulator catches them.

mutations! {
    /// A mutation. Each leaves out or changes one rule of durable views and restarts.
    pub enum RestartMutation {
        /// \[T1\] What is appended counts as persisted before the flush returns.
        PersistBeforeFlush,
        /// \[T2\] A message is delivered when a majority of its shard has persisted it.
        DeliverAtMajority,
        /// \[T2\] \[T3\] Joiners do not count for what is durable.
        DeliverWithoutJoiners,
        /// \[T2\] \[P2\] A member serves a shard whose earlier views it lacks.
        ServeWithoutBase,
        /// \[T4\] A member that has wedged counts what is not on its disk yet.
        CountUnflushed,
        /// \[T5\] A shard of which no member stays ends with nothing.
        TrimOrphanToZero,
        /// \[T6\] An echo is shown before it is on the disk.
        ShowEchoEarly,
        /// \[T6\] An echo is never written.
        ForgetEcho,
        /// \[T6\] A member shows that it suspects a leader while its echo for that leader is under way.
        SuspectBeforeEcho,
        /// \[T7\] The leader's echo alone decides.
        DecideByOneEcho,
        /// \[T8\] A member acts in a view before that is on the disk.
        ActBeforeRecord,
        /// \[T9\] \[P2\] Records beyond the trim of an ended view count.
        KeepBeyondTrim,
        /// \[T9\] A damaged log counts as a good one.
        TrustDamaged,
        /// \[T10\] Newer views of others are not learned.
        IgnoreNewerViews,
        /// \[T11\] Only the lowest member leads, dead or alive behind its links.
        LeadByLowestOnly,
        /// \[T11\] A member waits for the leader to which it has promised.
        WaitForDeadLeader,
        /// \[T12\] A promise is never written.
        ForgetPromise,
        /// \[T13\] Processes that are no members of the view count.
        CountOutsiders,
        /// \[T13\] Half of the view is enough.
        RestartWithHalf,
        /// \[T13\] Any two members are enough.
        RestartWithTwo,
        /// \[T13\] One good log of a shard is enough.
        NeedOneLog,
        /// \[T13\] No log of a shard is needed.
        NeedNoLog,
        /// \[T14\] Votes of an earlier leader are ignored.
        IgnoreVotes,
        /// \[T14\] Acceptances of an earlier restart are ignored.
        IgnoreAcceptances,
        /// \[T14\] The vote of the lowest ballot is adopted.
        AdoptLowest,
        /// \[T14\] A vote is adopted for what cannot have been decided.
        AdoptAny,
        /// \[T14\] A live decision is taken to have had as many copies as a restart's.
        PresumeCopies,
        /// \[T14\] \[P1\] The shortest log counts.
        TrimToShortest,
        /// \[T14\] \[P1\] The shortest undamaged log counts.
        TrimToShortestUndamaged,
        /// \[T15\] A member accepts before it has what counts.
        AcceptBeforeTransfer,
        /// \[T15\] An acceptance is shown before it is on the disk.
        ShowAcceptanceEarly,
        /// \[T15\] \[T18\] An acceptance is never written.
        ForgetAcceptance,
        /// \[T16\] The leader's acceptance alone decides.
        DecideByOneAcceptance,
        /// \[T16\] A restart is decided without two copies of each shard.
        DecideWithoutCopies,
        /// \[T17\] A member asks the first of the others only, whatever it answers.
        AskOneProvider,
        /// \[T17\] A member asks those again that were of no use, although there are others.
        AskUselessAgain,
        /// \[T17\] A member waits for an answer without end.
        WaitForProvider,
        /// \[T17\] A member appends what comes late, or twice.
        TakeLateAnswer,
        /// \[T17\] \[P3\] A member fetches what it has.
        FetchHeld,
        /// \[T19\] Records of views whose trims are not known count.
        TrustUncheckedViews,
        /// \[T19\] A member forgets trims that a member of another shard may need.
        ForgetTooSoon,
        /// \[T20\] A shard moves to members none of which has it.
        MoveAway,
        /// A group is continued from a log that lacks a part of an earlier view.
        SalvageHole,
        /// A group is continued without what its log has of the last view.
        SalvageLess,
        /// A group that is continued has the number of the one before.
        SalvageSameGroup,
        /// A process that continues a group keeps what it has promised in the one before.
        SalvagePromises,
        /// A process continues a group in the view in which it was live.
        SalvageSameView,
        /// What counts of a shard is taken over although the log does not have it.
        SalvageOthers,
    }
}
