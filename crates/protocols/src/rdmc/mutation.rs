//! Mutations: mistakes that tests put back into the protocol, one at a time, to see that a check catches them
//! (RDMC §3.2; invariants [B1]–[B7]).
//!
//! Outside tests, and without the feature `mutations`, [`is_on`] is `false` at compile time and the protocol holds no
//! trace of this.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "mutations"), allow(dead_code, reason = "only tests make mistakes"))]
pub enum Mutation {
    /// \[F7\] Posts do not wait for the peer's receives.
    NoCredits,
    /// \[B1\] A block goes to another target than the schedule says.
    WrongPartner,
    /// \[B1\] A block is relayed before it is held.
    SendUnheld,
    /// \[B1\] The last block of an object is left out.
    DropLast,
    /// What a target has told of another object in the same slot is believed.
    StaleBound,
    /// A block that arrives again is taken for a new one, without a check; and is sent twice.
    SendTwice,
    /// An object counts as received when its last-but-one block is here.
    ReceivedTooSoon,
    /// Objects are handed over as they are completed, not in order.
    HandOverUnordered,
    /// \[F5\] Memory is released when everything is posted, not when it is placed.
    ReleaseUnplaced,
    /// \[B7\] A member that learns of a failure does not tell its neighbours.
    KeepFailureSecret,
    /// \[B7\] A failure is reported while blocks may still land.
    ReportUnsettled,
    /// \[B7\] The last block that was held is reported as not held.
    ForgetHeld,
    /// \[B7\] What a target holds is sent all the same.
    SendHeld,
    /// \[B7\] A target is believed to hold more than it says.
    OmitUnheld,
    /// \[M5\] On one host: an object is ready before all have mapped it.
    ReadyUnattached,
    /// On one host: memory is free again when the first receiver has given it back.
    FinishWithFirst,
}

#[cfg(feature = "mutations")]
impl Mutation {
    /// Of the sessions; those of [`super::local`] have a harness of their own.
    pub const ALL: [Self; 14] = [
        Self::NoCredits,
        Self::WrongPartner,
        Self::SendUnheld,
        Self::DropLast,
        Self::StaleBound,
        Self::SendTwice,
        Self::ReceivedTooSoon,
        Self::HandOverUnordered,
        Self::ReleaseUnplaced,
        Self::KeepFailureSecret,
        Self::ReportUnsettled,
        Self::ForgetHeld,
        Self::SendHeld,
        Self::OmitUnheld,
    ];
}

#[cfg(any(test, feature = "mutations"))]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Whether `mutation` is on in this thread.
#[cfg(any(test, feature = "mutations"))]
pub(super) fn is_on(mutation: Mutation) -> bool {
    ACTIVE.get() == Some(mutation)
}

/// Whether `mutation` is on: never.
#[cfg(not(any(test, feature = "mutations")))]
#[inline]
pub(super) const fn is_on(_: Mutation) -> bool {
    false
}

/// Runs `run` with `mutation` on, in this thread.
#[cfg(any(test, feature = "mutations"))]
pub fn with<T>(mutation: Mutation, run: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ACTIVE.set(None);
        }
    }
    ACTIVE.set(Some(mutation));
    let _off = Off;
    run()
}
