//! Phases: the logical clock that orders adverts with respect to runs of indirect transfers (EXS §III, fig. 2–4).

/// The number of a run of transfers, even for direct and odd for indirect runs. It has 64 bits and never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Phase(pub u64);

impl Phase {
    /// The phase in which both ends begin, which is direct.
    pub const FIRST: Self = Self(0);

    /// Returns whether transfers of this phase go directly to the receiver's memory.
    #[must_use]
    pub const fn is_direct(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// Returns whether transfers of this phase go through the ring.
    #[must_use]
    pub const fn is_indirect(self) -> bool {
        !self.is_direct()
    }

    /// Returns the phase after this one (the paper's `NEXT_PHASE`).
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
