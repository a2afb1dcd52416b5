//! Adverts, which say where the next bytes of the stream may be written (EXS fig. 1, fig. 3).

use squall_fabric::Grant;

use super::Phase;

/// An advert: the receiver offers the memory of one posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub struct Advert {
    /// The right to write the memory.
    pub grant: Grant,
    /// The first byte, counted from the beginning of the granted range.
    pub start: u64,
    /// The length in bytes; at least 1 in a stream.
    pub length: u64,
    /// Whether the receive completes only once all of `length` is filled, in which case the advert serves several
    /// transfers.
    pub wait_all: bool,
    /// `P_A`, always direct \[E4\].
    pub phase: Phase,
    /// `S_A`: exact for the first advert of a phase \[E3\], a lower bound for the later ones.
    pub sequence: u64,
}
