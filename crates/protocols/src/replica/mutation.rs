//! Mistakes in replicated objects (Derecho app. A). Random runs in memory and the simulator catch them.

mutations! {
    /// A mistake.
    pub enum Mutation {
        /// \[V6\] A newcomer takes a state from before the start of its first view.
        TakeOlderState,
        /// \[V6\] A newcomer applies all that it has kept, also what is in the state already.
        ApplyAllKept,
        /// \[V6\] A newcomer forgets what it has kept.
        ForgetKept,
        /// \[V6\] A state is tagged with what the giver has seen of later, not with what is in it.
        TagWithNextView,
        /// \[A3\] Sessions do not travel with the state.
        LeaveSessionsBehind,
        /// \[A3\] A repeated update is applied again.
        ApplyRepeated,
        /// \[A4\] A member that is removed tells that what was under way is not delivered.
        DenyUnknown,
        /// \[A5\] A query is answered from an earlier view.
        AnswerFromEarlierView,
        /// \[A7\] Who leaves a shard drops the state.
        DropOnLeaving,
        /// \[A7\] Who has left a shard drops the state when one of its members has it.
        DropWhenOneSettled,
        /// \[A7\] Who refused in an earlier view counts in the present one.
        KeepRefusals,
        /// \[A7\] A member refuses in another view than the asker's.
        RefuseInOtherView,
        /// \[A7\] A newcomer refuses one that came later, though it can use older states.
        RefuseLater,
        /// \[A7\] A newcomer refuses while it is being given the state itself.
        RefuseWhileAsking,
    }
}
