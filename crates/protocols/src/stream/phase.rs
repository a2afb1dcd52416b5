//! Phases: the logical time that orders adverts with respect to runs of indirect transfers (EXS §III, fig. 2–4).

/// The number of a run of transfers: even while they are direct, odd while they are indirect. 64 bits: it never
/// wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phase(pub u64);

impl Phase {
    /// Both ends begin in a direct phase.
    pub const FIRST: Self = Self(0);

    /// Whether transfers of this phase go straight to the receiver's memory.
    #[must_use]
    pub const fn is_direct(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// Whether transfers of this phase go through the ring.
    #[must_use]
    pub const fn is_indirect(self) -> bool {
        !self.is_direct()
    }

    /// The phase after this one (the paper's `NEXT_PHASE`).
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
