//! Mutations: mistakes that tests put back into the algorithm, one at a time, to see that a check catches them
//! (EXS §III shows what the checks are about, fig. 6–8).
//!
//! Outside tests [`is_on`] is `false` at compile time and the protocol holds no trace of this.

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    /// \[E2\] Fig. 5 as printed: the estimate is not set to the sequence number when a phase begins.
    NoResync,
    /// \[E1\] Fig. 6: adverts go on after an indirect transfer, although older receives wait, with estimates.
    AdvertiseBehindVoided,
    /// \[E1\] Fig. 8: an advert that is too late is dropped, but not the rest of its phase.
    KeepPhaseOfDropped,
    /// \[E3\] The sender takes an advert by its phase alone.
    IgnoreSequence,
    /// \[E3\] The sender takes an advert by its sequence number alone.
    IgnorePhase,
    /// \[E1\] Memory is advertised while the ring still holds bytes.
    AdvertiseOverStored,
    /// \[E5\] A transfer may be as long as all free bytes, whether they lie in a row or not.
    WriteAcrossEnd,
    /// \[E6\] Transfers use the last credits too.
    NoReserve,
    /// \[E7\] An advert that wants all is used once, like others.
    WaitAllOnce,
    /// \[E7\] A cancelled receive is given back at once, although its advert is out.
    CancelAtOnce,
    /// \[E7\] The end of the stream overtakes data that waits for room.
    EndBeforeData,
    /// \[E8\] A receive that was filled from the ring drops what did not fit.
    DropRest,
    /// \[E9\] A packet that is too long is cut.
    CutPacket,
}

#[cfg(test)]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Whether `mutation` is on in this thread.
#[cfg(test)]
pub(super) fn is_on(mutation: Mutation) -> bool {
    ACTIVE.get() == Some(mutation)
}

/// Whether `mutation` is on: never.
#[cfg(not(test))]
pub(super) const fn is_on(_: Mutation) -> bool {
    false
}

/// Runs `run` with `mutation` on, in this thread.
#[cfg(test)]
pub(super) fn with<T>(mutation: Option<Mutation>, run: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ACTIVE.set(None);
        }
    }
    ACTIVE.set(mutation);
    let _off = Off;
    run()
}
