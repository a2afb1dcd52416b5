//! The promises that a fabric can break, one at a time.

/// The broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// Nothing.
    None,
    /// Of two writes, the second lands first [F1, F4].
    SwapWrites,
    /// After a send, other connections stall too [F1].
    StallAllAfterSend,
    /// The word after a write is overwritten [F2].
    SpillOver,
    /// A reader sees half a word [F3].
    TearWords,
    /// Source words land again after their write is done [F5].
    ReadAfterDone,
    /// Words by value land with the values that they have later [F5].
    LateValues,
    /// Completions arrive with the next poll, before the writes have landed [F6, F10].
    EarlyDone,
    /// Sends lose all but two words [F7].
    ShortenSends,
    /// Writes land immediately, before earlier posts [F1, F7].
    LandAtOnce,
    /// Breaks and losses are not reported [F7, F11].
    HideBreaks,
    /// Offsets count from the wrong word [F8].
    ShiftOffsets,
    /// Every write is accepted, whatever its grant [F8].
    CheckNoGrant,
    /// Writes land after the grant is revoked [F9].
    WriteAfterRevoked,
    /// A revocation revokes all grants of its region [F9].
    RevokeNeighbours,
    /// Posts to broken connections are accepted [F10, F11].
    PostToTheDead,
    /// One death closes the connections of live nodes [F11].
    CloseAllAtLoss,
    /// Claims that targets need not poll, although they must [F12].
    ClaimOneSidedProgress,
    /// `release` does nothing [F14].
    KeepAdopted,
    /// Of two pushes, the second arrives first [M1].
    SwapPushes,
    /// Of two pushed words, the second arrives first [M1].
    SwapWords,
    /// `push_word` reads the word later [M1].
    PushWordsByReference,
    /// Claims that readers see nothing early, although they do [M2].
    DenyEarlySight,
    /// `freeze` does nothing [M3].
    ThawAttachments,
    /// `freeze` freezes other attachments too [M3].
    FreezeAll,
    /// Attachments of a dead owner are lost [M4].
    ForgetTheDead,
    /// `Attached` is reported before pushes arrive [M5].
    AttachedTooEarly,
    /// `retire` does nothing [M6].
    KeepMirrors,
    /// `retire` retires all mirrors [M6].
    RetireAll,
    /// Full queues drop posts silently.
    NeverFull,
    /// Misuse is ignored.
    Lenient,
}
