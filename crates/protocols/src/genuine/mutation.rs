//! Mutations in genuine multicast (RamCast §3). The simulator catches them.

mutations! {
    /// A mutation: each leaves out one of the rules \[G2\] to \[G19\], or a part of one.
    pub enum GenuineMutation {
        /// \[G2\] A message that is sent again gets a new number.
        NumberAgain,
        /// \[G3\] Two messages may get one timestamp.
        RepeatTimestamp,
        /// \[G3\] A timestamp counts when its clock is here, without the message that it is for.
        HalfTimestamp,
        /// \[G4\] The timestamp of the own shard counts as the final one.
        FinalOfOwnShard,
        /// \[G5\] A member acknowledges without all timestamps.
        AcknowledgeIncomplete,
        /// \[G5\] A leader acknowledges without raising its clock.
        KeepClock,
        /// \[G5\] A member acknowledges past a message that is not complete.
        AcknowledgePastGap,
        /// \[G5\] Acknowledgements are posted before timestamps.
        AcknowledgeFirst,
        /// \[G6\] Messages are delivered when all timestamps are here, at two delays.
        DeliverUnacknowledged,
        /// \[G6\] A majority of a shard counts without its leader.
        QuorumWithoutLeader,
        /// \[G6\] Half of a shard counts as more than half of it.
        HalfSuffices,
        /// \[G6\] All members of a shard are waited for where a majority is enough.
        AwaitAll,
        /// \[G6\] A timestamp without its record holds nothing back.
        PassMissingRecord,
        /// \[G6\] Only messages whose final timestamp is known hold others back.
        PassUnordered,
        /// \[G8\] A record is reused when the first member has delivered it.
        ReuseAfterFirst,
        /// \[G9\] A member acknowledges and delivers after its wedge.
        ActAfterWedge,
        /// \[G10\] A member counts one timestamp more than it has acknowledged.
        CountTooMuch,
        /// \[G10\] With a majority for quorum the trim is the least acknowledgement, as with all.
        TrimOfAll,
        /// \[G11\] A member echoes and installs a proposal although it lacks a part of the log up to the trim.
        SkipFetch,
        /// \[G11\] A member takes another one for frozen or asked whose rank is the same modulo 64.
        WrapRanks,
        /// \[G11\] A member keeps nothing of the log for others once it is in the next view.
        ForgetLog,
        /// \[G12\] The trim of the own shard alone decides what is in.
        OwnTrimDecides,
        /// \[G12\] Whatever is ordered at the end of a view is delivered, whatever the trims.
        KeepOrdered,
        /// \[G12\] What the trims hold is dropped and sent again.
        DropHeld,
        /// \[G13\] What a sender has under way is forgotten.
        ForgetBacklog,
        /// \[G13\] A message that was delivered is not recognised when it is sent again.
        ForgetMarks,
        /// \[G14\] The state of a joiner comes without marks.
        LeaveMarksBehind,
        /// \[G14\] A joiner knows by numbers alone what is in its state, also of senders that are gone.
        ForgetPosition,
        /// \[G14\] A shard whose state is lost counts as a destination.
        CountLostShard,
        /// \[G14\] A joiner comes into a shard of which no member has the state.
        AdmitWithoutState,
        /// \[G15\] Positions of different views are not distinguished.
        PositionWithoutView,
        /// \[G16\] Acknowledgements go to all shards.
        AcknowledgeToAll,
        /// \[G17\] A leader does not announce what was delivered in an earlier view.
        KeepSilent,
        /// \[G18\] An update that was applied before is applied once more.
        ApplyAgain,
        /// \[G19\] A caller reports that it has replies which are missing.
        KnowEarly,
        /// \[G19\] A caller that finds one shard lost does not wait for the others.
        LoseEarly,
        /// \[G19\] A caller that has asked a member in vain asks no other one.
        AskOnce,
    }
}
