//! Mutations in the shared state table, the multicast and the views (Derecho §3.2–3.4, Spindle §2–3). The simulator
//! catches them.

mutations! {
    /// A mutation. Each is the negation of one invariant of the shared state table or the multicast
    /// (Derecho §3.2–3.4, Spindle §2–3).
    pub enum GroupMutation {
        /// \[S2\] The guard is pushed before the list that it announces.
        GuardBeforeList,
        /// \[S3\] The guard is pushed by reference, like a list.
        GuardByReference,
        /// \[S4\] Rows are stored into before all readers are attached.
        StoreBeforeReady,
        /// \[O1\] This member takes the senders of a round in descending order, from rank 1 on.
        OrderOfOneMember,
        /// \[O3\] One sequence too many counts as complete.
        CompleteTooSoon,
        /// \[O4\] Messages are delivered when they are here, not when all members have them.
        DeliverUnstable,
        /// \[O4\] The least `received` is taken over all members but the last.
        StableWithoutLast,
        /// \[O4\] An announcement counts as an acknowledgement of what others have announced, too.
        AnnouncementCoversOthers,
        /// \[O5\] A member never tells others that it has delivered their messages.
        KeepDelivered,
        /// \[O5\] A record is reused when this member has delivered it.
        ReuseAfterOwnDelivery,
        /// \[O5\] A pulled message counts as delivered when it is stable, though the consumer may still read it.
        ReleaseUnread,
        /// \[O6\] An express record counts as received before all of it is here.
        PartOfExpress,
        /// A batch that wraps pushes its first part only.
        HalfOfWrappedBatch,
        /// \[N2\] Each sender counts its rounds as the first one does.
        RoundsOfFirst,
        /// \[N3\] Rounds that others have begun are not filled.
        NoNulls,
        /// \[N4\] One null more is sent than is owed.
        NullTooMany,
        /// \[N5\] One null is sent for each receipt, whatever the gap.
        OneNullPerReceipt,
        /// \[N6\] A message of size 0 is taken for a null.
        EmptyIsNull,
        /// A core that has posted nulls, or has something new for its consumer, says that it has done nothing.
        SilentWork,
        /// \[O2\] FIFO of the unordered modes: delivery goes up to what the *next* sender has announced.
        LaneOfNextSender,
        /// \[V2\] At the end of a view a member delivers all that it has, not what the trim says.
        DeliverBeyondTrim,
        /// \[V7\] In the unordered mode messages that are sent again are delivered again.
        DeliverKnown,
        /// \[V7\] What a surviving sender had under way is forgotten.
        NoResend,
        /// \[D1\] A leader proposes when all have wedged, though some may still follow the leader before.
        ProposeUnaccepted,
        /// \[D2\] A new leader proposes its own change, whatever was proposed before.
        IgnoreEarlierProposal,
        /// \[D2\] A new leader takes over the earliest proposal that anybody has echoed, not the latest.
        TakeEarliestProposal,
        /// \[V3\] A member that wishes to leave, and has lost those that stay, decides alone how much is delivered.
        DecideDeparted,
        /// \[V8\] A leader that has proposed never resigns, though those who do not hear it echo nothing.
        LeadForEver,
        /// \[D3\] A new leader adds to what it takes over.
        BlendProposal,
        /// \[V3\] The trim is the least count over all members, also the dead, whose rows stall.
        TrimWithDead,
        /// \[V14\] A member that stops does not deliver what is stable.
        StopUndelivered,
        /// \[V2\] The trim is the greatest count of any member.
        TrimOfOne,
        /// \[V1\] A member decides as soon as it has echoed.
        DecideAlone,
        /// \[V5\] A minority goes on.
        NoPartitionRule,
        /// \[V8\] A member says something without the heartbeat that makes the others look.
        SilentNews,
        /// \[S5\] \[V4\] The rows of a suspected member are not frozen.
        NoFreeze,
        /// \[V4\] A member that lives and learns that it has been removed continues.
        GoOnRemoved,
        /// \[V10\] A member gives no sign of life before all members have attached.
        MuteWhileOpening,
        /// \[V11\] A member accuses whomever another member accuses.
        TakeOverAccusations,
        /// \[V11\] A member vouches for an accused member from which it has heard no answer.
        VouchUnheard,
        /// \[V11\] The leader removes all that it accuses, and nobody else.
        CutAccused,
        /// \[V15\] A member that stalled does not say so, and its accuser may go in its place.
        NeverConcede,
        /// \[V15\] A pause is forgotten when the view ends.
        ForgetPause,
        /// \[V11\] A member that attaches after it was accused does not learn who accuses it.
        MissLateReader,
        /// \[S2\] A proposal that a member has missed is taken for one that changes nothing.
        TakeMissedProposal,
        /// \[V12\] A full view ends for a joiner that there is no place for.
        EndFullView,
        /// A member whose consumer is too slow does not leave.
        StayThoughSlow,
        /// A consumer that moves is taken for one that has stopped.
        SlowThoughMoving,
        /// \[V9\] A change lets in one joiner.
        OneJoinPerView,
        /// \[D6\] One member places subgroups as it likes.
        LayoutOfOneMember,
        /// \[V13\] A member that wishes to leave never says so.
        StayForEver,
        /// \[V13\] A wish to leave is forgotten when the view ends for another reason.
        ForgetWish,
        /// \[A8\] A member says who holds which state as its own copy of the rows does, not as the proposal does.
        HoldersOfOneMember,
        /// \[A9\] A member that wishes to leave is removed, though nobody else holds its state.
        RemoveLastHolder,
        /// \[L1\] A large message counts as received when it is announced.
        CountMissingBody,
        /// \[L1\] A body counts as whole when its first block is here.
        CountPartialBody,
        /// \[J5\] A view that ends already counts as one in which messages flow.
        ReadyWhileEnding,
        /// \[J8\] A process that joins takes messages before its arrival is over.
        TakePartEarly,
        /// \[J8\] A process that joins hears what a view delivers at its end before its arrival is over.
        HearEarly,
    }
}
