//! The rules and branches of the protocols that a run has reached (Derecho §3.4, RDMC §3, EXS §III). The simulator
//! counts them over many runs, so that a scenario that no longer reaches what it was written for is noticed.

points! {
    pub Point;
    /// A member was silent for too long and is accused.
    AccusedSilent,
    /// A member has resumed after a pause of its own, and gives all others time.
    BackFromPause,
    /// A view ends because a member is accused.
    WedgedByAccusation,
    /// A view ends because a process wants to join.
    WedgedByJoin,
    /// A view ends because numbers that restart with each view are used up.
    WedgedByCount,
    /// A member is accused because it is seen dying, before it is lost.
    DyingAccused,
    /// A view ends because a member leaves.
    WedgedByLeave,
    /// A view ends because another member has wedged.
    WedgedByNews,
    /// A member has lost its majority, and waits for it.
    WaitsForMajority,
    /// Members that have waited end their view.
    WaitEnded,
    /// A member comes to a view in which others wait, and waits with them.
    WaitJoined,
    /// A leader waits, since too few members that stay have what a proposal counts.
    WaitsForCopies,
    /// A leader drops an earlier proposal, which cannot have been decided.
    EchoDropped,
    /// A member that waits lacks what its vote needs.
    WaitLacksLog,
    /// A member that waits is committed to something that is not on its disk yet.
    WaitOnDisk,
    /// A member does not wait for the silent ones any more, since dead ones may restart with it.
    WaitGivenUp,
    /// A member says how a view has ended to those that may wait in it.
    EndReported,
    /// A member that waits learns from another one how the view has ended.
    WaitEndTakenOver,
    /// A leader waits until it is clear whom to remove.
    CutUnclear,
    /// Bad links are too many to search all sets of members that have an end of each.
    CutReduced,
    /// A member is removed that not all members accuse.
    CutByCover,
    /// A member that stalled learns that it is accused, and concedes.
    Conceded,
    /// A member that concedes is removed, where its accuser would be removed otherwise.
    CutByConcession,
    /// A leader that does not hear all members that stay resigns.
    LeaderResigned,
    /// A leader resigns after it has proposed.
    LeaderResignedLate,
    /// A leader proposes a change of its own.
    ProposedNew,
    /// A leader takes over the proposal of an earlier one.
    ProposedEarlier,
    /// A leader has to choose between the proposals of several earlier ones.
    ProposedLatest,
    /// A member echoes a second leader.
    EchoedAgain,
    /// A member decides because all have echoed.
    Decided,
    /// A member takes over a decision that it has echoed.
    DecisionTakenOver,
    /// A member takes over a decision that it had not echoed.
    DecisionUnheard,
    /// A member that wishes to leave stays, because no other member holds its state.
    LeaverHeldBack,
    /// A member leaves because its consumer is too slow.
    SlowLeaver,
    /// A member stops, because it hears no majority.
    StoppedAsMinority,
    /// A member that hears no majority has read that others do not hear it either.
    StoppedAccused,
    /// A member that was accused before it attached learns of it.
    LateReader,
    /// A member that has decided gives signs of life until the others know.
    SignAfterDecision,
    /// A member gives a sign of life before all have attached.
    SignWhileOpening,
    /// A removed member that has not received all messages ends without them.
    ExcludedShort,
    /// A removed member delivers the trim and ends.
    ExcludedWhole,
    /// A member that wished to leave has left.
    Left,
    /// A member has left a subgroup that continues.
    LeftSubgroup,
    /// Messages beyond the trim continue in the next view.
    Resent,
    /// Messages that have arrived are beyond the trim and are dropped.
    TrimmedOff,
    /// A message that was delivered is sent again, and is skipped.
    KnownPassedOver,
    /// A member that stops delivers what is stable.
    StableDelivered,
    /// A round that others have begun is filled by nulls.
    NullsSent,
    /// A message is announced by a write of its own.
    ExpressTaken,
    /// More messages are committed than one evaluation sends.
    PieceSent,
    /// The words of messages that all members have delivered are returned to the writer.
    WordsFreed,
    /// A member that ends a view waits for its disk.
    WedgeFlushed,
    /// A vote for the end of a view is on its way to the disk.
    VoteUnderWay,
    /// A group stops because all members of a durable subgroup are gone.
    StoppedWithoutLogs,
    /// A consumer releases messages that it has pulled.
    PullReleased,
    /// An announced message waits for its body.
    BodyMissing,
    /// A body waits for its place, which is still read.
    BodyWaited,
    /// Transfers of an ended view have stopped and are forgotten.
    RelayOver,
    /// A bulk transfer fails.
    TransferFailed,
    /// A bulk transfer continues from what an earlier one has left.
    TransferResumed,
    /// A block is received into memory that was offered before the object was announced.
    OfferTaken,
    /// A joiner asks for the state again.
    StateAskedAgain,
    /// A member that is asked for the state does not hold it, or has not applied enough.
    StateRefused,
    /// A state is taken over, and messages kept meanwhile are applied.
    KeptApplied,
    /// A state is taken over that already contains messages which were kept.
    KeptSkipped,
    /// A state arrives that is not needed any more.
    StateUnwanted,
    /// All members that held a state are gone.
    StateLost,
    /// A client's update is sent again, and is answered without being applied.
    UpdateRepeated,
    /// A client's session was forgotten.
    SessionForgotten,
    /// Several updates are sent in one message.
    UpdatesTogether,
    /// A client sends an update while another one is in flight.
    UpdatesUnderWay,
    /// A client asks another member.
    MemberChanged,
    /// A client asks another member, because one was silent for too long.
    MemberSilent,
    /// A client gives up an update without knowing whether it is applied.
    UpdateGivenUp,
    /// A client whose session was forgotten sends an update again in a new one.
    SentInNewSession,
    /// A query waits for a member to reach the caller's view.
    QueryWaited,
    /// A state that has arrived waits for the next view.
    StateWaited,
    /// A state provider is given up, because it is silent.
    ProviderSilent,
    /// A leader admits a process.
    Admitted,
    /// A member that is not the leader redirects a process that asks to join.
    JoinRedirected,
    /// A leader makes a process wait, because another one is its candidate.
    JoinDeferred,
    /// A leader has used up the numbers of its view.
    NumbersRenewed,
    /// A link is closed, because no candidate has its number.
    LinkClosed,
    /// A member does not accept a link that may be a candidate's, and reports that.
    LinkReported,
    /// The time of a link has passed, and its process is in no view.
    LinkExpired,
    /// A candidate is gone before it was connected.
    CandidateGone,
    /// A candidate has not linked in time.
    CandidateLate,
    /// A process is not admitted, since no member has the state that it needs.
    JoinUntaken,
    /// A candidate is let go, since no member has the state any more that it needs.
    CandidateUntaken,
    /// A joiner was removed before it had begun its first view.
    JoinerRemoved,
    /// A member closed the link of a candidate whose leader leads no more.
    JoinerOutdated,
    /// A joiner was lost when its first view had begun here, but not at all members.
    JoinerLostEarly,
    /// A joiner that was removed asks again.
    JoinedAgain,
    /// A joiner has lost the leader that has admitted it, and asks again.
    JoinerOrphaned,
    /// A joiner links again with a member that did not accept links yet.
    LinkTriedAgain,
    /// A joiner cannot link with a member, and asks again.
    LinkMissing,
    /// A joiner's time has run out.
    JoinGivenUp,
    /// The planned number of processes has joined, but too few contacts are among them.
    QuorumAwaited,
    /// A contact that has gathered processes follows an earlier one.
    ContactYielded,
    /// A coordinator has lost a member of its roster, and gathers again.
    GatheredAgain,
    /// A follower leaves a coordinator that stalls.
    SilentCoordinatorLeft,
    /// A member has lost its coordinator when the others may have begun.
    CoordinatorLostLate,
    /// A member begins to lead a restart.
    RestartLed,
    /// A member leads a restart, since no leader is behind the highest promise.
    RestartLeadTakenOver,
    /// A leader of a restart sees a higher promise.
    RestartLeadLost,
    /// A restart proposes an end of its own.
    RestartProposedNew,
    /// A restart adopts what a leader of the live view had proposed.
    RestartEchoAdopted,
    /// A restart adopts what an earlier restart had proposed.
    RestartAcceptanceAdopted,
    /// A restart drops a vote for what cannot have been decided.
    RestartVoteDropped,
    /// A restart is decided.
    RestartDecided,
    /// A member accepts only when it has fetched what counts.
    AcceptanceAwaitsLog,
    /// A process learns of a newer view.
    ViewLearned,
    /// A part of a log comes from another process.
    LogFetched,
    /// A process that was asked for a part of its log had none of it.
    FetchedNothing,
    /// A process that was asked for a part of its log has not answered in time.
    FetchUnanswered,
    /// A part of a log has come when its time was over.
    FetchedTooLate,
    /// A checkpoint comes in the place of records.
    CheckpointFetched,
    /// The lists of ended views of two processes do not meet.
    ListsApart,
    /// A process learns of trims that its list of ended views does not reach back to.
    ListExtended,
    /// A member of a running group forgets how views have ended that checkpoints cover.
    EndsForgotten,
    /// A member stays in a shard, since the others do not have it.
    HolderKept,
    /// What a sender had under way in a view is sent again in the next, to several shards.
    GenuineResent,
    /// A record of a message to several shards arrives once more, and is known.
    GenuineKnown,
    /// A member drops a message to several shards that a leader knows to be delivered.
    GenuineDropped,
    /// A message is ordered that the state of a joiner has in it.
    GenuineInState,
    /// A message is kept until a joiner has the state.
    GenuineKept,
    /// Messages that the trims of several shards hold are delivered at the end of a view.
    GenuineFlushed,
    /// Messages with timestamps are beyond a trim.
    GenuineOut,
    /// A member lacks a part of its shard's log when it is to echo or install a trim.
    GenuineLogAwaited,
    /// A member asks another one for a part of its shard's log.
    GenuineLogAsked,
    /// A shard has lost a majority of its members, so the group stops.
    GenuineQuorumLost,
    /// A shard has lost all its members.
    GenuineShardLost,
    /// Members of a shard are in a view in which no member has its state.
    GenuineStateLost,
    /// An update of several shards was applied before, and is not applied once more.
    UpdateAppliedBefore,
    /// Another member is asked for the replies to updates, since one has failed.
    ReplyAskedElsewhere,
    /// The replies of a shard are lost with its state.
    ReplyLost,
    /// A member of a shard has left.
    GenuineLeft,
    /// A member of a shard was removed, and delivers what the trims hold.
    GenuineExcluded,
    /// A member leads a ballot by which its view ends.
    EndBallotLed,
    /// A member sees a higher ballot than the one that it leads.
    EndLeadLost,
    /// A waiting leader proposes how its view ends.
    EndProposed,
    /// A leader takes over an echo of a live proposal, which may have been decided.
    EndEchoTakenOver,
    /// A leader takes over an acceptance of an earlier ballot.
    EndAcceptanceTakenOver,
    /// A leader drops a vote for what cannot have been decided.
    EndVoteDropped,
    /// Fewer copies of a shard are asked for, since all others are dead.
    EndNeedLowered,
    /// All members that can have echoed, and copies of a shard are missing.
    EndCopiesMissing,
    /// A shard that moves keeps a member that holds it.
    EndHolderKept,
    /// A shard is given up, since all that held its state are dead.
    EndShardGivenUp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_noted_until_they_are_asked_for() {
        let _ = take();
        [Point::Decided, Point::AccusedSilent, Point::Decided].into_iter().for_each(reach);
        assert_eq!(take().collect::<Vec<_>>(), [Point::AccusedSilent, Point::Decided]);
        assert_eq!(take().count(), 0);
    }

    #[test]
    fn points_say_what_they_are() {
        assert_eq!(Point::Decided.about(), "A member decides because all have echoed.");
    }
}
