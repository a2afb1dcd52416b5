//! Mutations in replicated objects (Derecho app. A). Random runs in memory and the simulator catch them.

mutations! {
    /// A mutation.
    pub enum ReplicaMutation {
        /// \[V6\] A joiner takes a state from before the start of its first view.
        TakeOlderState,
        /// \[V6\] A joiner applies all that it has kept, also what is in the state already.
        ApplyAllKept,
        /// \[V6\] A joiner forgets what it has kept.
        ForgetKept,
        /// \[V6\] A state is tagged with what the provider has seen of later, not with what is in it.
        TagWithNextView,
        /// \[A3\] Sessions do not travel with the state.
        LeaveSessionsBehind,
        /// \[A3\] A repeated update is applied again.
        ApplyRepeated,
        /// \[A11\] An update is applied though an earlier one of its client is missing.
        ApplyEarly,
        /// \[A11\] A session keeps no reply that its client may still ask for.
        ForgetReplies,
        /// \[A3\] A client whose session is forgotten sends in a new one what the old one may have applied.
        SendAgainInNewSession,
        /// \[A4\] A client says of what it has sent that it is not applied.
        DenySent,
        /// \[A11\] A client that asks another member goes on with what it has not sent yet.
        SkipUnanswered,
        /// \[A4\] A member that is removed tells that what was under way is not delivered.
        DenyUnknown,
        /// \[A5\] A query is answered from an earlier view.
        AnswerFromEarlierView,
        /// \[A12\] A query that is to see all that was acknowledged does not go through the order.
        AskOutOfOrder,
        /// \[A7\] A state that a single member holds is taken for lost.
        LoseTooSoon,
        /// \[A8\] Where a shard lies does not depend on who holds its state.
        DropLastHolder,
        /// \[A8\] A member takes a state over between its wedge and the next view, and nobody knows.
        HoldAfterWedge,
        /// \[V8\] A joiner asks the same state provider again and again.
        AskTheSame,
        /// \[A10\] A client asks for the members only when all that it knows have failed.
        AskAfterFailures,
    }
}
