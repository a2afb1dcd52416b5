//! Mutations of the shared state table, the multicast and the views (Derecho §3.2–3.4, Spindle §2–3). The simulator
//! catches them.

mutations! {
    /// A mutation. Each is the negation of one invariant of the shared state table or the multicast
    /// (Derecho §3.2–3.4, Spindle §2–3).
    pub enum GroupMutation {
        /// \[S2\] The guard is pushed before the list that it announces.
        GuardBeforeList,
        /// \[S3\] The guard is pushed by reference, like a list.
        GuardByReference,
        /// \[S4\] A member stores to its rows before all readers are attached.
        StoreBeforeReady,
        /// \[O1\] This member takes the senders of a round in descending order, from rank 1 on.
        OrderOfOneMember,
        /// \[O3\] One sequence number too many counts as complete.
        CompleteTooSoon,
        /// \[O4\] Messages are delivered when this member has them, not when all members have them.
        DeliverUnstable,
        /// \[O4\] The minimum of `received` is taken over all members but the last.
        StableWithoutLast,
        /// \[O4\] An announcement also counts as an acknowledgement of the others' announcements.
        AnnouncementCoversOthers,
        /// \[T1\] A member of a durable subgroup acknowledges what is in its memory.
        AcknowledgeUnflushed,
        /// \[T1\] A sender's announcement acknowledges its own messages in a durable subgroup, too.
        AnnouncementIsDurable,
        /// \[T4\] A member that wedges counts what has not come to its disk yet.
        WedgeUnflushed,
        /// \[T4\] A member that wedges counts messages behind a gap, which it has not appended.
        CountBeyondGap,
        /// \[O5\] A member never reports to others that it has delivered their messages.
        KeepDelivered,
        /// \[O5\] A record is reused once this member has delivered it.
        ReuseAfterOwnDelivery,
        /// \[O5\] A pulled message counts as delivered once it is stable, although the consumer may still read it.
        ReleaseUnread,
        /// \[O6\] An express record counts as received before all of it has arrived.
        PartOfExpress,
        /// A batch that wraps pushes only its first part.
        HalfOfWrappedBatch,
        /// \[S2\] A piece is pushed, but everything that is committed is announced.
        AnnounceBeyondPiece,
        /// \[N2\] Each sender counts its rounds as the first sender does.
        RoundsOfFirst,
        /// \[N3\] Rounds that others have begun are not filled.
        NoNulls,
        /// \[N4\] Nulls of others are treated as messages, for which nulls are owed.
        NullsForNulls,
        /// \[N5\] One null is sent for each receipt, whatever the gap.
        OneNullPerReceipt,
        /// \[N6\] A message of size 0 is treated as a null.
        EmptyIsNull,
        /// \[O7\] A consumer that waits is not woken for messages of its own member.
        OwnAreNoNews,
        /// A core that has posted nulls, or has a new message for its consumer, reports no work.
        SilentWork,
        /// \[O2\] FIFO of the unordered modes: a sender's messages are delivered up to the announcement of the *next*
        /// sender.
        LaneOfNextSender,
        /// \[V2\] At the end of a view a member delivers all messages that it has, not those within the trim.
        DeliverBeyondTrim,
        /// \[V7\] In the unordered mode, messages that are sent again are delivered again.
        DeliverKnown,
        /// \[V7\] The messages that a surviving sender had in flight are dropped.
        NoResend,
        /// \[D1\] A leader proposes when all have wedged, although some may still follow the previous leader.
        ProposeUnaccepted,
        /// \[D2\] A new leader proposes its own change, whatever was proposed before.
        IgnoreEarlierProposal,
        /// \[D2\] A new leader takes over the earliest proposal that any member has echoed, not the latest.
        TakeEarliestProposal,
        /// \[V3\] A member that asked to leave, and has lost the remaining members, decides alone how much is
        /// delivered.
        DecideDeparted,
        /// \[V8\] A leader that has proposed never resigns, although members that do not hear it do not echo.
        LeadForEver,
        /// \[D3\] A new leader adds to the proposal that it takes over.
        BlendProposal,
        /// \[V3\] The trim is the minimum count over all members, including dead ones, whose rows no longer change.
        TrimWithDead,
        /// \[V14\] A member that stops does not deliver stable messages.
        StopUndelivered,
        /// \[V2\] The trim is the maximum count of any member.
        TrimOfOne,
        /// \[V1\] A member decides as soon as it has echoed.
        DecideAlone,
        /// \[V5\] A minority continues.
        NoPartitionRule,
        /// \[V17\] A member stops when it hears no majority, although the others are only silent.
        StopForSilence,
        /// \[V17\] A member that begins to wait forgets what it has echoed.
        ForgetEchoAtWait,
        /// \[V17\] No member says how a view has ended to those that wait in it.
        KeepEndSecret,
        /// \[H13\] A live end is decided without copies of what it counts.
        EndWithoutCopies,
        /// \[H12\] A live leader takes over an earlier proposal that cannot have been decided.
        AdoptAnyEcho,
        /// \[V17\] A member that comes to a view continues without those that wait in it.
        LeaveThoseThatWait,
        /// \[V17\] \[T15\] A member that waits says what it is committed to before that is on its disk.
        SayBeforeDisk,
        /// \[V8\] A member stores news without the heartbeat that makes the others read it.
        SilentNews,
        /// \[S5\] \[V4\] The rows of a suspected member are not frozen.
        NoFreeze,
        /// \[V4\] A live member that learns that it has been removed continues.
        GoOnRemoved,
        /// \[V10\] A member gives no sign of life before all members have attached.
        MuteWhileOpening,
        /// \[V10\] A member gives no sign of life when another one attaches, which has missed the earlier ones.
        MuteUntilDue,
        /// \[S2\] Of words that are pushed together only those of the first piece are.
        FirstPieceOnly,
        /// \[V8\] What a member wrote last, without a heartbeat after it, is not read when its row is frozen.
        ForgetLastWords,
        /// \[V7\] Subgroups that had no work for long are not looked at any more.
        ForgetIdle,
        /// A node sleeps although it has not looked at all subgroups.
        SleepUnlooked,
        /// \[T5\] A durable subgroup none of whose members stays ends with nothing.
        TrimOrphan,
        /// \[T6\] A member shows that it suspects a leader while its vote for that leader is on its way to the disk.
        SuspectBeforeVote,
        /// \[T19\] A joiner does not learn how the view before its first one has ended.
        JoinWithoutEnd,
        /// \[V11\] A member accuses every member that another one accuses.
        TakeOverAccusations,
        /// \[V11\] A member vouches for an accused member from which it has heard no answer.
        VouchUnheard,
        /// \[V11\] The leader removes exactly the members that it accuses.
        CutAccused,
        /// \[V11\] A leader decides by a cover that may not be a minimum, although reports are missing.
        CutUnproven,
        /// \[V11\] A search of covers that ends early counts as complete.
        SearchCutShort,
        /// \[V15\] A member that stalled does not concede, and its accuser may be removed in its place.
        NeverConcede,
        /// \[V15\] A pause is forgotten when the view ends.
        ForgetPause,
        /// \[V11\] A member that attaches after it was accused does not learn who accuses it.
        MissLateReader,
        /// \[S2\] A proposal that a member has missed is treated as one without changes.
        TakeMissedProposal,
        /// \[V12\] A full view ends for a joiner, for which it has no place.
        EndFullView,
        /// A member whose consumer is too slow does not leave.
        StayThoughSlow,
        /// A consumer that makes progress is treated as one that has stopped.
        SlowThoughMoving,
        /// \[V9\] A change admits only one joiner.
        OneJoinPerView,
        /// \[D6\] One member places subgroups differently.
        LayoutOfOneMember,
        /// \[V13\] A member that is to leave never reports it.
        StayForEver,
        /// \[V13\] A request to leave is lost when the view ends for another reason.
        ForgetWish,
        /// \[A8\] A member takes the holders of states from its own copy of the rows, not from the proposal.
        HoldersOfOneMember,
        /// \[A9\] A member that asks to leave is removed although no other member holds its state.
        RemoveLastHolder,
        /// \[L1\] A large message counts as received when it is announced.
        CountMissingBody,
        /// \[L1\] A body counts as complete when its first block has arrived.
        CountPartialBody,
        /// \[J5\] A view that ends already counts as one in which messages flow.
        ReadyWhileEnding,
        /// \[J8\] A joining process receives messages before its arrival is over.
        TakePartEarly,
        /// \[J8\] A joining process receives the deliveries at the end of a view before its arrival is over.
        HearEarly,
        /// The flight recorder records what it has recorded before in the view.
        RecordAgain,
        /// \[G10\] The trim of a shard is what one member less has than must be left of a majority.
        TrimTooHigh,
        /// \[G10\] A view ends although a majority of a shard is gone.
        EndWithoutQuorum,
        /// A member that is seen dying is accused only when it is lost.
        AwaitLoss,
    }
}
