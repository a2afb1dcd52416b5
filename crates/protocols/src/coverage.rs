//! Which rules and branches of the protocols a run has reached (beside Derecho §3.4, RDMC §3, EXS §III). The simulator
//! counts them over many runs: a scenario that no longer gets to what it is there for is noticed.
//!
//! Outside tests, and without the feature `coverage`, nothing is noted: `reach` is empty, and the protocols hold no
//! trace of this.

/// An enum of points, all of them as `ALL`, and each with what it means.
macro_rules! points {
    ($($(#[doc = $what:literal])+ $name:ident,)+) => {
        /// A rule or branch of a protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Point {
            $($(#[doc = $what])+ $name,)+
        }

        impl Point {
            /// All points.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What happens there, in a sentence.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($what),+).trim_ascii(),)+
                }
            }
        }
    };
}

points! {
    /// A member was silent for too long and is accused.
    AccusedSilent,
    /// A member has come back after a pause of its own, and gives all others time.
    BackFromPause,
    /// A view ends because somebody is accused.
    WedgedByAccusation,
    /// A view ends because somebody wants to join.
    WedgedByJoin,
    /// A count that begins anew with a view is used up.
    WedgedByCount,
    /// A view ends because a member leaves.
    WedgedByLeave,
    /// A view ends because another member has wedged.
    WedgedByNews,
    /// A leader waits until it is clear whom to remove.
    CutUnclear,
    /// A member is removed that not everybody accuses.
    CutByCover,
    /// A member that stalled learns that it is accused, and concedes.
    Conceded,
    /// A member is removed that concedes, where its accuser would be else.
    CutByConcession,
    /// A leader that does not hear all that stay resigns.
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
    /// A member takes over a decision of which it had not heard.
    DecisionUnheard,
    /// A view ends for several joiners at once.
    JoinedTogether,
    /// A joiner waits, since the view is full.
    JoinedInVain,
    /// A member that wishes to leave stays, since nobody else holds its state.
    LeaverHeldBack,
    /// A member leaves since its consumer is too slow.
    SlowLeaver,
    /// A member stops, since it hears no majority.
    StoppedAsMinority,
    /// A member that hears no majority has read that others do not hear it either.
    StoppedAccused,
    /// A member stops, since it follows nobody any more, not even itself.
    StoppedLeaderless,
    /// A member that was accused before it attached is told so.
    LateReader,
    /// A member that has decided gives signs of life until the others know.
    SignAfterDecision,
    /// A member gives a sign of life before all have attached.
    SignWhileOpening,
    /// A removed member whose messages are not all here ends without them.
    ExcludedShort,
    /// A removed member delivers the trim and ends.
    ExcludedWhole,
    /// A member that wished to leave has left.
    Left,
    /// A member has left a subgroup that goes on.
    LeftSubgroup,
    /// Messages beyond the trim go on in the next view.
    Resent,
    /// Messages that have come are beyond the trim and are dropped.
    TrimmedOff,
    /// A message comes again that was delivered, and is passed over.
    KnownPassedOver,
    /// A member that stops delivers what is stable.
    StableDelivered,
    /// A round that others have begun is filled by nulls.
    NullsSent,
    /// A message is announced by a write of its own.
    ExpressTaken,
    /// The words of messages that all have delivered are given back to the writer.
    WordsFreed,
    /// A consumer gives back messages that it has pulled.
    PullReleased,
    /// An announced message waits for its body.
    BodyMissing,
    /// A body waits until its place is free, which is still read.
    BodyWaited,
    /// Transfers of an ended view have come to rest and are forgotten.
    RelayOver,
    /// A bulk transfer fails.
    TransferFailed,
    /// A bulk transfer goes on from what an earlier one has left.
    TransferResumed,
    /// A block comes into memory that was offered before it was announced.
    OfferTaken,
    /// A joiner asks for the state once more.
    StateAskedAgain,
    /// A member that is asked for the state does not hold it, or has not come so far.
    StateRefused,
    /// A state is taken over, and messages kept meanwhile are applied.
    KeptApplied,
    /// A state is taken over that has messages in it which were kept.
    KeptSkipped,
    /// A state comes that nobody waits for any more.
    StateUnwanted,
    /// All that held a state are gone.
    StateLost,
    /// A client's update comes again, and is answered without being applied.
    UpdateRepeated,
    /// A client's update comes before an earlier one, and is not applied.
    UpdateEarly,
    /// A client's session was forgotten.
    SessionForgotten,
    /// Several updates go in one message.
    UpdatesTogether,
    /// A client sends an update while another one is under way.
    UpdatesUnderWay,
    /// A client asks another member.
    MemberChanged,
    /// A client hears nothing of a member for so long that it asks another.
    MemberSilent,
    /// A client gives up an update of which it does not know whether it is applied.
    UpdateGivenUp,
    /// A client whose session was forgotten sends an update again in a new one.
    SentInNewSession,
    /// A query waits for a member to come to the asker's view.
    QueryWaited,
    /// A state that has come waits for the next view.
    StateWaited,
    /// A state provider is given up, because it says nothing.
    ProviderSilent,
    /// A leader admits a process.
    Admitted,
    /// A member that does not lead redirects a process that asks to join.
    JoinRedirected,
    /// A leader tells a process to wait, since another one is its candidate.
    JoinDeferred,
    /// A leader has used up the numbers of its view.
    NumbersRenewed,
    /// A link is closed, since no candidate has its number.
    LinkClosed,
    /// A member does not take a link that may be a candidate's, and reports that.
    LinkReported,
    /// The time of a link has passed, and its process is in no view.
    LinkExpired,
    /// A candidate has gone before it was connected.
    CandidateGone,
    /// A candidate has not linked in time.
    CandidateLate,
    /// A joiner was removed before it had begun its first view.
    JoinerRemoved,
    /// A joiner that was removed asks again.
    JoinedAgain,
    /// A joiner has lost the leader that has admitted it, and asks again.
    JoinerOrphaned,
    /// A joiner links once more with a member that did not take links yet.
    LinkTriedAgain,
    /// A joiner cannot link with a member, and asks again.
    LinkMissing,
    /// A joiner does not know whether the leader has taken its report.
    ReportUnanswered,
    /// A joiner's time is over.
    JoinGivenUp,
    /// As many processes as planned are here, and too few contacts among them.
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
    /// A checkpoint comes in the place of records.
    CheckpointFetched,
    /// The lists of ended views of two processes do not meet.
    ListsApart,
    /// A process learns of trims that its list of ended views does not reach back to.
    ListExtended,
    /// A member stays in a shard, since the others do not have it.
    HolderKept,
}

/// Whether points are noted.
pub const IS_ON: bool = cfg!(any(test, feature = "coverage"));

#[cfg(any(test, feature = "coverage"))]
thread_local! {
    /// The points that this thread has reached, as a set of bits.
    static REACHED: std::cell::Cell<u128> = const { std::cell::Cell::new(0) };
}

/// Notes that this thread has reached `point`.
#[cfg(any(test, feature = "coverage"))]
pub(crate) fn reach(point: Point) {
    const { assert!(Point::ALL.len() <= 128, "they fit one word") };
    REACHED.set(REACHED.get() | 1 << point as u32);
}

/// Notes nothing.
#[cfg(not(any(test, feature = "coverage")))]
#[inline(always)]
pub(crate) const fn reach(_: Point) {}

/// The points that this thread has reached since it last asked.
#[cfg(any(test, feature = "coverage"))]
pub fn take() -> impl Iterator<Item = Point> {
    let reached = REACHED.replace(0);
    Point::ALL.iter().copied().filter(move |point| reached >> *point as u32 & 1 == 1)
}

/// The points that this thread has reached since it last asked: none are noted.
#[cfg(not(any(test, feature = "coverage")))]
pub fn take() -> impl Iterator<Item = Point> {
    std::iter::empty()
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
