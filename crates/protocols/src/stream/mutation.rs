//! Mutations of streams (EXS §III explains the checks that they disable, fig. 6–8).

mutations! {
    /// A mutation.
    pub(super) enum StreamMutation {
        /// \[E2\] Fig. 5 as printed: the estimate is not set to the sequence number when a phase begins.
        NoResync,
        /// \[E2\] A sender waits for an advert and does not tell the peer.
        WaitSilently,
        /// \[E1\] Fig. 6: after an indirect transfer, a receiver continues to advertise with estimates although older
        /// receives wait.
        AdvertiseBehindVoided,
        /// \[E1\] Fig. 8: an advert that is too late is dropped, but not the rest of its phase.
        KeepPhaseOfDropped,
        /// \[E3\] The sender takes an advert by its phase alone.
        IgnoreSequence,
        /// \[E3\] The sender takes an advert by its sequence number alone.
        IgnorePhase,
        /// \[E1\] Memory is advertised while the ring still holds bytes.
        AdvertiseOverStored,
        /// \[E5\] A transfer may be as long as all free bytes, whether they are contiguous or not.
        WriteAcrossEnd,
        /// \[E6\] Transfers use the last credits, too.
        NoReserve,
        /// \[E7\] An advert with `wait_all` is used for one transfer only, like others.
        WaitAllOnce,
        /// \[E7\] A cancelled receive is returned at once, although its advert is outstanding.
        CancelAtOnce,
        /// \[E7\] The end of the stream overtakes data that waits for space.
        EndBeforeData,
        /// \[E8\] A receive that was filled from the ring drops what did not fit.
        DropRest,
        /// \[E9\] A packet that is too long is truncated.
        CutPacket,
    }
}
