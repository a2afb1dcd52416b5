//! What membership needs of the subgroups of a view (Derecho §3.4).

use squall_fabric::NodeId;

/// The subgroups of a view, as membership uses them.
pub trait Subgroups<F> {
    /// Freezes the rows of `member`, which is suspected: they never change again here \[S5\].
    fn freeze(&mut self, fabric: &mut F, member: NodeId);

    /// Ends the view: nothing more is sent or acknowledged. Writes how many indexes of each sender this member counts
    /// ([`SenderSegment::counts`](super::SenderSegment::counts)), and which states it holds: from now on until the next view no
    /// other state counts as held \[A8\].
    ///
    /// Returns false, and has written nothing of use, while what it counts is still on its way to the disk \[T4\]: it is called
    /// again until then, and nothing is published in between.
    fn wedge(&mut self, counts: &mut [u64], states: &mut [u64]) -> bool;

    /// Adds the states that this member holds by now, by their subgroups' numbers; returns whether there may be more
    /// than at the last call. A state that is added is held until the view ends.
    fn hold(&mut self, states: &mut [u64]) -> bool;
}
