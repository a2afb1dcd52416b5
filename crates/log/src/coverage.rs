//! Which rules and branches of the log a run has reached. The simulator counts them over many runs.

points! {
    pub LogPoint;
    /// A frame is written while others are.
    FramesTogether,
    /// A frame is on the disk before an earlier one.
    WrittenOutOfOrder,
    /// A segment is full, and the next one begins.
    RolledOver,
    /// A segment is recycled.
    Recycled,
    /// A log is found clean.
    FoundClean,
    /// A log is found torn.
    FoundTorn,
    /// A log is found damaged.
    FoundDamaged,
    /// A damaged log is continued after a repair.
    Repaired,
    /// A frame is skipped, since it is of another log or from before its file was recycled.
    StaleFrame,
    /// A copy of a register is bad, and the other one counts.
    CopyHealed,
    /// A value does not fit into its file, and a larger one takes the place of that.
    CopyGrown,
    /// A checkpoint is not as it was written, and does not count.
    CheckpointRefused,
    /// A log begins anew in its folder.
    BegunAnew,
    /// A backup is copied again, since the register has changed meanwhile.
    BackupRepeated,
    /// A backup ends before a frame that was being written when it was copied.
    BackupCut,
    /// A backup ends before what one of its checkpoints covers.
    BackupBehind,
}
