//! The points and faults that each scenario must reach within the seeds that `.ci/run` runs: those that it reached in
//! at least ten of these runs when this was written, and those that are rare in all scenarios.

use super::{LogPoint, Point, Promises};

promises!(
    MULTICAST,
    [NullsSent, ExpressTaken, PieceSent, WordsFreed, PullReleased],
    [
        "count of records that wraps",
        "crash at a time",
        "crash before a post",
        "durable messages",
        "pause at a time",
        "slow link"
    ]
);

promises!(SST, [], ["pause at a time"]);

promises!(
    ASSEMBLY,
    [QuorumAwaited, ContactYielded, GatheredAgain, SilentCoordinatorLeft, CoordinatorLostLate],
    [
        "crash at a time",
        "crash of the first contact",
        "halt forever",
        "heal",
        "partition",
        "pause at a time",
        "process that starts again",
        "processes for two groups",
        "ranks that are asked for",
        "start at a time"
    ]
);

promises!(
    RESTART,
    [
        RestartLed,
        RestartLeadTakenOver,
        RestartLeadLost,
        RestartProposedNew,
        RestartEchoAdopted,
        RestartAcceptanceAdopted,
        RestartVoteDropped,
        RestartDecided,
        AcceptanceAwaitsLog,
        ViewLearned,
        LogFetched,
        FetchedNothing,
        FetchUnanswered,
        FetchedTooLate,
        CheckpointFetched,
        ListsApart,
        ListExtended,
        HolderKept
    ],
    [
        "checkpoints",
        "death of all processes",
        "death of some processes",
        "death right after a step",
        "false accusation",
        "known loss of the end of a log",
        "log that others cannot read",
        "loss of a register",
        "member that leaves",
        "messages that are lost",
        "messages that come twice",
        "partition",
        "process that joins",
        "shards that move",
        "silent loss of the end of a log",
        "slow disk",
        "slow link"
    ]
);

promises!(
    REVIVAL,
    [
        RestartProposedNew,
        RestartEchoAdopted,
        RestartDecided,
        AcceptanceAwaitsLog,
        ViewLearned,
        LogFetched,
        FetchedNothing,
        FetchUnanswered,
        ListExtended,
        EndsForgotten,
        VoteUnderWay
    ],
    ["damaged log", "deaths during the restart", "join", "leave", "log that others cannot read", "suspicion"]
);

promises!(
    SALVAGE,
    [RestartDecided, ViewLearned, LogFetched],
    ["deaths during the restart", "join", "leave", "loss of the end of a log", "suspicion"]
);

promises!(
    RDMC,
    [TransferFailed, TransferResumed, OfferTaken],
    ["crash before a post", "pause at a time", "slow link"]
);

promises!(
    GENUINE,
    [
        Admitted,
        JoinUntaken,
        CandidateUntaken,
        GenuineResent,
        GenuineKnown,
        GenuineDropped,
        GenuineInState,
        GenuineKept,
        GenuineFlushed,
        GenuineOut,
        GenuineLogAwaited,
        GenuineLogAsked,
        GenuineQuorumLost,
        GenuineShardLost,
        GenuineStateLost,
        UpdateAppliedBefore,
        ReplyAskedElsewhere,
        ReplyLost,
        GenuineLeft,
        GenuineExcluded,
        WaitEnded,
        WaitJoined,
        WaitLacksLog,
        WaitsForCopies,
        EchoDropped
    ],
    [
        "counted words",
        "crash at a time",
        "crash before a post",
        "eight shards",
        "hybrid clock",
        "wrong clocks",
        "join",
        "follower that stalls",
        "late request for the state",
        "leave",
        "majority",
        "member of no shard",
        "partition",
        "pause at a time",
        "shards without states",
        "slow link",
        "suspicion"
    ]
);

promises!(
    GENUINE_LARGE,
    [
        WedgedByAccusation,
        CutByCover,
        ProposedNew,
        Decided,
        DecisionTakenOver,
        SignWhileOpening,
        ExpressTaken,
        GenuineResent,
        GenuineKnown,
        GenuineDropped,
        GenuineFlushed,
        GenuineLogAwaited,
        GenuineLogAsked
    ],
    [
        "as many shards as there may be",
        "crash at a time",
        "majority",
        "shard of more than 64 members",
        "shards without states",
        "slow link"
    ]
);

promises!(
    REPLICA,
    [
        Admitted,
        AccusedSilent,
        BackFromPause,
        WedgedByAccusation,
        WedgedByJoin,
        WedgedByLeave,
        WedgedByNews,
        CutUnclear,
        CutByCover,
        ProposedNew,
        ProposedEarlier,
        EchoedAgain,
        Decided,
        DecisionTakenOver,
        DecisionUnheard,
        LeaverHeldBack,
        StoppedAsMinority,
        StoppedAccused,
        SignAfterDecision,
        SignWhileOpening,
        ExcludedShort,
        ExcludedWhole,
        Left,
        LeftSubgroup,
        Resent,
        TrimmedOff,
        StableDelivered,
        NullsSent,
        ExpressTaken,
        WordsFreed,
        PullReleased,
        StateAskedAgain,
        StateRefused,
        KeptApplied,
        KeptSkipped,
        StateUnwanted,
        StateLost,
        UpdateRepeated,
        SessionForgotten,
        UpdatesTogether,
        UpdatesUnderWay,
        MemberChanged,
        MemberSilent,
        UpdateGivenUp,
        SentInNewSession,
        QueryWaited,
        StateWaited,
        ProviderSilent
    ],
    [
        "clocks of different rates",
        "clients",
        "clients with many updates under way",
        "connections that break",
        "crash at a time",
        "crash before a post",
        "few bytes kept",
        "few sessions",
        "heal",
        "join",
        "leave",
        "no partition safety",
        "partition",
        "pause at a time",
        "shards that move",
        "slow link",
        "state provider that hangs",
        "suspicion"
    ]
);

promises!(
    JOIN,
    [
        AccusedSilent,
        Admitted,
        BackFromPause,
        CandidateGone,
        CandidateLate,
        CutByCover,
        CutUnclear,
        Decided,
        DecisionTakenOver,
        DecisionUnheard,
        ExcludedWhole,
        JoinDeferred,
        JoinGivenUp,
        JoinRedirected,
        JoinedAgain,
        JoinerOrphaned,
        JoinerRemoved,
        JoinerOutdated,
        JoinerLostEarly,
        Left,
        LinkClosed,
        LinkExpired,
        LinkMissing,
        LinkReported,
        LinkTriedAgain,
        NumbersRenewed,
        ProposedNew,
        SignAfterDecision,
        SignWhileOpening,
        StoppedAccused,
        StoppedAsMinority,
        WedgedByAccusation,
        WedgedByCount,
        WedgedByJoin,
        WedgedByLeave,
        WedgedByNews,
    ],
    [
        "clocks of different rates",
        "contact that is not there",
        "crash at a time",
        "crash of the first leader",
        "cut at a time",
        "few numbers in a view",
        "join",
        "late request",
        "leader that ends with its candidate",
        "leave",
        "link under a foreign number",
        "lost request",
        "member that rejoins",
        "pause at a time",
        "rank of another",
        "views of high numbers",
    ]
);

pub(crate) const LOG: Promises = Promises {
    points: &[],
    log_points: LogPoint::ALL,
    faults: &[
        "append while the disk is full",
        "backup while the log is written",
        "bits that rot",
        "block that cannot be read",
        "checkpoints that are lost",
        "crash at an operation",
        "crash between operations",
        "log that begins anew",
        "read that rots",
        "segment of another copy of the folder",
        "settled before the crash",
        "wanted versions",
        "write cut short",
        "write that fails",
        "write that goes elsewhere",
        "write that is lost",
    ],
};

promises!(
    ENDS,
    [
        EndBallotLed,
        EndLeadLost,
        EndProposed,
        EndEchoTakenOver,
        EndAcceptanceTakenOver,
        EndVoteDropped,
        EndNeedLowered,
        EndCopiesMissing,
        EndHolderKept,
        EndShardGivenUp,
    ],
    [
        "outage of all links",
        "partition",
        "member cut off",
        "strike after a step",
        "death",
        "member that leaves",
        "false accusation",
        "connection lost in the view",
        "process that joins",
        "durable shard",
        "shard with a majority for quorum",
        "shards that move",
    ]
);
