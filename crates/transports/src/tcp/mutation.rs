//! Mutations of links that are opened again (`pair` has the rules): the drawn schedules among the tests of `reopening` catch them.

squall_fabric::mutations! {
    /// A mutation: one rule that is left out.
    pub(super) enum ReopenMutation {
        /// \[C2\] What the socket has taken is not kept.
        DropTaken,
        /// \[C7\] Output is moved back when the connection breaks, not by what the peer says.
        RewindAtBreak,
        /// \[C7\] A word replaces the one of a frame that is begun.
        ReplaceBegun,
        /// \[C8\] The incomplete word and header that the old connection has brought are kept.
        KeepRest,
        /// \[C8\] The parser begins anew, in the middle of a frame.
        ForgetPayload,
        /// \[C11\] Each request is accepted.
        NoBallots,
        /// \[C11\] The ballot is forgotten with the connection.
        ForgetBallot,
        /// \[C11\] The own request does not count.
        OwnDoesNotCount,
        /// \[C11\] A request with the same number is accepted from either end.
        NumbersAlone,
        /// \[C12\] The caller reads its old connection on until it is answered.
        ReadOn,
        /// \[C13\] The own call continues when another one is accepted.
        KeepCall,
    }
}
