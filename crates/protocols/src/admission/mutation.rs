//! Mutations of admission (Derecho §3.3). The simulator catches them.

mutations! {
    /// A mutation. Each is the negation of one invariant of admission.
    pub enum AdmissionMutation {
        /// \[J1\] A leader assigns the next candidate of a view the number of the previous one.
        RepeatNumber,
        /// \[J1\] A leader whose numbers are used up waits for a view without asking for it.
        NeverRenew,
        /// \[J2\] A member that is not the leader admits.
        AdmitEverywhere,
        /// \[J2\] A leader admits a process under the rank of a member.
        AdmitTakenRank,
        /// \[J2\] A leader admits a process while another one is its candidate.
        AdmitTwo,
        /// \[J3\] A member that does not accept a candidate's link does not report it.
        RefuseSilently,
        /// \[J3\] A member accepts the link of a candidate that its group has lost.
        TakeLost,
        /// \[J4\] The links of processes that do not become members are never closed.
        KeepLinks,
        /// \[J4\] A candidate that is gone remains the candidate.
        KeepCandidate,
        /// \[J5\] A joiner asks only the leader that it knows.
        AskOneLeader,
        /// \[J5\] A joiner that was removed before its view had begun gives up.
        GiveUpRemoved,
        /// \[J5\] A joiner whose leader is gone waits for a view all the same.
        WaitForDeadLeader,
        /// \[J6\] A joiner asks again without closing the links of the attempt.
        KeepAttempt,
        /// \[J7\] A joiner that gets no answer asks again forever.
        AskForEver,
        /// \[J9\] A joiner that has reported leaves as soon as it has lost the leader.
        AbandonReport,
        /// \[J10\] A member closes the link of a process that is in its view.
        PartMember,
        /// \[J11\] A member keeps the link of a candidate whose leader leads no more.
        KeepOutdated,
    }
}
