//! What the scenarios of groups whose views end must reach within the seeds that `.ci/run` runs.

use super::{Point, Promises};

promises!(
    OUTAGE,
    [WaitsForMajority, WaitEnded, WaitEndTakenOver, WaitOnDisk, WaitGivenUp, EndReported, LeaderResignedLate],
    ["cut", "path that comes back", "outage of all paths", "outage of a minority", "outage of a majority"]
);

promises!(
    SLOW,
    [
        WedgedByLeave,
        WedgedByNews,
        CutUnclear,
        CutByCover,
        ProposedNew,
        Decided,
        DecisionTakenOver,
        DecisionUnheard,
        SlowLeaver,
        StoppedAsMinority,
        SignAfterDecision,
        SignWhileOpening,
        ExcludedWhole,
        StableDelivered,
        NullsSent,
        ExpressTaken,
        WordsFreed,
        PullReleased
    ],
    ["clocks of different rates", "consumer that naps", "consumer that stops for good"]
);

promises!(
    TAKEOVER,
    [
        Admitted,
        WedgedByAccusation,
        WedgedByJoin,
        WedgedByLeave,
        WedgedByNews,
        CutUnclear,
        CutByCover,
        ProposedNew,
        ProposedEarlier,
        ProposedLatest,
        EchoedAgain,
        Decided,
        DecisionTakenOver,
        DecisionUnheard,
        StoppedAsMinority,
        SignAfterDecision,
        SignWhileOpening,
        Left,
        Resent,
        TrimmedOff,
        StableDelivered,
        NullsSent,
        ExpressTaken,
        WordsFreed
    ],
    [
        "crash at a time",
        "crash before a piece",
        "crash before a post",
        "join",
        "leave",
        "no partition safety",
        "slow link"
    ]
);

promises!(
    GROUP,
    [
        Admitted,
        AccusedSilent,
        BackFromPause,
        WedgedByAccusation,
        WedgedByJoin,
        WedgedByCount,
        WedgedByLeave,
        WedgedByNews,
        CutUnclear,
        CutByCover,
        LeaderResigned,
        ProposedNew,
        ProposedEarlier,
        EchoedAgain,
        Decided,
        DecisionTakenOver,
        DecisionUnheard,
        StoppedAsMinority,
        StoppedAccused,
        LateReader,
        SignAfterDecision,
        SignWhileOpening,
        ExcludedShort,
        ExcludedWhole,
        Left,
        LeftSubgroup,
        Resent,
        TrimmedOff,
        KnownPassedOver,
        StableDelivered,
        NullsSent,
        ExpressTaken,
        PieceSent,
        WordsFreed,
        PullReleased,
        WedgeFlushed,
        VoteUnderWay,
        StoppedWithoutLogs,
        BodyMissing,
        BodyWaited,
        RelayOver,
        TransferFailed
    ],
    [
        "clocks of different rates",
        "crash at a time",
        "crash before a post",
        "durable messages",
        "heal",
        "join",
        "leave",
        "partition",
        "pause at a time",
        "relayed messages",
        "shortage of memory",
        "slow link",
        "suspicion",
        "views of few indexes",
        "views of high numbers"
    ]
);

// The plans are those of GROUP: this is what a death that is seen early can change.
promises!(
    DYING,
    [
        Admitted,
        DyingAccused,
        WedgedByAccusation,
        WedgedByJoin,
        WedgedByLeave,
        WedgedByNews,
        CutUnclear,
        CutByCover,
        LeaderResigned,
        ProposedNew,
        ProposedEarlier,
        EchoedAgain,
        Decided,
        DecisionTakenOver,
        DecisionUnheard,
        StoppedAsMinority,
        StoppedAccused,
        SignAfterDecision,
        ExcludedShort,
        ExcludedWhole,
        Left,
        Resent,
        TrimmedOff,
        StableDelivered,
        VoteUnderWay
    ],
    ["crash at a time", "crash before a post", "join", "leave", "partition", "pause at a time", "suspicion"]
);

promises!(
    ALIVE,
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
        CutByConcession,
        Conceded,
        LeaderResigned,
        ProposedNew,
        Decided,
        DecisionTakenOver,
        DecisionUnheard,
        StoppedAsMinority,
        SignAfterDecision,
        SignWhileOpening,
        ExcludedShort,
        ExcludedWhole,
        Left,
        Resent,
        TrimmedOff,
        StableDelivered,
        NullsSent,
        ExpressTaken,
        WordsFreed
    ],
    [
        "clocks of different rates",
        "agreement slower than suspicion",
        "crash at a time",
        "cut",
        "join",
        "joiner hangs",
        "leave",
        "link that fails both ways",
        "link that fails one way",
        "link that is reported lost",
        "member hangs",
        "member hangs for about as long as others wait",
        "pause at a time",
        "pause before a post",
        "silent link",
        "slow link",
        "suspicion",
        "two members hang"
    ]
);

promises!(
    SHAPE,
    [
        Admitted,
        AccusedSilent,
        BackFromPause,
        WedgedByAccusation,
        WedgedByJoin,
        WedgedByNews,
        CutUnclear,
        CutByCover,
        CutByConcession,
        Conceded,
        LeaderResigned,
        ProposedNew,
        ProposedEarlier,
        EchoedAgain,
        Decided,
        DecisionTakenOver,
        DecisionUnheard,
        StoppedAsMinority,
        SignAfterDecision,
        SignWhileOpening,
        ExcludedShort,
        ExcludedWhole,
        Resent,
        TrimmedOff,
        StableDelivered,
        NullsSent,
        ExpressTaken,
        WordsFreed
    ],
    [
        "all others die",
        "crash at a time",
        "crash before a post",
        "full group",
        "heal",
        "join",
        "long pause",
        "mute member",
        "mute member that does not hear the leader",
        "partition",
        "partition of a known shape",
        "pause at a time",
        "pause for about as long as others wait",
        "slow link",
        "storm of joiners",
        "suspicion"
    ]
);

promises!(
    LARGE,
    [WedgedByAccusation, WedgedByJoin, ProposedNew, Decided, StoppedAsMinority],
    ["death", "death of the leader", "many subgroups", "partition", "process that joins"]
);

promises!(
    MEDIUM,
    [
        AccusedSilent,
        CutByCover,
        CutReduced,
        CutUnclear,
        Decided,
        ProposedNew,
        StoppedAsMinority,
        WedgedByAccusation,
        WedgedByJoin
    ],
    [
        "death",
        "death of the leader",
        "partition",
        "partition that only silence shows",
        "process that joins",
        "suspicion"
    ]
);
