//! Mutations in admission (Derecho §3.3). The simulator catches them.

mutations! {
    /// A mutation. Each is the negation of one invariant of admission.
    pub enum AdmissionMutation {
        /// \[J1\] A leader gives the next candidate of a view the number of the one before.
        RepeatNumber,
        /// \[J1\] A leader whose numbers are used up waits for a view that nobody asks for.
        NeverRenew,
        /// \[J2\] A member that does not lead admits.
        AdmitEverywhere,
        /// \[J2\] A leader admits a process under the rank of a member.
        AdmitTakenRank,
        /// \[J2\] A leader admits a process while another one is its candidate.
        AdmitTwo,
        /// \[J3\] A member that does not take a candidate's link keeps that for itself.
        RefuseSilently,
        /// \[J3\] A member takes the link of a candidate that its group has lost.
        TakeLost,
        /// \[J4\] The links of processes that do not become members stay.
        KeepLinks,
        /// \[J4\] A candidate that has gone keeps its place.
        KeepCandidate,
        /// \[J5\] A joiner asks the leader that it knows, and nobody else.
        AskOneLeader,
        /// \[J5\] A joiner that was removed before its view had begun gives up.
        GiveUpRemoved,
        /// \[J5\] A joiner whose leader has gone waits for a view all the same.
        WaitForDeadLeader,
        /// \[J6\] A joiner asks again and keeps what it has.
        KeepAttempt,
        /// \[J7\] A joiner that is not answered asks again for ever.
        AskForEver,
        /// \[J9\] A joiner whose report is not answered goes at once.
        AbandonReport,
    }
}
