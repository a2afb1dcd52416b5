//! Mutations in replicated objects (Derecho app. A). Random runs in memory and the simulator catch them.

mutations! {
    /// A mutation.
    pub enum ReplicaMutation {
        /// \[V6\] A joiner takes a state from before the start of its first view.
        TakeOlderState,
        /// \[V6\] A joiner applies all updates that it has kept, including those that are in the state already.
        ApplyAllKept,
        /// \[V6\] A joiner drops the updates that it has kept.
        ForgetKept,
        /// \[V6\] A state is tagged with later updates that the provider has seen, not with the last one that it
        /// contains.
        TagWithNextView,
        /// \[A3\] Sessions are not transferred with the state.
        LeaveSessionsBehind,
        /// \[A3\] A repeated update is applied again.
        ApplyRepeated,
        /// \[A11\] An update is applied although an earlier one of its client is missing.
        ApplyEarly,
        /// \[A11\] A session drops a reply that its client may still ask for.
        ForgetReplies,
        /// \[A3\] A client whose session is forgotten sends, in a new session, an update that the old one may have
        /// applied.
        SendAgainInNewSession,
        /// \[A4\] A client reports an update that it has sent as not applied.
        DenySent,
        /// \[A11\] A client that turns to another member continues with the updates that it has not sent yet.
        SkipUnanswered,
        /// \[A4\] A removed member reports updates in flight as not delivered.
        DenyUnknown,
        /// \[A5\] A query is answered from an earlier view.
        AnswerFromEarlierView,
        /// \[A12\] A query that must see all acknowledged updates does not go through the total order.
        AskOutOfOrder,
        /// \[A7\] A state that a single member holds is considered lost.
        LoseTooSoon,
        /// \[A8\] The placement of a shard does not depend on which members hold its state.
        DropLastHolder,
        /// \[A8\] A member takes over a state between its wedge and the next view without reporting it.
        HoldAfterWedge,
        /// \[V8\] A joiner asks the same state provider again and again.
        AskTheSame,
        /// \[A10\] A client asks for the members only after all known members have failed.
        AskAfterFailures,
        /// \[A13\] A state that is made again from the log forgets which updates its clients have sent.
        RecoverWithoutSessions,
        /// \[A18\] A shard that begins again numbers its sessions as it did the first time.
        NumberSessionsAnew,
        /// \[A14\] A version is made from a state that is later.
        ContinueFromLater,
        /// \[A14\] A version is made from a state behind which the log is not kept any more.
        ReadBeforeBase,
        /// \[A14\] All that is delivered belongs to a version.
        ReadToNewest,
        /// \[A14\] The log of a view that has ended counts beyond what was delivered.
        ReadBeyondTrim,
        /// \[A14\] A version by time ends at no message that was received before an earlier one.
        TrustEachTime,
        /// \[A14\] A version by time is read although messages that were received before are not delivered yet.
        ReadUnsettled,
        /// \[A15\] A reader returns messages from before the position that it was given.
        ReturnEarlier,
        /// \[A15\] A reader does not find in the log what was delivered while it read that.
        LoseDropped,
        /// \[A17\] An update goes through this member's window while other members are asked for earlier ones.
        OvertakeElsewhere,
        /// \[A17\] An update is sent before those that have found no space.
        OvertakeBatch,
    }
}
