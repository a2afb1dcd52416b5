//! Mutations in the log, the register and the checkpoints. The simulator's scenario `log` catches them.

mutations! {
    /// A mutation. Each is the negation of one invariant of the log.
    pub enum LogMutation {
        /// \[W1\] A header's length is used before its check.
        LengthBeforeCheck,
        /// \[W2\] A frame counts whatever log it is of.
        NoLogId,
        /// \[W3\] A frame counts whatever frame is before it.
        NoChain,
        /// \[W4\] A log that is opened again numbers its frames from the beginning of the life before.
        NumbersRestart,
        /// \[W5\] A record counts as persisted when its frame is handed to the disk.
        AnswerEarly,
        /// \[W6\] A write that failed is tried again.
        RetryWrite,
        /// \[W7\] The verdict on the tail does not look at which frames were known to be durable.
        CutKnownDurable,
        /// \[W8\] A segment is used before its name is durable.
        SkipFolderFlush,
        /// \[W9\] A register is written to one of its copies.
        SingleCopy,
        /// \[W10\] A checkpoint counts without having been read back.
        SkipReadBack,
        /// \[W11\] A segment is recycled when the newest checkpoint of one of its subgroups covers it.
        RecycleEarly,
        /// \[W14\] Records are recycled although versions that they make are wanted.
        RecycleWanted,
        /// \[W14\] Only the newest checkpoints are kept.
        KeepNewestOnly,
        /// \[W12\] A collected frame is written only when it is full.
        WaitForFull,
        /// \[W15\] A frame is noted when it is handed to the disk.
        NoteEarly,
        /// [W13] A backup has the register that is there when its records have been copied.
        BackUpLaterRegister,
        /// [W13] A backup has the register that was there before its records were copied, although it has changed.
        BackUpEarlierRegister,
        /// [W13] A backup is made of a damaged log.
        BackUpDamaged,
        /// [W13] A backup has a checkpoint that is newer than its records.
        BackUpNewerCheckpoint,
        /// [W13] A backup has what was being written when it was copied.
        BackUpUncut,
    }
}
