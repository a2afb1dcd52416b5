//! Mutations of the rules by which a view ends (Derecho §3.4). The scenario `ends` catches them, or a directed test does.

mutations! {
    /// A mutation. Each leaves out or changes one rule.
    pub enum EndMutation {
        /// \[H2\] Waiting is no promise: a member that waits may still echo a live proposal.
        WaitWithoutPromise,
        /// \[H2\] A member receives and acknowledges after its wedge.
        ReceiveAfterWedge,
        /// \[H2\] A member promises before it has wedged, so that its counts are not final.
        PromiseUnwedged,
        /// \[H2\] \[H14\] A member that has promised a ballot still echoes live proposals.
        EchoThoughWaiting,
        /// \[H1\] \[H3\] Members that wait count as if they took part, and no ballot makes the others wait.
        CountThoseThatWait,
        /// \[H3\] A leader that waits is followed, and no ballot makes the others wait.
        FollowWaitingLeader,
        /// \[H4\] Reports of processes that are no members count.
        CountStrangers,
        /// \[H4\] Votes and promises of another view count.
        CountOtherViews,
        /// \[H5\] A pair that lost each other uses its connection again in the view.
        UseLostPair,
        /// \[H5\] \[H15\] Acknowledgements of the view before count.
        CountOldAcknowledgements,
        /// \[H6\] \[H9\] Members that do not hear each other may lead and are kept together.
        KeepApart,
        /// \[H8\] \[H13\] Half of a view is enough.
        EndWithHalf,
        /// \[H7\] \[H14\] A promise is not kept: lower ballots are accepted.
        BreakPromise,
        /// \[H8\] A live leader proposes before all that stay follow it.
        ProposeUnfollowed,
        /// \[H9\] The trim of a shard in memory is the most that any member has.
        TrimToMost,
        /// \[H9\] The trim of a shard in memory is what the leader has.
        TrimToOwn,
        /// \[H9\] The trim of a shard with a majority for quorum is the least that any member has.
        TrimMajorityToLeast,
        /// \[H9\] The trim of a shard with a majority for quorum is the most that any member has.
        TrimMajorityToMost,
        /// \[H9\] A shard ends although a majority of it is absent.
        EndBelowQuorum,
        /// \[H9\] The trim of a durable shard is the shortest log.
        TrimLogsToLeast,
        /// \[H9\] One log of a durable shard is enough.
        EndWithOneLog,
        /// \[H9\] A shard whose holders are away is given up at once.
        GiveUpTooSoon,
        /// \[H9\] \[H19\] A member without the base of a shard counts as a holder.
        HoldWithoutBase,
        /// \[H9\] The next members are all members, whichever have answered.
        KeepAbsent,
        /// \[H9\] A shard moves away from those that hold it.
        MoveFromHolders,
        /// \[H9\] A leaver that alone holds a state is let go.
        SpareLastHolder,
        /// \[H9\] The floor of the next view is that of the trims of this view alone.
        ForgetFloor,
        /// \[H10\] The need of a value that is taken over counts the dead, too.
        NeedTheDead,
        /// \[H10\] \[H13\] No copies are needed where a majority is the quorum.
        NeedNoCopies,
        /// \[H10\] Copies of members that the end does not keep count.
        CountCopiesOfAll,
        /// \[H11\] Live echoes are ignored.
        IgnoreLiveVotes,
        /// \[H11\] Acceptances of ballots are ignored.
        IgnoreBallotVotes,
        /// \[H11\] The lowest vote is taken over.
        TakeOverLowest,
        /// \[H11\] A value is taken over whether or not it may have been decided.
        TakeOverAny,
        /// \[H12\] A live leader takes over an earlier echo whether or not it may have been decided.
        TakeOverAnyEcho,
        /// \[H12\] A live leader ignores earlier echoes.
        IgnoreEarlierEcho,
        /// \[H13\] The vote of a waiting leader alone decides.
        DecideByOneVote,
        /// \[H13\] The echo of a live leader alone decides.
        DecideByOneLiveEcho,
        /// \[H14\] A member votes before it has what the value keeps.
        VoteWithoutContent,
        /// \[H15\] A member suspects in the next view which it suspected.
        KeepSuspects,
        /// \[H16\] How a view has ended is not reported.
        KeepEndSilent,
        /// \[H17\] A member sends again what it had under way, although it has not learned how the view has ended.
        ResendUnknown,
        /// \[H17\] A process that knows of a later view without it still votes.
        VoteLeftBehind,
        /// \[H18\] A member ends because others are silent.
        EndForSilence,
        /// \[H19\] An identity that has been a member is admitted again.
        AdmitFormer,
        /// \[H20\] What a restarted member has counts for shards in memory.
        TrustMemoryOfRestarted,
        /// \[H21\] A request is answered at reception.
        ReplyAtReception,
    }
}
