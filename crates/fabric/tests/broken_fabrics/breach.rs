//! The promises that a fabric can break, one at a time.

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// Nothing.
    None,
    /// Of two writes, the second lands first [F1, F4].
    SwapWrites,
    /// After a send, other connections wait too [F1].
    StallAllAfterSend,
    /// The word after a write is overwritten [F2].
    SpillOver,
    /// Half a word is seen [F3].
    TearWords,
    /// Source words land again after their write is done [F5].
    ReadAfterDone,
    /// Words by value land with what they hold later [F5].
    LateValues,
    /// Completions come with the next poll [F6, F10].
    EarlyDone,
    /// Sends lose all but two words [F7].
    ShortenSends,
    /// Writes land at once, before what was posted earlier [F1, F7].
    LandAtOnce,
    /// Nobody hears of breaks and losses [F7, F11].
    HideBreaks,
    /// Offsets count from the wrong word [F8].
    ShiftOffsets,
    /// Every write is taken, whatever its grant says [F8].
    CheckNoGrant,
    /// Writes land after the grant is revoked [F9].
    WriteAfterRevoked,
    /// A revocation takes all grants of its region [F9].
    RevokeNeighbours,
    /// Posts to broken connections are taken [F10, F11].
    PostToTheDead,
    /// One death closes the connections of the living [F11].
    CloseAllAtLoss,
    /// Says that targets need not poll, though they must [F12].
    ClaimOneSidedProgress,
    /// `release` does nothing [F14].
    KeepAdopted,
    /// Of two pushes, the second arrives first [M1].
    SwapPushes,
    /// Of two pushed words, the second arrives first [M1].
    SwapWords,
    /// `push_word` reads the word later [M1].
    PushWordsByReference,
    /// Says that readers see nothing early, though they do [M2].
    DenyEarlySight,
    /// `freeze` does nothing [M3].
    ThawAttachments,
    /// `freeze` stops other attachments too [M3].
    FreezeAll,
    /// Attachments of a dead owner are lost [M4].
    ForgetTheDead,
    /// `Attached` comes before pushes arrive [M5].
    AttachedTooEarly,
    /// `retire` does nothing [M6].
    KeepMirrors,
    /// `retire` ends all mirrors [M6].
    RetireAll,
    /// Queues drop what does not fit.
    NeverFull,
    /// Misuse is ignored.
    Lenient,
}
